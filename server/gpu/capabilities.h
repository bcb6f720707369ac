// What a device can do, in three separate answers: what the hardware has, what this build has code for, and what the
// kernels use of both. Pure functions of what was read from the device.
#pragma once

#include <string>
#include <vector>

#include "kernd/kernels/gpu.h"
#include "server/core/backend.h"
#include "server/gpu/checks.h"
#include "server/gpu/nvml.h"

namespace kernd::gpu {

core::DeviceDescription::Tier TierOf(int sm);

// The units that matter to these kernels, of a compute capability: "tensor cores f16", "fp8", "tma", ...
std::vector<std::string> HardwareHas(int sm);

struct KernelTables {
  absl::Span<const AttentionVariant> attention;
  absl::Span<const MatmulVariant> matmul;
  Scan scan = nullptr;  // for --debug-checks
};

core::DeviceDescription Describe(const DeviceInfo& device, const KernelTables& kernels);

// What NVML says takes precedence over what CUDA does.
void Add(const NvmlReading& reading, core::DeviceDescription& to);

// The variants that run on the device.
std::vector<VariantInfo> VariantsFor(const DeviceInfo& device, const KernelTables& kernels);

// Each operation and operand type: supported, or why not.
std::vector<core::DtypeSupport> SupportOf(const DeviceInfo& device, const KernelTables& kernels);

// 13000 is "13.0".
std::string CudaVersion(int version);

}  // namespace kernd::gpu
