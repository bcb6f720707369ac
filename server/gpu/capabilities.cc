#include "server/gpu/capabilities.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#ifndef KERND_CUDA_ARCHITECTURES
#define KERND_CUDA_ARCHITECTURES ""
#endif

namespace kernd::gpu {
namespace {

constexpr DataType kOperands[] = {DataType::kF16, DataType::kBF16,   DataType::kF32,   DataType::kF64,
                                  DataType::kI8,  DataType::kF8E4M3, DataType::kF8E5M2};

bool Takes(const VariantInfo& info, DataType dtype) {
  return std::find(info.dtypes.begin(), info.dtypes.end(), dtype) != info.dtypes.end();
}

template <typename Row>
std::string WhyNot(absl::Span<const Row> rows, OpKind op, DataType dtype, const DeviceInfo& device) {
  int needs = 0;  // the least that would do
  for (const Row& row : rows) {
    if (!Takes(row.info, dtype)) continue;
    if (row.min_sm <= device.sm) return "";
    needs = needs == 0 ? row.min_sm : std::min(needs, row.min_sm);
  }
  if (needs == 0) return absl::StrCat("no GPU kernel for ", std::string(Name(op)), " of ", std::string(Name(dtype)));
  return absl::StrCat("needs sm_", needs, " and this is sm_", device.sm);
}

}  // namespace

core::DeviceDescription::Tier TierOf(int sm) {
  using Tier = core::DeviceDescription::Tier;
  if (sm < 75) return Tier::kUnsupported;
  if (sm < 80) return Tier::kBasic;
  return sm == 90 ? Tier::kAdvanced : Tier::kFull;
}

std::vector<std::string> HardwareHas(int sm) {
  struct Unit {
    int since;
    const char* name;
  };
  // CUDA C++ Programming Guide, "Compute capabilities"; PTX ISA for the instructions.
  static constexpr Unit kUnits[] = {
      {70, "f16 tensor cores"}, {75, "i8 tensor cores"}, {80, "bf16 tensor cores"}, {80, "tf32 tensor cores"},
      {80, "f64 tensor cores"}, {80, "cp.async"},        {89, "f8 tensor cores"},   {90, "tma"},
      {90, "clusters"}};
  std::vector<std::string> has;
  for (const Unit& unit : kUnits) {
    if (sm >= unit.since) has.emplace_back(unit.name);
  }
  if (sm == 90) has.emplace_back("wgmma");
  if (sm >= 100 && sm < 110) has.emplace_back("tcgen05");
  return has;
}

std::string CudaVersion(int version) {
  return version <= 0 ? "" : absl::StrCat(version / 1000, ".", version % 1000 / 10);
}

std::vector<VariantInfo> VariantsFor(const DeviceInfo& device, const KernelTables& kernels) {
  std::vector<VariantInfo> variants;
  for (const MatmulVariant& row : kernels.matmul) {
    if (row.min_sm <= device.sm) variants.push_back(row.info);
  }
  for (const AttentionVariant& row : kernels.attention) {
    if (row.min_sm <= device.sm) variants.push_back(row.info);
  }
  return variants;
}

core::DeviceDescription Describe(const DeviceInfo& device, const KernelTables& kernels) {
  core::DeviceDescription out;
  out.uuid = device.uuid;
  out.name = device.name;
  out.tier = TierOf(device.sm);
  out.compute_capability = absl::StrCat(device.sm / 10, ".", device.sm % 10);
  out.processors = device.multiprocessors;
  out.memory_total = device.memory_bytes;
  out.hardware_has = HardwareHas(device.sm);
  if (device.ecc) out.hardware_has.emplace_back("ecc");
  for (const absl::string_view arch : absl::StrSplit(KERND_CUDA_ARCHITECTURES, ',', absl::SkipEmpty())) {
    out.build_has.push_back(absl::StrCat("sm_", arch));
  }
  std::set<std::string> used;
  for (const VariantInfo& variant : VariantsFor(device, kernels)) {
    // <op>_<dtype>_<smNN|lt>_<method>
    const std::vector<std::string> tokens = absl::StrSplit(variant.name, '_');
    if (tokens.size() > 3) used.insert(tokens[2] == "lt" ? "cublaslt" : absl::StrCat("sm_", tokens[2].substr(2)));
  }
  out.kernels_use.assign(used.begin(), used.end());
  out.pci = device.pci;
  out.shared_memory_per_block = device.shared_memory_optin;
  out.l2 = device.l2_bytes;
  out.driver = CudaVersion(device.driver_version);
  out.runtime = CudaVersion(device.runtime_version);
  out.ecc = device.ecc;
  return out;
}

void Add(const NvmlReading& reading, core::DeviceDescription& to) {
  to.driver_version = reading.driver_version;
  if (reading.ecc) to.ecc = reading.ecc;
  to.mig = reading.mig;
  to.sm_clock_mhz = reading.sm_clock_mhz;
  to.sm_clock_max_mhz = reading.sm_clock_max_mhz;
  to.memory_clock_mhz = reading.memory_clock_mhz;
  to.memory_clock_max_mhz = reading.memory_clock_max_mhz;
}

std::vector<core::DtypeSupport> SupportOf(const DeviceInfo& device, const KernelTables& kernels) {
  std::vector<core::DtypeSupport> rows;
  for (const DataType dtype : kOperands) {
    rows.push_back({OpKind::kMatmul, dtype, WhyNot(kernels.matmul, OpKind::kMatmul, dtype, device)});
  }
  for (const DataType dtype : kOperands) {
    rows.push_back({OpKind::kAttention, dtype, WhyNot(kernels.attention, OpKind::kAttention, dtype, device)});
  }
  return rows;
}

}  // namespace kernd::gpu
