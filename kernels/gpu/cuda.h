// CUDA's errors as statuses.
#pragma once

#include <cuda_runtime_api.h>

#include <string_view>

#include "absl/status/status.h"
#include "kernd/kernels/error.h"

namespace kernd {

// OK, or INTERNAL (KERNEL_FAILED) with the call, its arguments where they help, and CUDA's name and words for it.
// Hidden: the runtime that it asks is that of the program or shared library that the caller is in.
[[gnu::visibility("hidden")]] absl::Status CudaStatus(cudaError_t error, std::string_view call);

}  // namespace kernd

// KERND_CUDA(cudaFuncSetAttribute(f, a, bytes)): returns from the function unless the call succeeds.
#define KERND_CUDA(call) KERND_RETURN_IF_ERROR(::kernd::CudaStatus((call), #call))

// After a launch.
#define KERND_CUDA_LAUNCHED(kernel) KERND_RETURN_IF_ERROR(::kernd::CudaStatus(cudaGetLastError(), "launch of " kernel))
