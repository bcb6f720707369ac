#include "kernels/gpu/matmul_mma.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernd/kernels/error.h"
#include "kernels/gpu/matmul_mma_pack.h"
#include "kernels/gpu/matmul_passes.h"
#include "kernels/gpu/variants.h"

namespace kernd {
namespace {

using gpu::MmaLayout;
using gpu::MmaMatmulKernel;
using gpu::MmaMatmulKernelOf;
using gpu::MmaOperand;
using gpu::MmaProblem;

template <MmaPath kPath, int kIndex>
std::string WhyNot(const MatmulProblem& p, const MatmulGeometry& g, const DeviceInfo& device) {
  constexpr const MmaTile& kTile = kMmaTile[kIndex];
  if (kPath == MmaPath::kTf32Sm80 && p.numerics != Numerics::kTf32) return "rounds F32 to TF32: numerics must be TF32";
  if (HasBlockScales(p)) return "takes scales of tensors and rows, not of blocks";
  if (StagesFor(kPath, kTile, device) == 0) {
    return absl::StrCat("needs ", SharedBytes(kPath, kTile, 2), " bytes of shared memory, and a block here gets ",
                        device.shared_memory_optin);
  }
  if (MmaPlanOf(kPath, kTile, p, g, device).workspace_bytes < 0) return "has a workspace past 2^63 bytes";
  return "";
}

template <MmaPath kPath, int kIndex>
double Estimate(const MatmulProblem& p, const MatmulGeometry& g, const DeviceInfo& device) {
  return MmaMicroseconds(kPath, kIndex, p, g, device);
}

template <MmaPath kPath, int kIndex>
std::int64_t WorkspaceBytes(const MatmulProblem& p, const MatmulGeometry& g, const DeviceInfo& device) {
  return MmaPlanOf(kPath, kMmaTile[kIndex], p, g, device).workspace_bytes;
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

// The operand as the kernel reads it: `from`, or a copy in the workspace, which is enqueued here.
absl::StatusOr<MmaOperand> OperandOf(const MmaSource& source, const void* from, bool along_k, std::int64_t rows,
                                     std::int64_t ld, const MatmulGeometry& g, DataType type, char* workspace,
                                     Stream stream) {
  if (source.packed) {
    void* const to = workspace + source.at;
    const bool turns = source.along_k != along_k;  // or else lines are copied as they are, K or not
    const std::int64_t lines = source.along_k ? rows : g.k, line = source.along_k ? g.k : rows;
    KERND_RETURN_IF_ERROR(EnqueuePack({.from = from,
                                       .type = type,
                                       .to_type = type,
                                       .k_contiguous = !turns,
                                       .rows = lines,
                                       .k = line,
                                       .ld = ld,
                                       .items = source.items,
                                       .batch = BatchStridesOf(source.item_shape, source.item_strides),
                                       .to = to,
                                       .to_rows = lines,
                                       .to_k = source.ld},
                                      stream));
    from = to;
  }
  MmaOperand o{.data = from,
               .rows = rows,
               .ld = source.ld,
               .along_k = source.along_k,
               .batch = BatchStridesOf(g.batch_shape, source.batch_strides)};
  const int element = static_cast<int>(ElementBytes(type));
  const auto aligned_to = [&](int bytes) {
    const auto whole = [&](std::int64_t elements) { return elements * element % bytes == 0; };
    return reinterpret_cast<std::uintptr_t>(from) % static_cast<std::uintptr_t>(bytes) == 0 && whole(source.ld) &&
           std::all_of(source.batch_strides.begin(), source.batch_strides.end(), whole);
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
  const MmaPlan plan = MmaPlanOf(kPath, kTile, p, g, device);
  const auto tiles = [](std::int64_t size, int tile) { return size / tile + (size % tile != 0); };
  constexpr DataType kType = DataTypeOf(kPath);
  char* const base = static_cast<char*>(workspace);
  KERND_ASSIGN_OR_RETURN(const MmaOperand a,
                         OperandOf(plan.a, args.a, !p.transpose_a, g.m, g.lda, g, kType, base, stream));
  KERND_ASSIGN_OR_RETURN(const MmaOperand b,
                         OperandOf(plan.b, args.b, p.transpose_b, g.n, g.ldb, g, kType, base, stream));
  MmaProblem problem{.a = a,
                     .b = b,
                     .k = g.k,
                     .k_per_split = plan.splits.k_per_split,
                     .splits = plan.splits.splits,
                     .tiles_m = tiles(g.m, kTile.m),
                     .tiles_n = tiles(g.n, kTile.n),
                     .stages = StagesFor(kPath, kTile, device),
                     .sums = !plan.sums.needed ? nullptr
                             : plan.sums.in_d  ? args.d
                                               : base + plan.sums_at,
                     .epilogue = epilogue};
  const MmaMatmulKernel kernel =
      MmaMatmulKernelOf<kPath>(kIndex, {.a_along_k = problem.a.along_k,
                                        .b_along_k = problem.b.along_k,
                                        .aligned = problem.a.width == 16 && problem.b.width == 16});
  KERND_RETURN_IF_ERROR(kernel.launch(problem, SharedBytes(kPath, kTile, problem.stages), stream));
  if (!plan.sums.needed) return absl::OkStatus();
  return EnqueueFinish(epilogue,
                       {.data = problem.sums,
                        .type = kType == DataType::kI8 ? DataType::kI32 : DataType::kF32,
                        .ld = g.n,
                        .parts = plan.splits.splits},
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
                                                      : ""},
          .min_sm = kMinSm,
          .why_not = WhyNot<kPath, kIndex>,
          .estimate = Estimate<kPath, kIndex>,
          .workspace_bytes = WorkspaceBytes<kPath, kIndex>,
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
