#include "kernels/gpu/cuda.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace kernd {

absl::Status CudaStatus(cudaError_t error, std::string_view call) {
  if (error == cudaSuccess) return absl::OkStatus();
  (void)cudaGetLastError();  // said once: the next good call must not report it again
  return WithDetail(
      absl::InternalError(
          absl::StrCat(std::string(call), ": ", cudaGetErrorName(error), " (", cudaGetErrorString(error), ")")),
      {.reason = std::string(reason::kKernelFailed), .metadata = {{"cuda_error", cudaGetErrorName(error)}}});
}

}  // namespace kernd
