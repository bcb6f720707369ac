#include "server/cpu/facts.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/cpu/attention.h"
#include "server/cpu/isa.h"
#include "server/cpu/matmul.h"
#include "server/cpu/onednn.h"

namespace kernd::cpu {
namespace {

// The value of a line of /proc/cpuinfo; empty where it has none.
std::string CpuInfo(std::string_view key) {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with(key) && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "";
}

// Of the features that matter to these kernels and to oneDNN, those that this machine has.
std::vector<std::string> CpuFeatures() {
  std::istringstream flags(CpuInfo("flags") + " " + CpuInfo("Features"));  // x86, arm64
  std::vector<std::string> found;
  for (std::string flag; flags >> flag;) {
    for (const std::string_view known :
         {"sse4_2", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "avx512_fp16",
          "amx_tile", "amx_bf16", "amx_int8", "asimd", "sve"}) {
      if (flag == known) found.push_back(flag);
    }
  }
  return found;
}

}  // namespace

core::DeviceDescription Describe(int threads, std::int64_t memory_total) {
  core::DeviceDescription device;
  device.uuid = std::string(kDeviceId);
  device.name = CpuInfo("model name");
  device.tier = core::DeviceDescription::Tier::kCpu;
  device.processors = threads;
  device.memory_total = memory_total;
  device.hardware_has = CpuFeatures();
  for (const Isa isa : AvailableIsas()) device.build_has.emplace_back(Name(isa));
  device.kernels_use = {std::string(Name(BestIsa()))};
  return device;
}

std::vector<VariantInfo> Variants() {
  std::vector<VariantInfo> variants = MatmulVariants();
  for (VariantInfo& variant : AttentionVariants()) variants.push_back(std::move(variant));
  return variants;
}

std::vector<core::DtypeSupport> Support() {
  constexpr DataType kOperands[] = {DataType::kF16, DataType::kBF16,   DataType::kF32,   DataType::kF64,
                                    DataType::kI8,  DataType::kF8E4M3, DataType::kF8E5M2};
  std::vector<core::DtypeSupport> rows;
  for (const OpKind op : {OpKind::kMatmul, OpKind::kAttention}) {
    for (const DataType dtype : kOperands) {
      bool found = false;
      for (const VariantInfo& variant : Variants()) {
        found = found || (variant.op == op &&
                          std::find(variant.dtypes.begin(), variant.dtypes.end(), dtype) != variant.dtypes.end());
      }
      rows.push_back(
          {op, dtype, found ? "" : absl::StrCat(std::string(Name(op)), " has no rule for ", std::string(Name(dtype)))});
    }
  }
  return rows;
}

TuningVersion VersionOf(int threads, std::string_view build) {
  const std::string model = CpuInfo("model name");
  return Printable({.device = absl::StrCat(model.empty() ? "cpu" : model, ", ", std::string(Name(BestIsa()))),
                    .processors = threads,
                    .kernel_library = onednn::Version(),
                    .build = std::string(build)});
}

}  // namespace kernd::cpu
