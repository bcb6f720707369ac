#include "server/config/server_options.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace kernd::config {
namespace {

absl::Status Broken(absl::string_view flag, absl::string_view value, absl::string_view rule) {
  return absl::InvalidArgumentError(absl::StrCat("--", flag, " is ", value, ": ", rule));
}

absl::Status InRange(absl::string_view flag, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return Broken(flag, absl::StrCat(value), absl::StrCat("must be from ", low, " to ", high));
}

absl::Status BytesInRange(absl::string_view flag, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return Broken(flag, BytesText(value), absl::StrCat("must be from ", BytesText(low), " to ", BytesText(high)));
}

absl::Status InRange(absl::string_view flag, absl::Duration value, absl::Duration low, absl::Duration high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return Broken(flag, DurationText(value),
                absl::StrCat("must be from ", DurationText(low), " to ", DurationText(high)));
}

absl::Status InRangeOrOff(absl::string_view flag, absl::Duration value, absl::Duration low, absl::Duration high) {
  return value == absl::InfiniteDuration() ? absl::OkStatus() : InRange(flag, value, low, high);
}

absl::Status ValidateListen(const ListenOptions& listen) {
  if (listen.grpc.empty()) return Broken("listen", "empty", "must name at least one address");
  for (auto it = listen.grpc.begin(); it != listen.grpc.end(); ++it) {
    const bool any_port = it->unix_path.empty() && it->port == 0;
    if (!any_port && std::find(listen.grpc.begin(), it, *it) != it) {
      return Broken("listen", AddressText(*it), "must not be given twice");
    }
    if (!any_port && listen.http == *it) {
      return Broken("http-listen", AddressText(*it), "must not be an address of --listen");
    }
  }
  if (listen.http && !listen.http->unix_path.empty()) {
    return Broken("http-listen", AddressText(*listen.http), "must be host:port");
  }
  return absl::OkStatus();
}

absl::Status ValidateLimits(const LimitOptions& limits) {
  constexpr std::int64_t kMost = std::int64_t{1} << 50;
  for (const absl::Status& status : {
           BytesInRange("memory-limit", limits.memory_bytes, std::int64_t{1} << 20, kMost),
           BytesInRange("body-budget", limits.body_budget_bytes, std::int64_t{1} << 20, kMost),
           BytesInRange("max-message-bytes", limits.max_message_bytes, 4096, kMaxMessageBytes),
           BytesInRange("default-body-bytes", limits.default_body_bytes, 4096, kMaxMessageBytes),
           InRange("max-queued-calls", limits.max_queued_calls, 1, 1'000'000),
           InRange("max-concurrent-streams", limits.max_concurrent_streams, 1, 100'000),
       }) {
    if (!status.ok()) return status;
  }
  if (limits.default_body_bytes > limits.body_budget_bytes) {
    return Broken("default-body-bytes", BytesText(limits.default_body_bytes),
                  absl::StrCat("must be at most --body-budget, ", BytesText(limits.body_budget_bytes),
                               ": no call that leaves its size open could ever be accepted"));
  }
  return absl::OkStatus();
}

absl::Status ValidateLifecycle(const LifecycleOptions& lifecycle) {
  // Upper ends: what gRPC's options, milliseconds in a 32-bit int, can carry, and what can only be a slip of the pen.
  for (const absl::Status& status : {
           InRange("drain-delay", lifecycle.drain_delay, absl::ZeroDuration(), absl::Hours(1)),
           InRange("drain-timeout", lifecycle.drain_timeout, absl::ZeroDuration(), absl::Hours(24)),
           InRange("receive-stall", lifecycle.receive_stall, absl::Milliseconds(100), absl::Hours(1)),
           InRange("send-stall", lifecycle.send_stall, absl::Milliseconds(100), absl::Hours(1)),
           InRange("handshake-timeout", lifecycle.handshake_timeout, absl::Milliseconds(100), absl::Hours(1)),
           InRangeOrOff("keepalive-time", lifecycle.keepalive_time, absl::Seconds(1), absl::Hours(24)),
           InRange("keepalive-timeout", lifecycle.keepalive_timeout, absl::Milliseconds(100), absl::Hours(1)),
           InRangeOrOff("max-connection-age", lifecycle.max_connection_age, absl::Seconds(1), absl::Hours(24 * 24)),
       }) {
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace

ServerOptions DefaultOptions(const MachineLimits& machine) {
  constexpr std::int64_t kMiB = std::int64_t{1} << 20;
  ServerOptions options;
  options.limits.memory_bytes = machine.memory_bytes / 2 / kMiB * kMiB;
  // The floor lets the daemon start in a small container with the other defaults as they are.
  options.limits.body_budget_bytes =
      std::max(machine.memory_bytes / 4 / kMiB * kMiB, options.limits.default_body_bytes);
  options.compute.cpu_threads = machine.cpus;
  options.compute.io_threads = std::clamp(machine.cpus / 2, 1, 8);
  return options;
}

absl::Status Validate(const ServerOptions& options) {
  if (absl::Status status = ValidateListen(options.listen); !status.ok()) return status;
  if (absl::Status status = ValidateLimits(options.limits); !status.ok()) return status;
  if (absl::Status status = ValidateLifecycle(options.lifecycle); !status.ok()) return status;
  if (absl::Status status = InRange("cpu-threads", options.compute.cpu_threads, 1, 4096); !status.ok()) return status;
  if (absl::Status status = InRange("io-threads", options.compute.io_threads, 1, 256); !status.ok()) return status;
  const std::string& level = options.logging.level;
  if (level != "debug" && level != "info" && level != "warning" && level != "error") {
    return Broken("log-level", level, "must be debug, info, warning or error");
  }
  return absl::OkStatus();
}

}  // namespace kernd::config
