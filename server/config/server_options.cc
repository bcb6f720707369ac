#include "server/config/server_options.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"

namespace kernd::config {
namespace {

using Broken = std::optional<BrokenRule>;

Broken InRange(const char* option, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value >= low && value <= high) return std::nullopt;
  return BrokenRule{option, absl::StrCat(value), absl::StrCat("must be from ", low, " to ", high)};
}

Broken BytesInRange(const char* option, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value >= low && value <= high) return std::nullopt;
  return BrokenRule{option, BytesText(value), absl::StrCat("must be from ", BytesText(low), " to ", BytesText(high))};
}

Broken InRange(const char* option, absl::Duration value, absl::Duration low, absl::Duration high) {
  if (value >= low && value <= high) return std::nullopt;
  return BrokenRule{option, DurationText(value),
                    absl::StrCat("must be from ", DurationText(low), " to ", DurationText(high))};
}

Broken InRangeOrOff(const char* option, absl::Duration value, absl::Duration low, absl::Duration high) {
  return value == absl::InfiniteDuration() ? std::nullopt : InRange(option, value, low, high);
}

Broken CheckListen(const ListenOptions& listen) {
  if (listen.grpc.empty()) return BrokenRule{"listen", "empty", "must name at least one address"};
  for (auto it = listen.grpc.begin(); it != listen.grpc.end(); ++it) {
    const bool any_port = it->unix_path.empty() && it->port == 0;
    if (!any_port && std::find(listen.grpc.begin(), it, *it) != it) {
      return BrokenRule{"listen", AddressText(*it), "must not be given twice"};
    }
    if (!any_port && listen.http == *it) {
      return BrokenRule{"http-listen", AddressText(*it), "must not be an address of --listen"};
    }
  }
  if (listen.http && !listen.http->unix_path.empty()) {
    return BrokenRule{"http-listen", AddressText(*listen.http), "must be host:port"};
  }
  return std::nullopt;
}

Broken CheckLimits(const LimitOptions& limits) {
  constexpr std::int64_t kMost = std::int64_t{1} << 50;
  for (const Broken& broken : {
           BytesInRange("memory-limit", limits.memory_bytes, std::int64_t{1} << 20, kMost),
           BytesInRange("body-budget", limits.body_budget_bytes, std::int64_t{1} << 20, kMost),
           BytesInRange("max-message-bytes", limits.max_message_bytes, 4096, kMaxMessageBytes),
           BytesInRange("default-body-bytes", limits.default_body_bytes, 4096, kMaxMessageBytes),
           InRange("max-queued-calls", limits.max_queued_calls, 1, 1'000'000),
           InRange("max-concurrent-streams", limits.max_concurrent_streams, 1, 100'000),
       }) {
    if (broken) return broken;
  }
  if (limits.default_body_bytes > limits.body_budget_bytes) {
    return BrokenRule{"default-body-bytes", BytesText(limits.default_body_bytes),
                      absl::StrCat("must be at most --body-budget, ", BytesText(limits.body_budget_bytes),
                                   ": no call that leaves its size open could ever be accepted")};
  }
  return std::nullopt;
}

Broken CheckLifecycle(const LifecycleOptions& lifecycle) {
  // Upper ends: what gRPC's options, milliseconds in a 32-bit int, can carry, and what can only be a slip of the pen.
  for (const Broken& broken : {
           InRange("drain-delay", lifecycle.drain_delay, absl::ZeroDuration(), absl::Hours(1)),
           InRange("drain-timeout", lifecycle.drain_timeout, absl::ZeroDuration(), absl::Hours(24)),
           InRange("receive-stall", lifecycle.receive_stall, absl::Milliseconds(100), absl::Hours(1)),
           InRange("send-stall", lifecycle.send_stall, absl::Milliseconds(100), absl::Hours(1)),
           InRange("handshake-timeout", lifecycle.handshake_timeout, absl::Milliseconds(100), absl::Hours(1)),
           InRangeOrOff("keepalive-time", lifecycle.keepalive_time, absl::Seconds(1), absl::Hours(24)),
           InRange("keepalive-timeout", lifecycle.keepalive_timeout, absl::Milliseconds(100), absl::Hours(1)),
           InRangeOrOff("max-connection-age", lifecycle.max_connection_age, absl::Seconds(1), absl::Hours(24 * 24)),
       }) {
    if (broken) return broken;
  }
  return std::nullopt;
}

Broken PercentAtMost100(const char* option, const Share& share) {
  if (share.percent <= 100) return std::nullopt;
  return BrokenRule{option, absl::StrCat(share.percent, "%"), "must be at most 100%"};
}

Broken CheckSessions(const SessionOptions& sessions) {
  constexpr std::int64_t kMost = std::int64_t{1} << 50;
  for (const Broken& broken : {
           PercentAtMost100("resident-memory", sessions.resident),
           BytesInRange("resident-memory", sessions.resident.bytes, 0, kMost),
           PercentAtMost100("session-quota", sessions.quota),
           BytesInRange("session-quota", sessions.quota.bytes, 0, kMost),
           InRange("max-sessions", sessions.max_sessions, 1, 1'000'000),
           InRange("session-lease", sessions.lease, absl::Seconds(1), kMaxSessionLease),
           InRange("fill-timeout", sessions.fill_timeout, absl::Milliseconds(100), absl::Hours(1)),
       }) {
    if (broken) return broken;
  }
  return std::nullopt;
}

Broken CheckSharedMemory(const SharedMemoryOptions& shared_memory) {
  // The daemon's folder is not its clients', and the address of a socket has room for 107 bytes.
  if (!shared_memory.socket.empty() && (shared_memory.socket.front() != '/' || shared_memory.socket.size() > 107)) {
    return BrokenRule{"shared-memory-socket", shared_memory.socket, "must be an absolute path of at most 107 bytes"};
  }
  return BytesInRange("shared-memory-limit", shared_memory.limit_bytes, 4096, std::int64_t{1} << 50);
}

Broken CheckGpu(const GpuOptions& gpu) {
  constexpr std::int64_t kMiB = std::int64_t{1} << 20, kMost = std::int64_t{1} << 50;
  if (Broken broken = PercentAtMost100("gpu-memory", gpu.memory)) return broken;
  for (const Broken& broken : {
           InRange("gpu-device", gpu.device, 0, 1023),
           gpu.memory.percent > 0 ? std::nullopt : BytesInRange("gpu-memory", gpu.memory.bytes, 64 * kMiB, kMost),
           InRange("gpu-executors", gpu.executors, 1, 64),
           BytesInRange("pinned-memory", gpu.pinned_bytes, 0, kMost),
       }) {
    if (broken) return broken;
  }
  return std::nullopt;
}

}  // namespace

ServerOptions DefaultOptions(const MachineLimits& machine) {
  constexpr std::int64_t kMiB = std::int64_t{1} << 20;
  ServerOptions options;
  options.limits.memory_bytes = machine.memory_bytes / 2 / kMiB * kMiB;
  // The floor lets the daemon start in a small container with the other defaults as they are.
  options.limits.body_budget_bytes =
      std::max(machine.memory_bytes / 4 / kMiB * kMiB, options.limits.default_body_bytes);
  options.shared_memory.limit_bytes = std::max(machine.memory_bytes / 4 / kMiB * kMiB, kMiB);
  options.compute.cpu_threads = std::min(machine.cpus, kMaxCpuThreads);
  options.compute.io_threads = std::clamp(machine.cpus / 2, 1, 8);
  return options;
}

std::optional<BrokenRule> FindBrokenRule(const ServerOptions& options) {
  if (Broken broken = CheckListen(options.listen)) return broken;
  if (Broken broken = CheckLimits(options.limits)) return broken;
  if (Broken broken = CheckLifecycle(options.lifecycle)) return broken;
  if (Broken broken = CheckGpu(options.gpu)) return broken;
  if (Broken broken = CheckSessions(options.sessions)) return broken;
  if (Broken broken = CheckSharedMemory(options.shared_memory)) return broken;
  if (Broken broken = InRange("cpu-threads", options.compute.cpu_threads, 1, kMaxCpuThreads)) return broken;
  if (Broken broken = InRange("io-threads", options.compute.io_threads, 1, 256)) return broken;
  const std::string& level = options.logging.level;
  if (level != "debug" && level != "info" && level != "warning" && level != "error") {
    return BrokenRule{"log-level", level, "must be debug, info, warning or error"};
  }
  return std::nullopt;
}

absl::Status Validate(const ServerOptions& options) {
  const Broken broken = FindBrokenRule(options);
  if (!broken) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--", broken->option, " is ", broken->value, ": ", broken->rule));
}

}  // namespace kernd::config
