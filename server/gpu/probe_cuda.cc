#include <cuda_runtime_api.h>

#include "absl/strings/str_cat.h"
#include "server/gpu/probe.h"

namespace kernd::gpu {

std::vector<std::string> Probe() {
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) {
    return {absl::StrCat("no GPU: ", cudaGetErrorString(error))};
  }
  std::vector<std::string> lines;
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties{};
    if (const cudaError_t error = cudaGetDeviceProperties(&properties, i); error != cudaSuccess) {
      lines.push_back(absl::StrCat("GPU ", i, ": ", cudaGetErrorString(error)));
      continue;
    }
    lines.push_back(absl::StrCat("GPU ", i, ", ", properties.name, " (sm_", properties.major, properties.minor,
                                 "): this version has no CUDA backend"));
  }
  if (lines.empty()) lines.push_back("no GPU: the driver reports none");
  return lines;
}

}  // namespace kernd::gpu
