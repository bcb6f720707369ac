// The GPU behind core's seam: one device, a pool of its memory, and a few executors.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/core/backend.h"
#include "server/gpu/capabilities.h"
#include "server/gpu/driver.h"

namespace kernd::gpu {

struct BackendOptions {
  int executors = 4;                                    // calls that run at once
  std::int64_t memory_limit = 0;                        // bytes of the device, for calls and resident tensors
  std::int64_t resident_limit = 0;                      // of these, what resident tensors may take
  std::int64_t primed_bytes = std::int64_t{1} << 30;    // of these, taken at the start
  std::int64_t pinned_bytes = std::int64_t{512} << 20;  // page-locked memory for results
  std::int64_t chunk_bytes = std::int64_t{2} << 20;     // of an executor's staging; it has three
  absl::Duration spin = absl::Microseconds(200);        // see ExecutorEnvironment
  bool debug_checks = false;                            // scan tensors, guard results
  std::string nvml_library = "libnvidia-ml.so.1";       // opened if it is there
  // Told once, from any thread, when the device is lost to this process: nothing can be computed any more.
  std::function<void(const absl::Status&)> on_lost = [](const absl::Status&) {};
};

// Takes the memory and makes the executors; the kernels are loaded by Prewarm.
//   INTERNAL            CUDA's words
//   RESOURCE_EXHAUSTED  the device has less memory than is to be primed
absl::StatusOr<std::unique_ptr<core::Backend>> MakeBackend(std::shared_ptr<Driver> driver, const KernelTables& kernels,
                                                           const BackendOptions& options);

}  // namespace kernd::gpu
