// The plan for sequences cut along the keys, and the kernel that merges their parts.
// A block of 256 threads for 64 columns of a row of O: thread s weighs part s, then four groups of 64 threads add up
// every fourth part, and the groups' sums are added, all in a fixed order. 3 KiB of shared memory. Few rows have few
// blocks, so the time is that of reads one after the other: eight of each thread are under way at once.
#include "kernels/gpu/attention_split.h"

#include <algorithm>
#include <limits>

#include "kernels/gpu/launch.cuh"

namespace kernd::gpu {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32, kColumns = 64, kLanes = kThreads / kColumns;
static_assert(kThreads == kMaxSplits);
constexpr std::int64_t kGroupBytes = std::int64_t{64} << 20;

// Blocks for a row: one at least, as a row without columns still has its LSE.
KERND_HOST_DEVICE std::int64_t ColumnBlocks(const AttentionParams& p) {
  return p.v_head_dim == 0 ? 1 : (p.v_head_dim + kColumns - 1) / kColumns;
}

// Of a block's values, in the order of threads, pairs first. All threads call it; `of_warps` is for it alone.
template <typename Combine>
__device__ float Reduce(float x, const Combine& combine, float (&of_warps)[kWarps]) {
  for (int step = 1; step < 32; step *= 2) x = combine(x, __shfl_xor_sync(0xffffffffu, x, step));
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = x;
  __syncthreads();
  x = of_warps[0];
  for (int i = 1; i < kWarps; ++i) x = combine(x, of_warps[i]);
  return x;
}

__global__ void __launch_bounds__(kThreads)
    MergeParts(const __grid_constant__ AttentionParams p, const __grid_constant__ SplitGroup group,
               SplitWorkspace workspace) {
  __shared__ float weight[kMaxSplits], part_sum[kMaxSplits], maxima[kWarps], sums[kWarps], lanes[kLanes][kColumns];
  const std::int64_t q_heads = p.kv_heads * p.group, rows = group.count * q_heads * group.q_rows;
  const std::int64_t col_blocks = ColumnBlocks(p);
  for (std::int64_t work = blockIdx.x; work < rows * col_blocks; work += gridDim.x) {
    const std::int64_t row = work / col_blocks, query = row % group.q_rows, head = row / group.q_rows % q_heads,
                       b = group.first + row / group.q_rows / q_heads;
    const AttentionSequence s = p.tables.sequences[b];
    const std::int64_t split_keys = SplitKeys(s, p.group, p.kv_heads);
    if (split_keys == 0 || query >= s.q_rows) continue;
    const bool computed = query < s.q_length;
    const int splits = computed ? static_cast<int>(NumSplits(s, split_keys)) : 0;
    const std::int64_t kv_head = head / p.group;
    const std::int64_t slot = group.Slot(b, p.kv_heads, kv_head, query * p.group + head % p.group, 0);
    const int t = static_cast<int>(threadIdx.x);
    __syncthreads();  // the row before is done with the arrays
    const float2 state = t < splits ? workspace.state[slot + t] : make_float2(-KERND_INFINITY, 0.0f);
    const float largest = Reduce(
        state.x, [](float x, float y) { return fmaxf(x, y); }, maxima);
    // A part that saw nothing, or NaN alone, has a maximum of minus infinity.
    const float pivot = largest == -KERND_INFINITY ? 0.0f : largest, mine = expf(state.x - pivot);
    weight[t] = mine;
    part_sum[t] = state.y;
    const float sum = Reduce(
        state.y * mine, [](float x, float y) { return x + y; }, sums);
    const bool empty = sum == 0;
    const std::int64_t column = work % col_blocks * kColumns + t % kColumns;
    const bool has_column = column < p.v_head_dim;
    const float* const from = workspace.sums + slot * p.v_head_dim + column;
    float x = 0;
#pragma unroll 8
    for (int i = t / kColumns; has_column && i < splits; i += kLanes) {
      // Those of a part whose exponentials add up to 0 were never written.
      x += part_sum[i] != 0 ? from[i * p.v_head_dim] * weight[i] : 0.0f;
    }
    lanes[t / kColumns][t % kColumns] = x;
    __syncthreads();
    if (t < kColumns && has_column) {
      for (int i = 1; i < kLanes; ++i) x += lanes[i][t];
      const float factor = empty ? 0.0f : OutputFactor(p, head, largest, sum, ValueFactor(p, b, kv_head));
      StoreElement(p.args.o, At(p.o, b, head, s.q_start + query) + column, p.o_type, empty ? 0.0f : x * factor + 0.0f);
    }
    if (work % col_blocks == 0 && t == 0 && p.args.lse != nullptr) {
      p.args.lse[At(p.lse, b, head, s.q_start + query)] = empty ? -KERND_INFINITY : largest + logf(sum);
    }
  }
}

}  // namespace

SplitPlan PlanSplits(const AttentionGeometry& g) {
  SplitPlan plan;
  plan.all = true;
  if (g.q_heads == 0) return plan;
  const auto slots = [&g](const SplitGroup& group) {
    return CheckedProduct({group.count, g.kv_heads, group.rows, group.splits});
  };
  const auto bytes = [&g](std::optional<std::int64_t> count) {
    return count ? CheckedProduct({*count, g.v_head_dim + 2, sizeof(float)}) : std::nullopt;
  };
  std::optional<std::int64_t> most = 0;
  for (std::int64_t b = 0; b < g.batch; ++b) {
    const AttentionSequence& s = g.sequences[b];
    const std::int64_t keys = SplitKeys(s, g.heads_per_kv, g.kv_heads);
    if (keys == 0) {
      plan.all = plan.all && s.q_rows == 0;
      continue;
    }
    const std::int64_t rows = s.q_length * g.heads_per_kv, splits = NumSplits(s, keys);
    SplitGroup joined{.first = b, .count = 1, .q_rows = s.q_rows, .rows = rows, .splits = splits};
    if (!plan.groups.empty()) {
      const SplitGroup& last = plan.groups.back();
      const SplitGroup longer{.first = last.first,
                              .count = b - last.first + 1,
                              .q_rows = std::max(last.q_rows, s.q_rows),
                              .rows = std::max(last.rows, rows),
                              .splits = std::max(last.splits, splits)};
      const std::optional<std::int64_t> size = bytes(slots(longer));
      if (size && *size <= kGroupBytes) {
        joined = longer;
        plan.groups.pop_back();
      }
    }
    plan.groups.push_back(joined);
  }
  for (const SplitGroup& group : plan.groups) {
    const std::optional<std::int64_t> count = slots(group);
    most = most && count ? std::optional(std::max(*most, *count)) : std::nullopt;
  }
  const std::optional<std::int64_t> size = bytes(most);
  if (!size || *size > std::numeric_limits<std::int64_t>::max() - kDeviceAlignment) {
    plan.bytes = -1;
    return plan;
  }
  plan.max_slots = *most;
  plan.bytes = (*size + kDeviceAlignment - 1) / kDeviceAlignment * kDeviceAlignment;
  return plan;
}

absl::Status LaunchMerge(const AttentionParams& params, const SplitGroup& group, const SplitWorkspace& workspace,
                         Stream stream) {
  const std::int64_t blocks = group.count * params.kv_heads * params.group * group.q_rows * ColumnBlocks(params);
  return LaunchKernel("MergeParts", MergeParts, GridOf(blocks), kThreads, 0, stream, params, group, workspace);
}

}  // namespace kernd::gpu
