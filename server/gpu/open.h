// The GPUs of this machine, and the way to one.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/gpu/capabilities.h"
#include "server/gpu/driver.h"

namespace kernd::gpu {

// The device of this ordinal, with a context of this process.
//   FAILED_PRECONDITION  no driver, or one too old for the toolkit of this build
//   NOT_FOUND            no such device, or a build without CUDA
//   UNIMPLEMENTED        the device is older than any kernel of this build
//   INTERNAL             CUDA's words
absl::StatusOr<std::unique_ptr<Driver>> OpenDevice(int ordinal);

// Every kernel of this build; none without CUDA.
KernelTables BuiltKernels();

// "GPU 0, NVIDIA H200 (sm_90)" for each device that the driver sees. Creates no context.
std::vector<std::string> ListDevices();

}  // namespace kernd::gpu
