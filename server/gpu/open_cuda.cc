#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernd/kernels/error.h"
#include "kernels/gpu/cuda.h"
#include "server/gpu/cuda_driver.h"
#include "server/gpu/open.h"

namespace kernd::gpu {
namespace {

constexpr int kOldestSm = 75;  // what CUDA 13 can build for

std::string UuidText(const cudaUUID_t& uuid) {
  const auto* b = reinterpret_cast<const unsigned char*>(uuid.bytes);
  char text[48];
  std::snprintf(text, sizeof(text), "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0],
                b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
  return text;
}

absl::StatusOr<int> Attribute(cudaDeviceAttr attribute, int ordinal) {
  int value = 0;
  KERND_CUDA(cudaDeviceGetAttribute(&value, attribute, ordinal));
  return value;
}

absl::StatusOr<DeviceInfo> ReadDevice(int ordinal) {
  cudaDeviceProp p{};
  KERND_CUDA(cudaGetDeviceProperties(&p, ordinal));
  DeviceInfo info;
  info.ordinal = ordinal;
  info.uuid = UuidText(p.uuid);
  info.name = p.name;
  char pci[32] = "";
  KERND_CUDA(cudaDeviceGetPCIBusId(pci, sizeof(pci), ordinal));
  info.pci = pci;
  info.sm = p.major * 10 + p.minor;
  info.multiprocessors = p.multiProcessorCount;
  info.shared_memory_optin = static_cast<std::int64_t>(p.sharedMemPerBlockOptin);
  info.l2_bytes = p.l2CacheSize;
  info.memory_bytes = static_cast<std::int64_t>(p.totalGlobalMem);
  KERND_ASSIGN_OR_RETURN(info.clock_khz, Attribute(cudaDevAttrClockRate, ordinal));
  KERND_ASSIGN_OR_RETURN(const int memory_khz, Attribute(cudaDevAttrMemoryClockRate, ordinal));
  // Where the driver does not say, a number that estimates can divide by.
  constexpr std::int64_t kSlowest = 100'000'000'000;
  info.memory_bytes_per_second = std::max(std::int64_t{2} * memory_khz * 1000 * (p.memoryBusWidth / 8), kSlowest);
  info.ecc = p.ECCEnabled != 0;
  info.integrated = p.integrated != 0;
  KERND_CUDA(cudaDriverGetVersion(&info.driver_version));
  KERND_CUDA(cudaRuntimeGetVersion(&info.runtime_version));
  info.cublaslt_version = CublasLtVersion();
  return info;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Driver>> OpenDevice(int ordinal) {
  // Not "EAGER", which takes two seconds for what cuBLASLt has and nobody asks for: a variant's Load brings its own.
  setenv("CUDA_MODULE_LOADING", "LAZY", /*overwrite=*/0);
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorInsufficientDriver) {
    int driver = 0, runtime = 0;
    (void)cudaDriverGetVersion(&driver);
    (void)cudaRuntimeGetVersion(&runtime);
    return absl::FailedPreconditionError(driver == 0 ? std::string("no NVIDIA driver is loaded")
                                                     : absl::StrCat("the NVIDIA driver is for CUDA ",
                                                                    CudaVersion(driver), " and this build needs ",
                                                                    CudaVersion(runtime), ": install a newer driver"));
  }
  if (error == cudaErrorNoDevice || (error == cudaSuccess && count == 0)) {
    return absl::NotFoundError("the driver sees no GPU");
  }
  KERND_RETURN_IF_ERROR(CudaStatus(error, "cudaGetDeviceCount"));
  if (ordinal < 0 || ordinal >= count) {
    return absl::NotFoundError(absl::StrCat("there is no GPU ", ordinal, ": the driver sees ", count));
  }
  KERND_CUDA(cudaSetDevice(ordinal));
  KERND_ASSIGN_OR_RETURN(DeviceInfo device, ReadDevice(ordinal));
  if (device.sm < kOldestSm) {
    return absl::UnimplementedError(
        absl::StrCat(device.name, " is sm_", device.sm, ": this build has kernels from sm_", kOldestSm, " on"));
  }
  return MakeCudaDriver(std::move(device));
}

KernelTables BuiltKernels() {
  return {.attention = AttentionVariants(), .matmul = MatmulVariants(), .scan = EnqueueScan};
}

std::vector<std::string> ListDevices() {
  std::vector<std::string> lines;
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) return lines;
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties{};
    if (cudaGetDeviceProperties(&properties, i) != cudaSuccess) continue;
    lines.push_back(absl::StrCat("GPU ", i, ", ", properties.name, " (sm_", properties.major, properties.minor, ")"));
  }
  return lines;
}

}  // namespace kernd::gpu
