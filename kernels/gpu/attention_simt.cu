// Attention with F32 arithmetic on the ordinary cores: any dtype, shape and option.
// Tile: 64, 16, 8 or 4 rows (a row: a query of one head of a kv head's group) by 128 keys, as the problem has rows; a
//   row's bits do not depend on which. 4 or 8 warps own the rows: a lane has 4 keys of S, and 4 or 2 columns of O, of
//   each of its warp's 8, 4 or 1.
// Q and K pass through shared memory as F32 in chunks of 32 channels, K transposed; V in chunks of 32 keys; P goes from
//   lanes to warp through it. 61 KiB for 64 rows, so that sm_75 can hold it. S, O, maximum and sum stay in registers.
// Any head_dim: chunks. Any v_head_dim: blocks of 128 (or 64) columns, each of which computes S again.
// Work: (sequence, kv head, rows, columns), late rows first as they see most; tiles that no row sees are skipped. Few
//   rows and many keys: cut along the keys (attention_split.h).
// Time: FMAs, fed from shared memory at about 3/4 of its bandwidth; the SM's other block hides chunk loads. Few rows:
//   the instructions that convert and place K and V.
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/gpu/attention_simt_tile.cuh"
#include "kernels/gpu/device/shared.cuh"
#include "kernels/gpu/launch.cuh"
#include "kernels/gpu/variants.h"

namespace kernd {
namespace gpu {
namespace {

using namespace attention_simt;

template <typename S>
__global__ void __launch_bounds__(S::kThreads, S::kBlocksPerSm)
    AttentionSimt(const __grid_constant__ AttentionParams p, const __grid_constant__ Plan plan) {
  auto& shared = *static_cast<typename S::Shared*>(DynamicShared());
  for (std::int64_t i = blockIdx.x; i < plan.works; i += gridDim.x) {
    __syncthreads();  // the piece before is done with shared memory
    if (threadIdx.x == 0) shared.work = FindWork(p, plan, i, S::kRows, S::kCols);
    __syncthreads();
    if (shared.work.any) Tile<S>(p, plan, shared).Run();
  }
}

std::int64_t BlocksOf(std::int64_t count, std::int64_t size) {
  return (count + size - 1) / size;
}

// Calls `with(S{})` for the largest tile that the rows of each of `heads` fill, and of which there are enough for the
// device. Choosing never shows in the bits.
template <typename With>
absl::Status WithShape(std::int64_t rows, std::int64_t heads, std::int64_t v_head_dim, const DeviceInfo& device,
                       const With& with) {
  const auto enough = [&](std::int64_t size, std::int64_t per_multiprocessor) {
    return BlocksOf(rows, size) >= BlocksOf(device.multiprocessors * per_multiprocessor, heads);
  };
  if (rows > Medium::kRows && enough(Large::kRows, 1)) {
    return v_head_dim <= LargeNarrow::kCols ? with(LargeNarrow{}) : with(Large{});
  }
  if (rows > Wide::kRows && enough(Medium::kRows, 1)) return with(Medium{});
  return rows <= Small::kRows && enough(Small::kRows, 4) ? with(Small{}) : with(Wide{});
}

// `rows`: of a kv head, the most of a sequence; all_rows: of all sequences, where packed.
template <typename S>
absl::Status LaunchShape(const AttentionParams& params, Plan plan, std::int64_t rows, std::int64_t all_rows,
                         Stream stream) {
  CutIntoPieces(params, S::kRows, S::kCols, rows, all_rows, plan);
  return LaunchKernel("AttentionSimt", AttentionSimt<S>, GridOf(plan.works), S::kThreads, sizeof(typename S::Shared),
                      stream, params, plan);
}

template <typename S>
absl::Status LoadShape() {
  return AllowSharedMemory(AttentionSimt<S>, sizeof(typename S::Shared));
}

absl::Status Load(const DeviceInfo&) {
  KERND_RETURN_IF_ERROR(LoadShape<Large>());
  KERND_RETURN_IF_ERROR(LoadShape<LargeNarrow>());
  KERND_RETURN_IF_ERROR(LoadShape<Medium>());
  KERND_RETURN_IF_ERROR(LoadShape<Small>());
  return LoadShape<Wide>();
}

absl::Status Launch(const AttentionProblem& p, const AttentionGeometry& g, const DeviceInfo& device,
                    const AttentionArgs& args, const AttentionTables& tables, void* workspace, Stream stream) {
  if (g.o_spec.elements() == 0 && (!g.lse_spec || g.lse_spec->elements() == 0)) return absl::OkStatus();
  const AttentionParams params = ParamsOf(p, g, args, tables);
  const SplitPlan split = PlanSplits(g);
  if (!split.all) {
    const Plan plan{.section = SectionOf(g, params.type_bytes, device), .packed = p.layout == AttentionLayout::kPacked};
    const std::int64_t rows = g.max_q_rows * g.heads_per_kv, all_rows = plan.packed ? p.q.shape[0] * g.heads_per_kv : 0;
    KERND_RETURN_IF_ERROR(WithShape(rows, g.batch * g.kv_heads, g.v_head_dim, device, [&](auto shape) {
      return LaunchShape<decltype(shape)>(params, plan, rows, all_rows, stream);
    }));
  }
  for (const SplitGroup& group : split.groups) {
    const Plan plan{.split = true, .group = group, .workspace = split.At(workspace)};
    const std::int64_t tiles = group.count * group.splits * g.kv_heads;
    KERND_RETURN_IF_ERROR(WithShape(group.rows, tiles, g.v_head_dim, device, [&](auto shape) {
      return LaunchShape<decltype(shape)>(params, plan, group.rows, 0, stream);
    }));
    KERND_RETURN_IF_ERROR(LaunchMerge(params, group, plan.workspace, stream));
  }
  return absl::OkStatus();
}

std::int64_t WorkspaceBytes(const AttentionProblem&, const AttentionGeometry& g, const DeviceInfo&) {
  return PlanSplits(g).bytes;
}

std::string WhyNot(const AttentionProblem&, const AttentionGeometry&, const DeviceInfo&) {
  return "";
}

// The largest of the times for arithmetic, for converting K and V, and for reading them. Every 128 columns of V compute
// S anew. The rates are those measured on an H200, scaled by multiprocessors, clock and memory.
double Estimate(const AttentionProblem& p, const AttentionGeometry& g, const DeviceInfo& device) {
  constexpr double kFmasPerClock = 128 * 0.42, kElementsPerClock = 2.5, kShareOfMemory = 0.7, kLaunchMicroseconds = 15;
  const double d = static_cast<double>(g.head_dim), dv = static_cast<double>(g.v_head_dim);
  const double clocks = device.multiprocessors * (device.clock_khz * 1e-3);  // of all, in a microsecond
  const double fmas = VisibleScores(g) * (std::ceil(dv / Large::kCols) * d + dv);
  double keys = 0;
  for (const AttentionSequence& s : g.sequences) keys += static_cast<double>(s.kv_length);
  const double elements = keys * static_cast<double>(g.kv_heads) * (d + dv);
  const double bytes = elements * static_cast<double>(ElementBytes(p.q.dtype));
  return kLaunchMicroseconds +
         std::max({fmas / (kFmasPerClock * clocks), elements / (kElementsPerClock * clocks),
                   bytes / (kShareOfMemory * static_cast<double>(device.memory_bytes_per_second) * 1e-6)});
}

}  // namespace

double VisibleScores(const AttentionGeometry& g) {
  double scores = 0;
  for (const AttentionSequence& s : g.sequences) {
    if (s.q_length == 0) continue;
    // Simpson's rule: exact for whole rows, and for causal ones.
    const auto keys = [&](std::int64_t query) {
      const std::int64_t position = query + s.diagonal;
      const std::int64_t first =
          std::max<std::int64_t>(0, position - std::min(g.window_left.value_or(kUnbounded), kUnbounded));
      const std::int64_t last =
          std::min(s.kv_length, position + std::min(g.window_right.value_or(kUnbounded), kUnbounded) + 1);
      return static_cast<double>(std::max<std::int64_t>(0, last - first));
    };
    const std::int64_t last = s.q_length - 1;
    scores += static_cast<double>(s.q_length) * (keys(0) + 4 * keys(last / 2) + keys(last)) / 6;
  }
  return scores * static_cast<double>(g.q_heads);
}

}  // namespace gpu

absl::Span<const AttentionVariant> AttentionSimtVariants() {
  static const auto& rows = *[] {
    auto* all = new std::vector<AttentionVariant>;
    for (const DataType type :
         {DataType::kF16, DataType::kBF16, DataType::kF32, DataType::kF8E4M3, DataType::kF8E5M2}) {
      all->push_back(
          {.info = {.name = absl::StrCat("attention_", std::string(Token(type)), "_sm75_simt"),
                    .op = OpKind::kAttention,
                    .dtypes = {type},
                    .method = "online softmax in F32 without tensor cores; long sequences of few queries are "
                              "cut along the keys"},
           .min_sm = 75,
           .why_not = gpu::WhyNot,
           .estimate = gpu::Estimate,
           .workspace_bytes = gpu::WorkspaceBytes,
           .load = gpu::Load,
           .launch = gpu::Launch});
    }
    return all;
  }();
  return rows;
}

}  // namespace kernd
