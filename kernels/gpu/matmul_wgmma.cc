#include "kernels/gpu/matmul_wgmma.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernd/kernels/error.h"
#include "kernels/gpu/matmul_lt_cost.h"
#include "kernels/gpu/matmul_passes.h"
#include "kernels/gpu/tensor_map.h"
#include "kernels/gpu/variants.h"

namespace kernd {
namespace gpu {
namespace {

// Clusters below one another that run together: with 132 blocks, as many rows as columns.
constexpr std::int64_t kGroup = 8;

static_assert(kMostWgmmaStride == kMaxTensorStride);

std::int64_t CeilDivide(std::int64_t x, std::int64_t by) {
  return x / by + (x % by != 0);
}

template <int kIndex>
std::string WhyNot(const MatmulProblem& p, const MatmulGeometry& g, const DeviceInfo& device) {
  if (device.sm != 90) {
    return absl::StrCat("is for SM 9.0 alone, and this device is ", device.sm / 10, ".", device.sm % 10);
  }
  if (std::max({g.m, g.n, g.k}) > kMostWgmmaElements) {
    return absl::StrCat("takes dimensions up to ", kMostWgmmaElements);
  }
  const auto bytes = static_cast<std::int64_t>(WgmmaMatmulKernelOf<DataType::kF16, kIndex>({}).shared_bytes);
  if (bytes > device.shared_memory_optin) {
    return absl::StrCat("needs ", bytes, " bytes of shared memory, and a block here gets ", device.shared_memory_optin);
  }
  if (g.d.elements() == 0 || HasNoProduct(p, g)) return "";
  if (WgmmaPlanOf(kWgmmaTile[kIndex], p, g, device).workspace_bytes < 0) return "has copies or sums past 2^63 bytes";
  return "";
}

template <int kIndex>
std::int64_t WorkspaceBytes(const MatmulProblem& p, const MatmulGeometry& g, const DeviceInfo& device) {
  if (g.d.elements() == 0 || HasNoProduct(p, g)) return 0;
  return WgmmaPlanOf(kWgmmaTile[kIndex], p, g, device).workspace_bytes;
}

// Waves of tiles, or the memory if that is longer, and passes before and after. Of the tensor cores' rate, 77 % were
// measured, 60 % where a tile has 128 columns, and 85 % of the memory's; the pass that adds parts of K took 11 us more
// than its bytes do; narrow tiles count as whole ones. A problem that is to be batch-invariant goes by N in the place
// of M and by nothing else that rows or the batch decide, and comes before all rows of other methods.
template <int kIndex>
double Estimate(const MatmulProblem& p, const MatmulGeometry& g, const DeviceInfo& device) {
  constexpr MmaTile kTile = kWgmmaTile[kIndex];
  constexpr double kLaunch = 7, kPass = 3, kAdd = 11, kFmasPerClock = 2048 * (kTile.n == 256 ? 0.77 : 0.6),
                   kTileClocks = 2500;
  const bool invariant = p.numerics == Numerics::kBatchInvariant;
  if (g.d.elements() == 0 || HasNoProduct(p, g)) return invariant ? 0 : kLaunch;
  const std::int64_t m = invariant ? g.n : g.m;
  const double batch = invariant ? 1 : static_cast<double>(g.batch);
  const WgmmaPlan plan = WgmmaPlanOf(kTile, p, g, device);
  const auto splits = static_cast<double>(plan.splits.splits);
  const auto tiles = [](std::int64_t size, int tile) { return static_cast<double>(CeilDivide(size, tile)); };
  const double waves = std::ceil(batch * tiles(m, kTile.m) * tiles(g.n, kTile.n) * splits / device.multiprocessors);
  const double fmas = tiles(plan.splits.k_per_split, kTile.k) * (kTile.m * kTile.n * kTile.k);
  const double compute = waves * (fmas / kFmasPerClock + kTileClocks) / (device.clock_khz * 1e-3);
  const double results = batch * static_cast<double>(m) * static_cast<double>(g.n);
  const double bytes = batch * static_cast<double>(g.k) * static_cast<double>(m + g.n) * 2 +
                       results * static_cast<double>(ElementBytes(g.output_dtype));
  const double passes =
      2 * static_cast<double>(plan.a.bytes + plan.b.bytes) + (plan.sums.needed ? results * 8 * splits : 0);
  const double per_microsecond = static_cast<double>(device.memory_bytes_per_second) * 0.85e-6;
  if (invariant) return compute / (1 + compute);  // below the 1 of the first of matmul_mma.cc
  return kLaunch + kPass * (plan.a.packed + plan.b.packed) + (splits > 1 ? kAdd : kPass * plan.sums.needed) +
         std::max(compute, bytes / per_microsecond) + PassMicroseconds(device, passes);
}

template <DataType kType, int kIndex>
absl::Status Load(const DeviceInfo& device) {
  if (device.sm != 90) return absl::OkStatus();  // there is no code for it, and it takes no problem
  for (const bool a : {false, true}) {
    for (const bool b : {false, true}) {
      const WgmmaLayout layout{.a_along_k = a, .b_along_k = b};
      KERND_RETURN_IF_ERROR((WgmmaMatmulKernelOf<kType, kIndex>(layout).load()));
    }
  }
  return LoadMatmulPasses();
}

template <DataType kType, int kIndex>
absl::Status Launch(const MatmulProblem& p, const MatmulGeometry& g, const DeviceInfo& device, const MatmulArgs& args,
                    void* workspace, Stream stream) {
  if (g.d.elements() == 0) return absl::OkStatus();
  if (HasNoProduct(p, g)) return EnqueueFinish(MatmulEpilogueOf(p, g, args), {}, stream);
  return LaunchWgmmaMatmul(WgmmaMatmulKernelOf<kType, kIndex>, p, g, device, args, workspace, kGroup, stream);
}

// The operand as copies see it, packed into `copy` if need be. `rows`: of a tile.
absl::Status Place(const WgmmaOperandPlan& o, DataType type, const void* data, std::int64_t source_ld, void* copy,
                   unsigned rows, WgmmaOperand& operand, Stream stream) {
  if (o.packed) {
    KERND_RETURN_IF_ERROR(EnqueuePack({.from = data,
                                       .type = type,
                                       .to_type = type,
                                       .k_contiguous = true,  // K: of lines, whichever way they lie
                                       .rows = o.lines,
                                       .k = o.line,
                                       .ld = source_ld,
                                       .items = o.items,
                                       .batch = o.source,
                                       .to = copy,
                                       .to_rows = o.lines,
                                       .to_k = o.ld},
                                      stream));
  }
  operand.item_of = o.item_of;
  return MakeTensorMap({.type = type,
                        .address = o.packed ? copy : data,
                        .sizes = {o.line, o.lines, o.items, 1},
                        .strides = {o.ld, o.item_stride, 0},
                        .box = {64, o.along_k ? rows : 64, 1, 1}},
                       operand.map);
}

template <DataType kType, int kIndex>
MatmulVariant Row() {
  constexpr MmaTile kTile = kWgmmaTile[kIndex];
  const Tile tile{kTile.m, kTile.n, kTile.k};
  return {.info = {.name = absl::StrCat("matmul_", std::string(Token(kType)), "_sm90_wgmma_", TileText(tile)),
                   .op = OpKind::kMatmul,
                   .dtypes = {kType},
                   .tile = tile,
                   .method = "Hopper's tensor cores (wgmma), bulk copies, warps in roles; crooked operands packed "
                             "before; batch-invariant if asked",
                   .limits = "SM 9.0 alone"},
          .min_sm = 90,
          .why_not = WhyNot<kIndex>,
          .estimate = Estimate<kIndex>,
          .workspace_bytes = WorkspaceBytes<kIndex>,
          .load = Load<kType, kIndex>,
          .launch = Launch<kType, kIndex>};
}

}  // namespace

absl::Status LaunchWgmmaMatmul(WgmmaMatmulKernels kernels, const MatmulProblem& p, const MatmulGeometry& g,
                               const DeviceInfo& device, const MatmulArgs& args, void* workspace, std::int64_t group,
                               Stream stream) {
  const MmaTile tile = kernels({}).tile;
  const WgmmaPlan plan = WgmmaPlanOf(tile, p, g, device);
  const WgmmaMatmulKernel kernel = kernels({.a_along_k = plan.a.along_k, .b_along_k = plan.b.along_k});
  auto* const base = static_cast<std::byte*>(workspace);
  WgmmaMatmul problem{.k = g.k,
                      .k_per_split = plan.splits.k_per_split,
                      .splits = plan.splits.splits,
                      .tiles_m = CeilDivide(g.m, tile.m),
                      .tiles_n = CeilDivide(g.n, tile.n),
                      .narrow = kernel.narrow && EndsNarrow(tile, g.n),
                      .group = group,
                      .sums = !plan.sums.needed ? nullptr
                              : plan.sums.in_d  ? args.d
                                                : base + plan.sums_at,
                      .epilogue = MatmulEpilogueOf(p, g, args)};
  KERND_RETURN_IF_ERROR(
      Place(plan.a, p.a.dtype, args.a, g.lda, base + plan.a_at, static_cast<unsigned>(tile.m), problem.a, stream));
  KERND_RETURN_IF_ERROR(Place(plan.b, p.b.dtype, args.b, g.ldb, base + plan.b_at,
                              static_cast<unsigned>(tile.n) / kernel.cluster, problem.b, stream));
  const auto cluster = static_cast<std::int64_t>(kernel.cluster);
  const auto all = CheckedProduct({CeilDivide(problem.tiles_m, cluster), problem.tiles_n, plan.splits.splits, g.batch});
  const std::int64_t clusters = std::min(all.value_or(INT64_MAX), device.multiprocessors / cluster);
  KERND_RETURN_IF_ERROR(kernel.launch(problem, static_cast<unsigned>(clusters * cluster), stream));
  if (problem.sums == nullptr) return absl::OkStatus();
  return EnqueueFinish(problem.epilogue,
                       {.data = problem.sums, .type = DataType::kF32, .ld = g.n, .parts = plan.splits.splits}, stream);
}

}  // namespace gpu

absl::Span<const MatmulVariant> MatmulWgmmaVariants() {
  static const auto& rows =
      *new std::vector<MatmulVariant>{gpu::Row<DataType::kF16, 0>(), gpu::Row<DataType::kF16, 1>(),
                                      gpu::Row<DataType::kBF16, 0>(), gpu::Row<DataType::kBF16, 1>()};
  return rows;
}

}  // namespace kernd
