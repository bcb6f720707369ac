// What kernctl doctor knows: plain values, so that its checks can be fed machines that were made up.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "client/cli/net/socket.h"
#include "kernd/client/device.h"

namespace kernd::cli::doctor {

// Whoever takes the connection, by what it says to an HTTP/2 client.
enum class Speaks { kNothing, kHttp2, kHttp1, kTls, kOther };

struct EndpointFacts {
  std::string text;  // as given
  Target target;
  bool local = false;  // on this machine
  Failure failure;     // to connect
  absl::Duration connect_time;
  Speaks speaks = Speaks::kNothing;
  std::string words;   // the first of what kOther said
  bool proxy = false;  // an HTTP proxy of the environment stands between
};

// An answer of the daemon, or why there is none.
template <typename T>
struct Answer {
  std::optional<T> value;
  std::string error;  // "CODE: message"; empty with no value: not asked
};

struct CallFacts {
  std::string kernel, device;
  double client_us = 0, server_us = 0;
  bool right = false;  // the result is what it must be
};

// What the daemon's HTTP port says.
struct HttpFacts {
  std::string address;
  Failure failure;
  int code = 0;            // of /status.json
  bool is_kernd = false;   // it is the status of a kernd
  std::string state, why;  // "ready", ...
  std::string version;
  std::vector<std::string> options_not_used;  // lines: which ones have no effect, and why
  std::optional<absl::Duration> clock_ahead;  // the daemon's clock less ours
  absl::Duration uncertainty;                 // of that: half the time of the exchange
};

struct DaemonFacts {
  EndpointFacts endpoint;
  Answer<client::HealthStatus> health;
  Answer<client::Capabilities> capabilities;
  Answer<CallFacts> call;
  HttpFacts http;
};

struct Limit {
  std::uint64_t soft = 0, hard = 0;  // kUnlimited for none
};
inline constexpr std::uint64_t kUnlimited = ~std::uint64_t{0};

struct MachineFacts {
  std::string host;                      // empty: not to be told
  std::string os, kernel, architecture;  // "Debian GNU/Linux 12 (bookworm)", "6.1.0", "x86_64"
  std::string container;                 // "docker", "kubernetes", ...; empty: none
  int cpus = 0;                          // that this process may use
  double cpu_quota = 0;                  // of its cgroup, in CPUs; 0: none
  std::int64_t memory_bytes = 0, memory_available_bytes = 0;
  std::int64_t memory_limit_bytes = 0;  // of its cgroup; 0: none
  std::string limits_of;                // "kernd (process 123)" where one runs here, else "this shell"
  Limit open_files, locked_memory;
  bool shm = false, shm_writable = false;  // /dev/shm
  std::int64_t shm_bytes = 0, shm_free_bytes = 0;
  std::optional<bool> clock_synchronised;  // as the kernel believes
};

struct DeviceNode {
  std::string path;
  std::string owner;  // "root:video 0660"
  bool usable = false;
};

// Of one GPU, as NVML tells.
struct GpuCard {
  std::string name;
  std::int64_t memory_bytes = 0, memory_used_bytes = 0;
};

struct GpuFacts {
  int on_bus = 0;                 // NVIDIA's GPUs on the PCI bus
  std::string module;             // version of the loaded kernel module, from /proc/driver/nvidia/version; empty: none
  bool nouveau = false;           // the free driver has them
  std::vector<DeviceNode> nodes;  // /dev/nvidia*
  std::string libcuda_error;      // empty: found
  int cuda_version = 0;           // the newest that the driver knows, 12040 for 12.4; 0: not known
  std::string nvml_error;         // empty: found, and well
  std::string driver;             // version of the user-space part
  std::vector<GpuCard> cards;
};

// Whether there is any sign of one.
inline bool HasGpu(const GpuFacts& gpu) {
  return gpu.on_bus > 0 || !gpu.cards.empty() || !gpu.nodes.empty() || !gpu.module.empty();
}

struct Facts {
  absl::Time now;
  std::string kernctl_version;
  std::string toolkit;  // that this kernctl was built with, "13.0.48" or "none"
  MachineFacts machine;
  GpuFacts gpu;
  DaemonFacts daemon;
};

}  // namespace kernd::cli::doctor
