#include "client/src/connection.h"

#include <algorithm>
#include <charconv>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <optional>
#include <random>
#include <utility>

#include "absl/strings/match.h"
#include "client/src/status.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "kernd/client/client.h"

namespace kernd::client {
namespace {

constexpr int kMaxChannels = 64;
constexpr absl::Duration kMaxStall = absl::Hours(1);

// An HTTP proxy of the environment is for the world outside, not for this host.
bool IsLocal(const std::string& endpoint) {
  return IsUnix(endpoint) || absl::StartsWith(endpoint, "localhost:") || absl::StartsWith(endpoint, "127.") ||
         absl::StartsWith(endpoint, "[::1]:");
}

bool IsMetadataKey(const std::string& key) {
  const auto legal = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.';
  };
  return !key.empty() && std::all_of(key.begin(), key.end(), legal) && !absl::StartsWith(key, "grpc-") &&
         !absl::EndsWith(key, "-bin");
}

bool IsPrintableAscii(const std::string& value) {
  return std::all_of(value.begin(), value.end(), [](char c) { return c >= ' ' && c <= '~'; });
}

Pushback PushbackOf(const grpc::ClientContext& context) {
  const auto& trailers = context.GetServerTrailingMetadata();
  const auto found = trailers.find("grpc-retry-pushback-ms");
  if (found == trailers.end()) return {};
  std::int32_t millis = 0;
  const char* end = found->second.data() + found->second.size();
  const auto [rest, error] = std::from_chars(found->second.data(), end, millis);
  if (error != std::errc() || rest != end || millis < 0) return {.never = true};
  return {.delay = absl::Milliseconds(millis)};
}

double Uniform() {
  thread_local std::minstd_rand random{std::random_device{}()};
  return std::uniform_real_distribution<double>(0.0, 1.0)(random);
}

// False where `stop` was requested before `delay` was over.
bool Sleep(absl::Duration delay, const std::stop_token& stop) {
  std::mutex mutex;
  std::condition_variable_any never;
  std::unique_lock lock(mutex);
  never.wait_for(lock, stop, absl::ToChronoNanoseconds(delay), [] { return false; });
  return !stop.stop_requested();
}

}  // namespace

bool IsUnix(const std::string& endpoint) {
  return absl::StartsWith(endpoint, "unix:") || absl::StartsWith(endpoint, "unix-abstract:");
}

absl::Status ValidateOptions(const ClientOptions& options) {
  if (options.endpoint.empty()) return InvalidField("endpoint", "empty", "host:port or unix:/path");
  if (options.timeout <= absl::ZeroDuration()) {
    return InvalidField("timeout", absl::FormatDuration(options.timeout), "must be positive");
  }
  if (options.channels < 1 || options.channels > kMaxChannels) {
    return InvalidField("channels", std::to_string(options.channels), "from 1 to " + std::to_string(kMaxChannels));
  }
  if (options.stall_timeout < absl::Milliseconds(1) || options.stall_timeout > kMaxStall) {
    return InvalidField("stall_timeout", absl::FormatDuration(options.stall_timeout), "from 1ms to 1h");
  }
  if (options.stripe_channels < 1 || options.stripe_channels > kMaxChannels) {
    return InvalidField("stripe_channels", std::to_string(options.stripe_channels),
                        "from 1 to " + std::to_string(kMaxChannels));
  }
  if (options.stripe_threshold_bytes < 0) {
    return InvalidField("stripe_threshold_bytes", std::to_string(options.stripe_threshold_bytes), "not negative");
  }
  return ValidateRetryPolicy(options.retry);
}

absl::StatusOr<CallTerms> TermsOf(const CallOptions& options, const ClientOptions& defaults) {
  const absl::Duration timeout = options.timeout.value_or(defaults.timeout);
  if (timeout <= absl::ZeroDuration()) {
    return InvalidField("timeout", absl::FormatDuration(timeout), "must be positive");
  }
  CallTerms terms{absl::Now() + timeout, options.retry.value_or(defaults.retry), options.metadata, options.stop};
  KERND_CLIENT_RETURN_IF_ERROR(ValidateRetryPolicy(terms.retry));
  for (const auto& [key, value] : options.metadata) {
    // gRPC would stop the program.
    if (!IsMetadataKey(key)) return InvalidField("metadata", '"' + key + '"', "not a key that gRPC can send");
    if (!IsPrintableAscii(value)) return InvalidField("metadata." + key, "not text", "must be printable ASCII");
  }
  return terms;
}

std::shared_ptr<grpc::Channel> Dial(const ClientOptions& options) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  arguments.SetUserAgentPrefix("kernd-client/" + std::string(Version()));
  // Each channel has a connection of its own.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // Retries are ours alone: gRPC's would keep a copy of the request.
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  // A daemon that comes back is found within a second.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  // gRPC takes TCP_USER_TIMEOUT from its keepalive options. Pings themselves are 24 days apart: servers other than
  // kernd drop clients that ping more often than every five minutes.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, std::numeric_limits<int>::max() - 1);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, static_cast<int>(absl::ToInt64Milliseconds(options.stall_timeout)));
  if (IsLocal(options.endpoint)) arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return grpc::CreateCustomChannel(options.endpoint, grpc::InsecureChannelCredentials(), arguments);
}

void SetTerms(const CallTerms& terms, grpc::ClientContext& context) {
  context.set_deadline(absl::ToChronoTime(terms.deadline));
  for (const auto& [key, value] : terms.metadata) context.AddMetadata(key, value);
}

absl::Status NotConnected(const std::string& endpoint, absl::StatusCode code, const std::string& why) {
  const std::string to = "no connection to " + endpoint;
  return LocalError(code, reason::kNotConnected, {},
                    code == absl::StatusCode::kDeadlineExceeded ? to + " before the deadline" : to + ": " + why);
}

absl::Status EndOf(const grpc::Status& status, const grpc::ClientContext& context, grpc::Channel& channel,
                   const std::string& endpoint, Pushback* pushback) {
  absl::Status result = FromGrpc(status);
  if (!result.ok()) *pushback = PushbackOf(context);
  const bool unanswered =
      status.error_details().empty() && (absl::IsUnavailable(result) || absl::IsDeadlineExceeded(result));
  if (unanswered && channel.GetState(/*try_to_connect=*/false) != GRPC_CHANNEL_READY) {
    return NotConnected(endpoint, result.code(), status.error_message());
  }
  return result;
}

absl::Status Repeat(const CallTerms& terms, const std::function<absl::Status(Pushback*)>& attempt) {
  for (int number = 1;; ++number) {
    Pushback pushback;
    absl::Status status = attempt(&pushback);
    if (status.ok()) return status;
    const std::optional<absl::Duration> delay =
        RetryDelay(terms.retry, number, status, pushback, Uniform(), terms.deadline - absl::Now());
    if (!delay) return status;
    if (!Sleep(*delay, terms.stop)) return absl::CancelledError("stopped by the caller");
  }
}

}  // namespace kernd::client
