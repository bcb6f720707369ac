#include "kernels/gpu/matmul_mma.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernd/kernels/error.h"
#include "kernels/gpu/matmul_passes.h"
#include "kernels/gpu/variants.h"

namespace kernd {
namespace {

using gpu::MmaLayout;
using gpu::MmaMatmulKernel;
using gpu::MmaMatmulKernelOf;
using gpu::MmaOperand;
using gpu::MmaProblem;

// A kernel that no GPU has run yet is had by name or tile alone: what is known to be right keeps the calls.
constexpr bool kHasRun = false;

template <MmaPath kPath, int kIndex>
std::string WhyNot(const MatmulProblem& p, const MatmulGeometry& g, const DeviceInfo& device) {
  constexpr const MmaTile& kTile = kMmaTile[kIndex];
  if (kPath == MmaPath::kTf32Sm80 && p.numerics != Numerics::kTf32) return "rounds F32 to TF32: numerics must be TF32";
  if (HasBlockScales(p)) return "takes scales of tensors and rows, not of blocks";
  if (StagesFor(kPath, kTile, device) == 0) {
    return absl::StrCat("needs ", SharedBytes(kPath, kTile, 2), " bytes of shared memory, and a block here gets ",
                        device.shared_memory_optin);
  }
  if (SumsFor(p, g, SplitsFor(kTile, p, g, device)).workspace_bytes < 0) return "has sums past 2^63 bytes";
  return "";
}

// Half of what the tensor cores do, or the memory, and a quarter more for each place behind the tile that the fixed
// rule chooses. Guesses, not measured yet.
template <MmaPath kPath, int kIndex>
double Estimate(const MatmulProblem& p, const MatmulGeometry& g, const DeviceInfo& device) {
  constexpr double kLaunch = 7;  // microseconds
  constexpr int kElement = ElementBytes(DataTypeOf(kPath));
  // Multiply-adds of a multiprocessor in a clock.
  const double rate =
      (device.sm >= 80 && IsAsync(kPath) ? 512.0 : 256.0) * 2 / kElement * (device.sm >= 90 ? 1.5 : 1.0);
  const double m = static_cast<double>(g.m), n = static_cast<double>(g.n), batch = static_cast<double>(g.batch);
  const double k = HasNoProduct(p, g) ? 0 : static_cast<double>(g.k);
  const double compute = batch * m * n * k / (rate * device.multiprocessors * (device.clock_khz * 1e-3));
  const double bytes = batch * ((m + n) * k * kElement + m * n * ElementBytes(g.output_dtype));
  const double memory = bytes / (static_cast<double>(device.memory_bytes_per_second) * 0.85) * 1e6;
  return (kLaunch + std::max(compute, memory)) * (1 + 0.25 * PlaceInRule(kIndex, p, g));
}

template <int kIndex>
std::int64_t WorkspaceBytes(const MatmulProblem& p, const MatmulGeometry& g, const DeviceInfo& device) {
  return SumsFor(p, g, SplitsFor(kMmaTile[kIndex], p, g, device)).workspace_bytes;
}

// The layouts of which a path has kernels of their own.
std::vector<MmaLayout> AllLayouts() {
  std::vector<MmaLayout> all;
  for (const bool aligned : {false, true}) {
    for (const bool a : {false, true}) {
      for (const bool b : {false, true}) all.push_back({.a_along_k = a, .b_along_k = b, .aligned = aligned});
    }
  }
  return all;
}

template <MmaPath kPath, int kIndex>
absl::Status Load(const DeviceInfo& device) {
  const int stages = StagesFor(kPath, kMmaTile[kIndex], device);
  if (stages == 0) return absl::OkStatus();
  for (const MmaLayout& layout : AllLayouts()) {
    KERND_RETURN_IF_ERROR(MmaMatmulKernelOf<kPath>(kIndex, layout).load(SharedBytes(kPath, kMmaTile[kIndex], stages)));
  }
  return LoadMatmulPasses();
}

MmaOperand OperandOf(const TensorSpec& spec, const void* data, bool along_k, std::int64_t rows, std::int64_t ld,
                     const Dims& batch_shape, const Dims& batch_strides) {
  MmaOperand o{
      .data = data, .rows = rows, .ld = ld, .along_k = along_k, .batch = BatchStridesOf(batch_shape, batch_strides)};
  const int element = static_cast<int>(ElementBytes(spec.dtype));
  const auto aligned_to = [&](int bytes) {
    const auto whole = [&](std::int64_t elements) { return elements * element % bytes == 0; };
    return reinterpret_cast<std::uintptr_t>(data) % static_cast<std::uintptr_t>(bytes) == 0 && whole(ld) &&
           std::all_of(batch_strides.begin(), batch_strides.end(), whole);
  };
  o.width = aligned_to(16) ? 16 : aligned_to(4) ? 4 : element;
  return o;
}

template <MmaPath kPath, int kIndex>
absl::Status Launch(const MatmulProblem& p, const MatmulGeometry& g, const DeviceInfo& device, const MatmulArgs& args,
                    void* workspace, Stream stream) {
  constexpr const MmaTile& kTile = kMmaTile[kIndex];
  if (g.d.elements() == 0) return absl::OkStatus();
  const MatmulEpilogue epilogue = MatmulEpilogueOf(p, g, args);
  if (HasNoProduct(p, g)) return EnqueueFinish(epilogue, {}, stream);
  const MmaSplits splits = SplitsFor(kTile, p, g, device);
  const MmaSums sums = SumsFor(p, g, splits);
  const auto tiles = [](std::int64_t size, int tile) { return size / tile + (size % tile != 0); };
  MmaProblem problem{.a = OperandOf(p.a, args.a, !p.transpose_a, g.m, g.lda, g.batch_shape, g.a_batch_strides),
                     .b = OperandOf(p.b, args.b, p.transpose_b, g.n, g.ldb, g.batch_shape, g.b_batch_strides),
                     .k = g.k,
                     .k_per_split = splits.k_per_split,
                     .splits = splits.splits,
                     .tiles_m = tiles(g.m, kTile.m),
                     .tiles_n = tiles(g.n, kTile.n),
                     .stages = StagesFor(kPath, kTile, device),
                     .sums = !sums.needed ? nullptr
                             : sums.in_d  ? args.d
                                          : workspace,
                     .epilogue = epilogue};
  const MmaMatmulKernel kernel =
      MmaMatmulKernelOf<kPath>(kIndex, {.a_along_k = problem.a.along_k,
                                        .b_along_k = problem.b.along_k,
                                        .aligned = problem.a.width == 16 && problem.b.width == 16});
  KERND_RETURN_IF_ERROR(kernel.launch(problem, SharedBytes(kPath, kTile, problem.stages), stream));
  if (!sums.needed) return absl::OkStatus();
  return EnqueueFinish(epilogue,
                       {.data = problem.sums,
                        .type = DataTypeOf(kPath) == DataType::kI8 ? DataType::kI32 : DataType::kF32,
                        .ld = g.n,
                        .parts = splits.splits},
                       stream);
}

template <MmaPath kPath, int kIndex>
MatmulVariant Row() {
  constexpr const MmaTile& kTile = kMmaTile[kIndex];
  constexpr DataType kType = DataTypeOf(kPath);
  constexpr bool kTf32 = kPath == MmaPath::kTf32Sm80;
  constexpr int kMinSm = IsAsync(kPath) ? 80 : 75;
  const Tile tile{kTile.m, kTile.n, kTile.k};
  return {.info = {.name = absl::StrCat("matmul_", kTf32 ? "tf32" : std::string(Token(kType)), "_sm", kMinSm, "_mma_",
                                        TileText(tile)),
                   .op = OpKind::kMatmul,
                   .dtypes = {kType},
                   .tile = tile,
                   .method = IsAsync(kPath) ? "tensor cores (mma.sync), asynchronous copies; batch-invariant if asked"
                                            : "tensor cores (mma.sync), as SM 7.5 has them; batch-invariant if asked",
                   .limits = kTf32                    ? "numerics must be TF32"
                             : kType == DataType::kI8 ? "no block scales"
                                                      : "",
                   .by_request = !kHasRun},
          .min_sm = kMinSm,
          .why_not = WhyNot<kPath, kIndex>,
          .estimate = Estimate<kPath, kIndex>,
          .workspace_bytes = WorkspaceBytes<kIndex>,
          .load = Load<kPath, kIndex>,
          .launch = Launch<kPath, kIndex>};
}

template <MmaPath kPath>
void AddRows(std::vector<MatmulVariant>& rows) {
  static_assert(kMmaTiles == 4);
  rows.insert(rows.end(), {Row<kPath, 0>(), Row<kPath, 1>(), Row<kPath, 2>(), Row<kPath, 3>()});
}

}  // namespace

absl::Span<const MatmulVariant> MatmulMmaVariants() {
  static const auto& rows = *[] {
    auto* const all = new std::vector<MatmulVariant>;
    AddRows<MmaPath::kF16Sm80>(*all);
    AddRows<MmaPath::kF16Sm75>(*all);
    AddRows<MmaPath::kBF16Sm80>(*all);
    AddRows<MmaPath::kTf32Sm80>(*all);
    AddRows<MmaPath::kI8Sm80>(*all);
    AddRows<MmaPath::kI8Sm75>(*all);
    return all;
  }();
  return rows;
}

}  // namespace kernd
