// Everything that an operator can set, as values. How each is spelled, and where it may come from: options.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/config/machine_limits.h"
#include "server/config/units.h"

namespace kernd::config {

// gRPC carries a message's length in a 32-bit int, and the frame around the largest message needs room as well.
inline constexpr std::int64_t kMaxMessageBytes = (std::int64_t{1} << 31) - 65536;

// More threads than the largest machines have CPUs can only be a slip of the pen, and would be one stack and one piece
// of every workspace each. How many are worth having depends on the machine, and a configuration is to be checked on
// any: the start warns where they outnumber the CPUs.
inline constexpr int kMaxCpuThreads = 1024;

struct ListenOptions {
  std::vector<Address> grpc = {{.host = "127.0.0.1", .port = 50051}};
  std::optional<Address> http = Address{.host = "127.0.0.1", .port = 9464};  // none: no HTTP server
  std::string port_file;  // where to write the addresses bound; empty: nowhere
  std::string advertise;  // what clients of a session dial to reach this process; empty: what they dialled before
};

// Refused beyond these. In bytes, or calls.
struct LimitOptions {
  std::int64_t memory_bytes = 0;       // of the backend's tensors; DefaultOptions: half of the memory
  std::int64_t body_budget_bytes = 0;  // of request bodies in flight; DefaultOptions: a quarter of the memory
  std::int64_t default_body_bytes = std::int64_t{64} << 20;  // reserved for a call that does not declare its size
  std::int64_t max_message_bytes = std::int64_t{1} << 30;    // of one request or reply
  int max_queued_calls = 256;
  int max_concurrent_streams = 256;  // of one connection
};

// InfiniteDuration where it says off.
struct LifecycleOptions {
  absl::Duration drain_delay = absl::ZeroDuration();  // serves on after SIGTERM, no longer ready
  absl::Duration drain_timeout = absl::Seconds(30);   // then waits this long for the calls in flight
  // A client that has not sent its body, or read its reply, within this and a second for each MiB is cut off.
  absl::Duration receive_stall = absl::Seconds(30);
  absl::Duration send_stall = absl::Seconds(30);
  absl::Duration handshake_timeout = absl::Seconds(10);
  absl::Duration keepalive_time = absl::Seconds(60);  // may be off
  absl::Duration keepalive_timeout = absl::Seconds(20);
  absl::Duration max_connection_age = absl::InfiniteDuration();  // off
};

enum class BackendChoice { kAuto, kCuda, kCpu };

struct ComputeOptions {
  BackendChoice backend = BackendChoice::kAuto;
  int cpu_threads = 0;               // never 0 after DefaultOptions
  int io_threads = 0;                // never 0 after DefaultOptions
  std::vector<std::string> prewarm;  // shapes, as server/core/shape_list.h has them
  bool debug_checks = false;         // look for NaN, infinities and writes past results
  std::string tuning_file;           // of measured choices; empty: none, and nobody may tune
};

// So many bytes, or a part of something.
struct Share {
  std::int64_t bytes = 0;
  int percent = 0;  // 0: `bytes` says it

  std::int64_t Of(std::int64_t whole) const {
    return percent > 0 ? whole / 100 * percent + whole % 100 * percent / 100 : bytes;
  }
  bool operator==(const Share&) const = default;
};

struct GpuOptions {
  int device = 0;                                       // ordinal, as the driver counts
  Share memory = {.percent = 90};                       // of what is free at the start
  int executors = 4;                                    // calls that run at once
  std::int64_t pinned_bytes = std::int64_t{512} << 20;  // page-locked memory for results
};

// Tensors that clients keep in the daemon.
struct SessionOptions {
  Share resident = {.percent = 50};  // of the memory for tensors, --memory-limit or --gpu-memory
  Share quota = {.percent = 100};    // of `resident`, for one session
  int max_sessions = 1024;
  absl::Duration lease = absl::Minutes(10);         // where the client wishes none
  absl::Duration fill_timeout = absl::Seconds(60);  // of an upload, after its last chunk
};

// Memory of clients on this host.
struct SharedMemoryOptions {
  std::string socket;            // where they hand it over; empty: off
  std::int64_t limit_bytes = 0;  // of all sessions; DefaultOptions: a quarter of the memory
};

// What a client may wish a lease to be, at most.
inline constexpr absl::Duration kMaxSessionLease = absl::Hours(24);

struct LoggingOptions {
  std::string level = "info";  // debug, info, warning or error
  bool json = false;
  bool calls = true;  // one line a call
};

struct ServerOptions {
  ListenOptions listen;
  LimitOptions limits;
  LifecycleOptions lifecycle;
  ComputeOptions compute;
  GpuOptions gpu;
  SessionOptions sessions;
  SharedMemoryOptions shared_memory;
  LoggingOptions logging;
};

// The defaults on a machine that allows `machine`: what a start without flags, variables or file runs with.
ServerOptions DefaultOptions(const MachineLimits& machine);

struct BrokenRule {
  std::string option;  // "io-threads"
  std::string value;
  std::string rule;
};

// The first rule that is broken, if any.
std::optional<BrokenRule> FindBrokenRule(const ServerOptions& options);

// INVALID_ARGUMENT "--io-threads is VALUE: RULE" for it.
absl::Status Validate(const ServerOptions& options);

}  // namespace kernd::config
