// What /status.json answers. README.md describes the schema.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/telemetry/call_history.h"
#include "server/telemetry/metrics.h"

namespace kernd::telemetry {

struct DeviceStatus {
  std::string uuid, name, tier;
  std::string compute_capability, pci, driver, runtime;  // GPU only
  std::int64_t processors = 0;
  std::int64_t memory_bytes = 0;
  std::vector<std::string> hardware_has, build_has, kernels_use;
};

struct KernelStatus {
  std::string name, operation, how;
};

// What does not change while the daemon lives.
struct DaemonFacts {
  BuildLabels build;
  std::vector<DeviceStatus> devices;          // those that serve
  std::vector<std::string> devices_not_used;  // a line for each of the others, and why
  std::vector<std::string> options_not_used;  // a line for each reason why some that were set have no effect
  std::vector<KernelStatus> kernels;
};

// How the daemon is at one moment.
struct DaemonState {
  std::string name;  // "starting", "ready", "draining", "lost"
  std::string why;   // of every one but "ready"
  Gauges gauges;
};

// ASCII, whatever clients sent: their texts are printable (printable.h) and clipped at kMaxStatusTextBytes.
inline constexpr std::size_t kMaxStatusTextBytes = 512;
std::string StatusJson(const DaemonFacts& facts, const DaemonState& state, const Metrics& metrics,
                       const RecentCalls& recent);

}  // namespace kernd::telemetry
