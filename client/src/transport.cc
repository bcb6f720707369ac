#include "client/src/transport.h"

#include <algorithm>
#include <charconv>
#include <condition_variable>
#include <limits>
#include <random>
#include <utility>

#include "absl/strings/match.h"
#include "client/src/retry.h"
#include "client/src/status.h"
#include "grpcpp/client_context.h"
#include "grpcpp/completion_queue.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/security/credentials.h"
#include "kernd/client/client.h"

namespace kernd::client {
namespace {

constexpr int kMaxChannels = 64;
// protobuf's own limit, which the daemon's parser and every other client share.
constexpr std::size_t kMaxMessageBytes = std::numeric_limits<std::int32_t>::max();
constexpr absl::Duration kMaxStall = absl::Hours(1);
constexpr absl::Duration kReturnPoll = absl::Milliseconds(1);

bool IsUnix(const std::string& endpoint) {
  return absl::StartsWith(endpoint, "unix:") || absl::StartsWith(endpoint, "unix-abstract:");
}

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

absl::Status ValidateCall(const CallOptions& options, absl::Duration timeout, const RetryPolicy& retry,
                          std::size_t request_bytes) {
  if (timeout <= absl::ZeroDuration()) {
    return InvalidField("timeout", absl::FormatDuration(timeout), "must be positive");
  }
  KERND_CLIENT_RETURN_IF_ERROR(ValidateRetryPolicy(retry));
  for (const auto& [key, value] : options.metadata) {
    // gRPC would stop the program.
    if (!IsMetadataKey(key)) return InvalidField("metadata", '"' + key + '"', "not a key that gRPC can send");
    if (!IsPrintableAscii(value)) return InvalidField("metadata." + key, "not text", "must be printable ASCII");
  }
  if (request_bytes > kMaxMessageBytes) {
    return LocalError(absl::StatusCode::kResourceExhausted, reason::kTooLarge, {},
                      "the request has " + std::to_string(request_bytes) + " bytes, a message at most " +
                          std::to_string(kMaxMessageBytes));
  }
  return absl::OkStatus();
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

struct Transport::Attempt {
  absl::Status status;
  Pushback pushback;
  grpc::ByteBuffer reply;
};

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
  return ValidateRetryPolicy(options.retry);
}

Transport::Transport(ClientOptions options) : options_(std::move(options)), lend_(!IsUnix(options_.endpoint)) {
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
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, static_cast<int>(absl::ToInt64Milliseconds(options_.stall_timeout)));
  if (IsLocal(options_.endpoint)) arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  for (int i = 0; i < options_.channels; ++i) {
    channels_.push_back(grpc::CreateCustomChannel(options_.endpoint, grpc::InsecureChannelCredentials(), arguments));
  }
}

absl::Status Transport::AwaitConnection(absl::Time deadline) const {
  for (const std::shared_ptr<grpc::Channel>& channel : channels_) {
    while (true) {
      const grpc_connectivity_state state = channel->GetState(/*try_to_connect=*/true);
      if (state == GRPC_CHANNEL_READY) break;
      if (state == GRPC_CHANNEL_TRANSIENT_FAILURE) return NotConnected(absl::StatusCode::kUnavailable, "refused");
      if (!channel->WaitForStateChange(state, absl::ToChronoTime(deadline))) {
        return NotConnected(absl::StatusCode::kDeadlineExceeded, "");
      }
    }
  }
  return absl::OkStatus();
}

absl::Status Transport::NotConnected(absl::StatusCode code, const std::string& why) const {
  const std::string to = "no connection to " + options_.endpoint;
  return LocalError(code, reason::kNotConnected, {},
                    code == absl::StatusCode::kDeadlineExceeded ? to + " before the deadline" : to + ": " + why);
}

absl::StatusOr<grpc::ByteBuffer> Transport::Call(const std::string& method, const Pieces& request,
                                                 const CallOptions& options) const {
  const absl::Duration timeout = options.timeout.value_or(options_.timeout);
  const RetryPolicy& retry = options.retry ? *options.retry : options_.retry;
  KERND_CLIENT_RETURN_IF_ERROR(ValidateCall(options, timeout, retry, request.size()));
  const absl::Time deadline = absl::Now() + timeout;
  for (int attempt = 1;; ++attempt) {
    Attempt result = Try(method, request, options, deadline);
    if (result.status.ok()) return std::move(result.reply);
    const std::optional<absl::Duration> delay =
        RetryDelay(retry, attempt, result.status, result.pushback, Uniform(), deadline - absl::Now());
    if (!delay) return result.status;
    if (!Sleep(*delay, options.stop)) return absl::CancelledError("stopped by the caller");
  }
}

Transport::Attempt Transport::Try(const std::string& method, const Pieces& request, const CallOptions& options,
                                  absl::Time deadline) const {
  Attempt result;
  Loan loan;
  const std::shared_ptr<grpc::Channel>& channel =
      channels_[turn_.fetch_add(1, std::memory_order_relaxed) % channels_.size()];
  // A queue of the call's own, polled by this thread: no thread of gRPC's stands between the socket and the caller.
  grpc::CompletionQueue queue;
  void* tag = nullptr;
  bool ok = false;
  {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(deadline));
    // The daemon admits a call by this before it reads the body.
    context.AddMetadata("kernd-body-bytes", std::to_string(request.size()));
    for (const auto& [key, value] : options.metadata) context.AddMetadata(key, value);

    grpc::GenericStub stub(channel);
    grpc::Status status;
    const auto reader = stub.PrepareUnaryCall(&context, method, request.Buffer(lend_ ? &loan : nullptr), &queue);
    {
      const std::stop_callback cancel(options.stop, [&context] { context.TryCancel(); });
      reader->StartCall();
      reader->Finish(&result.reply, &status, nullptr);
      queue.Next(&tag, &ok);
    }

    result.status = FromGrpc(status);
    if (!result.status.ok()) result.pushback = PushbackOf(context);
    const bool unanswered = status.error_details().empty() &&
                            (absl::IsUnavailable(result.status) || absl::IsDeadlineExceeded(result.status));
    if (unanswered && channel->GetState(/*try_to_connect=*/false) != GRPC_CHANNEL_READY) {
      result.status = NotConnected(result.status.code(), status.error_message());
    }
  }
  // Only after a call that ended early is there anything to wait for. Polls, as no other thread may be moving the
  // connection.
  while (!loan.AllReturned()) queue.AsyncNext(&tag, &ok, absl::ToChronoTime(absl::Now() + kReturnPoll));
  queue.Shutdown();
  while (queue.Next(&tag, &ok)) {
  }
  return result;
}

}  // namespace kernd::client
