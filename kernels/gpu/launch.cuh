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

// `name` is for the message. INTERNAL: CUDA refused.
template <typename... Parameters>
absl::Status LaunchKernel(const char* name, void (*kernel)(Parameters...), unsigned blocks, unsigned threads,
                          std::size_t shared_bytes, Stream stream,
                          const std::type_identity_t<Parameters>&... arguments) {
#ifdef KERND_EMULATOR
  static_cast<void>(stream);
  emulator::Run(name, {.x = std::min(blocks, emulator::most_blocks)}, {.x = threads}, shared_bytes,
                [&] { kernel(arguments...); });
  return absl::OkStatus();
#else
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = threads;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  return CudaStatus(cudaLaunchKernelEx(&config, kernel, arguments...), std::string("launch of ") + name);
#endif
}

// Raises the kernel's limit of dynamic shared memory on the current device.
template <typename Kernel>
absl::Status AllowSharedMemory(Kernel* kernel, std::size_t bytes) {
  KERND_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
  return absl::OkStatus();
}

}  // namespace kernd::gpu
