#include "server/cpu/matmul_onednn.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>

#include "kernd/kernels/error.h"
#include "server/cpu/matmul_job.h"
#include "server/cpu/onednn.h"
#include "server/cpu/team.h"

namespace kernd::cpu {
namespace {

// The one stride with which `strides` walk over `shape` in row-major order, if there is one.
std::optional<std::int64_t> SingleStride(const Dims& shape, const Dims& strides) {
  std::optional<std::int64_t> single;
  std::int64_t inner = 1;
  for (int i = static_cast<int>(shape.size()) - 1; i >= 0; --i) {
    if (shape[i] == 1) continue;
    if (!single) single = strides[i];
    if (CheckedMul(*single, inner) != strides[i]) return std::nullopt;
    inner *= shape[i];
  }
  return single.value_or(0);
}

// How oneDNN runs a problem: `calls` primitives, one after another, each over a batch that it walks itself. I8 sums
// pass through F32 on the way out, and stay exact only up to 2^24: longer ones are made of parts of K, added as
// integers.
struct Plan {
  onednn::GemmShape shape;
  std::int64_t calls = 1;
  std::int64_t part_k = 0;  // the last part may be shorter

  std::int64_t parts() const { return (shape.k + part_k - 1) / part_k; }
  absl::StatusOr<std::shared_ptr<const onednn::Gemm>> Part(std::int64_t part) const {
    onednn::GemmShape s = shape;
    s.k = std::min(part_k, shape.k - part * part_k);
    return onednn::GetGemm(s);
  }
};
constexpr std::int64_t kExactK = 1024;  // * 2^14 = 2^24

// Where a batch is rows on end against one B, it is one tall matrix; where it has one stride, oneDNN loops; else we do.
Plan MakePlan(const MatmulProblem& p, const MatmulGeometry& g, int threads) {
  Plan plan{.shape = {.dtype = p.a.dtype,
                      .batch = 1,
                      .m = g.m,
                      .n = g.n,
                      .k = g.k,
                      .transpose_a = p.transpose_a,
                      .transpose_b = p.transpose_b,
                      .lda = g.lda,
                      .ldb = g.ldb,
                      .threads = threads}};
  // A row stride means nothing where there is one row, and may then be anything.
  plan.shape.lda = std::max(plan.shape.lda, p.transpose_a ? g.m : g.k);
  plan.shape.ldb = std::max(plan.shape.ldb, p.transpose_b ? g.k : g.n);
  plan.part_k = p.a.dtype == DataType::kI8 ? std::min(g.k, kExactK) : g.k;
  if (g.batch == 1) return plan;
  const auto a = SingleStride(g.batch_shape, g.a_batch_strides), b = SingleStride(g.batch_shape, g.b_batch_strides);
  const std::int64_t row = g.m == 1 ? a.value_or(0) : g.lda;  // between rows of the tall matrix
  if (a && b && *b == 0 && !p.transpose_a && row >= g.k && CheckedMul(row, g.m) == *a) {
    plan.shape.m = g.m * g.batch;
    plan.shape.lda = row;
  } else if (a && b) {
    plan.shape.batch = g.batch;
    plan.shape.a_batch_stride = *a;
    plan.shape.b_batch_stride = *b;
  } else {
    plan.calls = g.batch;
  }
  return plan;
}

// Where things lie in the workspace of a oneDNN call.
struct Workspace {
  bool sums_in_d = false;  // sums are D, or as wide as its elements
  std::int64_t sums_bytes = 0, sums_at = 0, part_at = 0, bytes = 0;
};

absl::StatusOr<Workspace> LayOut(const Plan& plan, const MatmulGeometry& g) {
  Workspace w{.sums_in_d = ElementBytes(g.output_dtype) == 4};
  for (std::int64_t part = 0; part < plan.parts();
       part += std::max<std::int64_t>(1, plan.parts() - 1)) {  // first and last
    KERND_ASSIGN_OR_RETURN(const auto gemm, plan.Part(part));
    w.sums_at = std::max(w.sums_at, AlignUp(gemm->scratch_bytes(), kWorkspaceAlignment));
  }
  // Far out of any memory's reach, and what is added below must not wrap.
  const auto sums_bytes = CheckedProduct({g.batch / plan.calls, g.m, g.n, 4});
  if (!sums_bytes || *sums_bytes > std::numeric_limits<std::int64_t>::max() / 4) {
    return absl::UnimplementedError("sums of more than 2^61 bytes");
  }
  w.sums_bytes = *sums_bytes;
  w.part_at = w.sums_at + (w.sums_in_d ? 0 : AlignUp(w.sums_bytes, kWorkspaceAlignment));
  w.bytes = w.part_at + (plan.parts() > 1 ? w.sums_bytes : 0);
  return w;
}

// One call of the plan, `a` and `b` being its matrices.
absl::Status Multiply(const Plan& plan, const Workspace& layout, const void* a, const void* b, char* sums,
                      char* workspace) {
  const onednn::GemmShape& s = plan.shape;
  for (std::int64_t part = 0; part < plan.parts(); ++part) {
    const std::int64_t k = part * plan.part_k;
    KERND_ASSIGN_OR_RETURN(const auto gemm, plan.Part(part));
    KERND_RETURN_IF_ERROR(gemm->Run(Offset(a, s.transpose_a ? k * s.lda : k, s.dtype),
                                    Offset(b, s.transpose_b ? k : k * s.ldb, s.dtype),
                                    part == 0 ? sums : workspace + layout.part_at, workspace));
    if (part == 0) continue;
    constexpr std::int64_t kPiece = 1 << 16;
    const std::int64_t count = layout.sums_bytes / 4;
    ForEach(s.threads, (count + kPiece - 1) / kPiece, nullptr, [&](int, std::int64_t piece) {
      // Unsigned, as sums wrap. In pieces through the first-level cache, as D may lie at any address.
      std::uint32_t total[1024], more[1024];
      const std::int64_t end = std::min(count, (piece + 1) * kPiece);
      for (std::int64_t i = piece * kPiece; i < end; i += 1024) {
        const std::size_t n = static_cast<std::size_t>(std::min<std::int64_t>(1024, end - i));
        std::memcpy(total, sums + 4 * i, 4 * n);
        std::memcpy(more, workspace + layout.part_at + 4 * i, 4 * n);
        for (std::size_t j = 0; j < n; ++j) total[j] += more[j];
        std::memcpy(sums + 4 * i, total, 4 * n);
      }
    });
  }
  return absl::OkStatus();
}

}  // namespace

std::string_view OneDnnRefusal(const MatmulProblem& p, const MatmulGeometry& g) {
  const std::int64_t a_rows = p.transpose_a ? g.k : g.m, a_cols = p.transpose_a ? g.m : g.k;
  const std::int64_t b_rows = p.transpose_b ? g.n : g.k, b_cols = p.transpose_b ? g.k : g.n;
  if ((a_rows > 1 && g.lda < a_cols) || (b_rows > 1 && g.ldb < b_cols)) return "rows of A or B overlap";
  if (p.numerics == Numerics::kBatchInvariant && p.a.dtype != DataType::kI8) {
    return "oneDNN's order of summation may depend on M, and the problem asks for BATCH_INVARIANT";
  }
  if (HasBlockScales(p)) return "block scales";
  return "";
}

absl::StatusOr<std::int64_t> OneDnnWorkspaceBytes(const MatmulProblem& p, const MatmulGeometry& g, int threads) {
  KERND_ASSIGN_OR_RETURN(const Workspace layout, LayOut(MakePlan(p, g, threads), g));
  return layout.bytes;
}

absl::Status RunOneDnn(const MatmulProblem& p, const MatmulGeometry& g, const MatmulArgs& args, int threads, Isa isa,
                       void* workspace, Stop stop) {
  const Plan plan = MakePlan(p, g, threads);
  KERND_ASSIGN_OR_RETURN(const Workspace layout, LayOut(plan, g));
  const MatmulJob job = JobOf(p, g, args);
  char* const scratch = static_cast<char*>(workspace);
  const bool plain = p.alpha == 1 && p.beta == 0 && !p.bias && p.activation == Activation::kNone && !p.a_scale &&
                     !p.b_scale && g.output_dtype == (p.a.dtype == DataType::kI8 ? DataType::kI32 : DataType::kF32);
  for (std::int64_t call = 0; call < plan.calls && !Stopped(stop); ++call) {
    const MatmulTile item = ItemOf(p, g, args, call);
    char* const sums = layout.sums_in_d ? static_cast<char*>(item.d) : scratch + layout.sums_at;
    KERND_RETURN_IF_ERROR(Multiply(plan, layout, item.a, item.b, sums, scratch));
    if (plain) continue;
    constexpr std::int64_t kPiece = 1 << 16;  // elements of a thread's piece: long enough to be worth handing out
    const std::int64_t rows = std::clamp<std::int64_t>(kPiece / g.n, 1, g.m), pieces = (g.m + rows - 1) / rows;
    ForEach(threads, g.batch / plan.calls * pieces, stop, [&](int, std::int64_t piece) {
      const std::int64_t index = piece / pieces;
      MatmulTile tile = ItemOf(p, g, args, call + index);
      tile.m0 = piece % pieces * rows;
      tile.rows = std::min(rows, g.m - tile.m0);
      tile.cols = g.n;
      MatmulKernelFor(isa).epilogue(job, tile, sums + (index * g.m + tile.m0) * g.n * 4, g.n);
    });
  }
  return absl::OkStatus();
}

}  // namespace kernd::cpu
