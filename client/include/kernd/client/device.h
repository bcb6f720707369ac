// What the daemon runs on and with.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernd/client/kernel.h"
#include "kernd/client/tensor.h"

namespace kernd::client {

enum class Tier : std::uint8_t { kUnspecified = 0, kUnsupported = 1, kBasic = 2, kFull = 3, kAdvanced = 4, kCpu = 5 };

// "BASIC", ...
std::string_view Name(Tier tier);

// Three separate answers: what the hardware has, what this build has code for, what the kernels use.
struct DeviceInfo {
  std::string uuid;  // or "cpu"
  std::string name;
  Tier tier = Tier::kUnspecified;
  std::string compute_capability;  // GPU only: "9.0"
  std::int32_t processors = 0;     // multiprocessors of a GPU, threads of a CPU
  std::int64_t memory_total_bytes = 0;
  std::int64_t memory_limit_bytes = 0;     // most that calls may hold together
  std::int64_t memory_reserved_bytes = 0;  // of that, held now
  std::vector<std::string> hardware_has, build_has, kernels_use;
  std::string pci_bus_id;
  std::int64_t shared_memory_per_block_bytes = 0;
  std::int64_t l2_bytes = 0;
  std::string driver, runtime;   // CUDA versions
  std::string driver_version;    // the driver's own; empty: not known
  std::optional<bool> ecc, mig;  // absent: not known, as below
  std::optional<std::int32_t> sm_clock_mhz, sm_clock_max_mhz, memory_clock_mhz, memory_clock_max_mhz;
};

struct OperationSupport {
  std::string operation;  // "matmul" or "attention"
  DataType dtype = DataType::kUnspecified;
  bool supported = false;
  std::string reason;  // where not supported: why
};

struct Capabilities {
  std::string version, revision, compiler, cuda_toolkit;
  std::string backend;             // "cuda" or "cpu"
  std::uint64_t server_epoch = 0;  // differs after each start
  std::vector<DeviceInfo> devices;
  std::vector<OperationSupport> operations;
  std::int64_t max_message_bytes = 0;
  std::int64_t max_queued_calls = 0;
  std::int64_t memory_limit_bytes = 0;
  std::string shared_memory_socket;   // where clients on its host hand over memory; empty: off
  std::vector<std::string> not_used;  // why not: a line for each GPU or driver that was found and is not used
};

struct KernelInfo {
  std::string name;
  std::string operation;  // "matmul", "attention" or "merge"
  std::vector<DataType> dtypes;
  std::optional<Tile> tile;
  std::string device;
  std::string method;  // how it works
  std::string limits;  // what it does not take; empty: nothing
};

enum class HealthStatus : std::uint8_t { kUnknown = 0, kServing = 1, kNotServing = 2 };

// "SERVING", ...
std::string_view Name(HealthStatus status);

}  // namespace kernd::client
