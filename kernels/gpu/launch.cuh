// Launches of kernels, on a device or in the emulator.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <type_traits>

#include "absl/status/status.h"
#include "kernd/kernels/gpu.h"
#include "kernels/gpu/cuda.h"

namespace kernd::gpu {

// `name` is for the message. `cluster`: blocks that run together, from SM 9.0 on, and divide `blocks`. INTERNAL: CUDA
// refused.
template <typename... Parameters>
absl::Status LaunchClusters(const char* name, void (*kernel)(Parameters...), unsigned cluster, unsigned blocks,
                            unsigned threads, std::size_t shared_bytes, Stream stream,
                            const std::type_identity_t<Parameters>&... arguments) {
#ifdef KERND_EMULATOR
  static_cast<void>(stream);
  const unsigned most = std::max(emulator::most_blocks / cluster, 1u) * cluster;
  emulator::Run(
      name, {.x = std::min(blocks, most)}, {.x = threads}, shared_bytes, [&] { kernel(arguments...); }, cluster);
  return absl::OkStatus();
#else
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = threads;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {cluster, 1, 1};
  config.attrs = &attribute;
  config.numAttrs = cluster > 1 ? 1 : 0;
  return CudaStatus(cudaLaunchKernelEx(&config, kernel, arguments...), std::string("launch of ") + name);
#endif
}

template <typename... Parameters>
absl::Status LaunchKernel(const char* name, void (*kernel)(Parameters...), unsigned blocks, unsigned threads,
                          std::size_t shared_bytes, Stream stream,
                          const std::type_identity_t<Parameters>&... arguments) {
  return LaunchClusters(name, kernel, 1, blocks, threads, shared_bytes, stream, arguments...);
}

// Raises the kernel's limit of dynamic shared memory on the current device.
template <typename Kernel>
absl::Status AllowSharedMemory(Kernel* kernel, std::size_t bytes) {
  KERND_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
  return absl::OkStatus();
}

}  // namespace kernd::gpu
