// What the CPU is, and what its kernels can do: for reports.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "kernd/kernels/tuning.h"
#include "server/core/backend.h"

namespace kernd::cpu {

inline constexpr std::string_view kDeviceId = "cpu";

// `threads` that kernels may use; `memory_total` in bytes.
core::DeviceDescription Describe(int threads, std::int64_t memory_total);
std::vector<VariantInfo> Variants();
// Of every operation, each type that operands may have.
std::vector<core::DtypeSupport> Support();
// Of what is measured here.
TuningVersion VersionOf(int threads, std::string_view build);

}  // namespace kernd::cpu
