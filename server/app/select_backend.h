// Which backend serves, as the options and the machine have it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/config/server_options.h"
#include "server/core/backend.h"

namespace kernd {

struct SelectedBackend {
  std::unique_ptr<core::Backend> backend;
  std::int64_t memory_limit = 0;      // bytes for tensors
  std::int64_t resident_limit = 0;    // of these, for tensors of sessions
  std::string kept_back;              // why `auto` did not take the GPU; empty where it did, or was not asked
  std::vector<std::string> not_used;  // one line for each GPU that does not serve, and why
  std::string tuning_file = "none";   // what became of it: "missing", "loaded", "stale", "unsafe", "damaged"
  std::string tuning_said;            // for the log, where it is not used
  bool on_gpu = false;
  TuningVersion tuning_version;  // of what is measured here
};

// `auto` takes the GPU where there is one that works, else the CPU. `cuda` is the GPU or an error:
//   NOT_FOUND            no such device, or a build without CUDA
//   FAILED_PRECONDITION  the driver is too old for this build, or there is none
//   UNIMPLEMENTED        no kernels for this device
//   RESOURCE_EXHAUSTED   the device has less memory free than the options ask for
//   INTERNAL             CUDA's words
// `on_lost` is told when the GPU is lost later.
absl::StatusOr<SelectedBackend> SelectBackend(const config::ServerOptions& options,
                                              std::function<void(const absl::Status&)> on_lost);

}  // namespace kernd
