#include <algorithm>
#include <array>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "client/cli/doctor/gather.h"
#include "kernd/client/matmul.h"
#include "nlohmann/json.hpp"

namespace kernd::cli::doctor {
namespace {

// Of one question: an answer that takes longer is a finding.
constexpr absl::Duration kPatience = absl::Seconds(5);
constexpr absl::Duration kFirstWords = absl::Seconds(2);

// What every HTTP/2 client sends first: its preface and an empty SETTINGS frame (RFC 9113, 3.4 and 6.5).
constexpr std::string_view kPreface("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", 33);

// A ClientHello of TLS 1.2 with one suite and no extension (RFC 5246, 7.4.1.2): a TLS server answers it, be it with an
// alert.
std::string ClientHello() {
  std::string body("\3\3", 2);             // TLS 1.2
  body += std::string(32, 'k');            // random
  body += std::string("\0", 1);            // no session
  body += std::string("\0\2\xc0\x2f", 4);  // ECDHE-RSA-AES128-GCM-SHA256
  body += std::string("\1\0", 2);          // no compression
  const std::string handshake = std::string("\1\0\0", 3) + static_cast<char>(body.size()) + body;
  return std::string("\x16\3\1\0", 4) + static_cast<char>(handshake.size()) + handshake;
}

// What the server says to `words`; empty where it says nothing. A frame's header has nine bytes.
std::string Ask(const Target& target, std::string_view words, Failure& failure) {
  const Patience patience{absl::Now() + kFirstWords};
  std::optional<Socket> socket = Socket::Connect(target, patience, failure);
  std::string reply;
  if (!socket) return reply;
  failure = socket->Send(words, patience);
  while (failure.trouble == Trouble::kNone && reply.size() < 9) failure = socket->Receive(64, patience, reply);
  failure = {};
  return reply;
}

bool IsTls(const std::string& reply) {  // a record of a handshake or an alert, version 3.x
  return reply.size() >= 2 && (reply[0] == 0x15 || reply[0] == 0x16) && reply[1] == 3;
}

Speaks ListenTo(const std::string& reply) {
  if (reply.empty()) return Speaks::kNothing;
  const bool settings = reply.size() >= 9 && reply[3] == 4 && reply.compare(5, 4, std::string(4, '\0')) == 0;
  if (settings) return Speaks::kHttp2;
  if (reply.starts_with("HTTP/1.")) return Speaks::kHttp1;
  return IsTls(reply) ? Speaks::kTls : Speaks::kOther;
}

std::optional<std::string> Variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr || *value == '\0' ? std::nullopt : std::optional<std::string>(value);
}

// Whether gRPC would go through a proxy of the environment. The proxy's address may hold a password: it is not told.
bool UsesProxy(const EndpointFacts& endpoint) {
  if (endpoint.local || endpoint.target.kind != Target::Kind::kTcp) return false;
  if (!Variable("grpc_proxy") && !Variable("https_proxy") && !Variable("http_proxy")) return false;
  const std::optional<std::string> grpc_exempt = Variable("no_grpc_proxy");
  const std::string exempt = grpc_exempt ? *grpc_exempt : Variable("no_proxy").value_or("");
  const std::vector<std::string> suffixes = absl::StrSplit(exempt, absl::ByAnyChar(", "), absl::SkipEmpty());
  return std::none_of(suffixes.begin(), suffixes.end(),
                      [&](const std::string& suffix) { return endpoint.target.host.ends_with(suffix); });
}

template <typename T>
Answer<T> AnswerOf(absl::StatusOr<T> reply) {
  if (reply.ok()) return {*std::move(reply), ""};
  return {std::nullopt, absl::StrCat(absl::StatusCodeToString(reply.status().code()), ": ", reply.status().message())};
}

// Whole numbers, so that the product has one right answer.
absl::StatusOr<CallFacts> CallOnce(const client::Client& client, const client::CallOptions& options) {
  constexpr int kSize = 4;
  std::array<float, kSize * kSize> a{}, b{}, expected{};
  for (int i = 0; i < kSize * kSize; ++i) {
    a[i] = static_cast<float>(i - 5);
    b[i] = static_cast<float>(i * 3 % 7 - 2);
  }
  for (int row = 0; row < kSize; ++row) {
    for (int col = 0; col < kSize; ++col) {
      for (int k = 0; k < kSize; ++k) expected[row * kSize + col] += a[row * kSize + k] * b[k * kSize + col];
    }
  }
  const absl::Time start = absl::Now();
  const absl::StatusOr<client::MatmulReply> reply =
      client.Matmul({.a = client::View(a, {kSize, kSize}), .b = client::View(b, {kSize, kSize})}, options);
  const double client_us = absl::ToDoubleMicroseconds(absl::Now() - start);
  if (!reply.ok()) return reply.status();
  CallFacts call{.kernel = reply->kernel.name,
                 .device = reply->kernel.device,
                 .client_us = client_us,
                 .server_us = reply->timing.total_us};
  const auto d = reply->d.values<float>();
  call.right = std::equal(d.begin(), d.end(), expected.begin(), expected.end());
  return call;
}

HttpFacts AskHttp(const std::string& address) {
  HttpFacts http{.address = address};
  const absl::Time start = absl::Now();
  const std::optional<Page> page = HttpGet(ParseTarget(address), "/status.json", {start + kFirstWords}, http.failure);
  const absl::Time end = absl::Now();
  if (!page) return http;
  http.code = page->code;
  const auto status = nlohmann::json::parse(page->body, nullptr, false);
  if (page->code != 200 || !status.is_object()) return http;
  try {
    http.state = status.at("state").at("name");
    http.why = status.at("state").at("why");
    http.version = status.at("program").at("version");
    http.options_not_used = status.value("options_not_used", std::vector<std::string>());
    const absl::Time theirs = absl::UnixEpoch() + absl::Seconds(status.at("time_seconds").get<double>());
    http.uncertainty = (end - start) / 2;
    http.clock_ahead = theirs - (start + http.uncertainty);
    http.is_kernd = true;
  } catch (const nlohmann::json::exception&) {
    // Some other program's page.
  }
  return http;
}

}  // namespace

EndpointFacts Probe(const std::string& endpoint, absl::Duration timeout) {
  EndpointFacts facts{.text = endpoint, .target = ParseTarget(endpoint)};
  facts.local = IsLocal(facts.target);
  facts.proxy = UsesProxy(facts);
  if (facts.target.kind == Target::Kind::kOther) return facts;
  if (facts.target.kind == Target::Kind::kTcp && facts.target.port.empty()) facts.target.port = "443";  // as gRPC does
  const absl::Time start = absl::Now();
  if (!Socket::Connect(facts.target, {start + timeout}, facts.failure)) return facts;
  facts.connect_time = absl::Now() - start;
  const std::string reply = Ask(facts.target, kPreface, facts.failure);
  if (facts.failure.trouble != Trouble::kNone) return facts;
  facts.speaks = ListenTo(reply);
  if (facts.speaks == Speaks::kOther) facts.words = reply;
  // Many a TLS server hangs up without a word.
  if (facts.speaks == Speaks::kNothing && IsTls(Ask(facts.target, ClientHello(), facts.failure))) {
    facts.speaks = Speaks::kTls;
  }
  return facts;
}

DaemonFacts GatherDaemon(const Context& context, const std::string& http) {
  DaemonFacts facts;
  const absl::Duration patience = std::min(context.Timeout(), kPatience);
  facts.endpoint = Probe(context.endpoint, patience);
  facts.http = AskHttp(http);
  const bool nobody = facts.endpoint.failure.trouble != Trouble::kNone && !facts.endpoint.proxy;
  const bool no_grpc = facts.endpoint.target.kind != Target::Kind::kOther && !facts.endpoint.proxy &&
                       facts.endpoint.speaks != Speaks::kHttp2;
  if (nobody || no_grpc) return facts;

  client::ClientOptions options;
  options.endpoint = context.endpoint;
  options.timeout = patience;
  options.retry.max_attempts = 1;
  absl::StatusOr<client::Client> client = client::Client::Connect(options);
  if (!client.ok()) {
    facts.health = AnswerOf<client::HealthStatus>(client.status());
    return facts;
  }
  const client::CallOptions call = context.CallOptions();
  facts.health = AnswerOf(client->Health({}, call));
  if (!facts.health.value) return facts;
  facts.capabilities = AnswerOf(client->GetCapabilities(call));
  if (*facts.health.value == client::HealthStatus::kServing && facts.capabilities.value) {
    facts.call = AnswerOf(CallOnce(*client, call));
  }
  return facts;
}

}  // namespace kernd::cli::doctor
