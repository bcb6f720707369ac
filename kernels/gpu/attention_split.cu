// The plan for sequences cut along the keys, and the kernel that merges their parts.
// A block of 256 threads for each row of O: thread s weighs part s, then each thread owns columns of V and adds the
// parts up in order. 3 KiB of shared memory. Reads each part once; the time is that of the reads.
#include "kernels/gpu/attention_split.h"

#include <algorithm>
#include <limits>

#include "kernels/gpu/launch.cuh"

namespace kernd::gpu {
namespace {

constexpr int kThreads = 256;
static_assert(kThreads == kMaxSplits);
constexpr std::int64_t kGroupBytes = std::int64_t{64} << 20;

__global__ void __launch_bounds__(kThreads)
    MergeParts(const __grid_constant__ AttentionParams p, const __grid_constant__ SplitGroup group,
               SplitWorkspace workspace) {
  __shared__ float weight[kMaxSplits], part_sum[kMaxSplits], part_max[kMaxSplits];
  const std::int64_t q_heads = p.kv_heads * p.group, rows = group.count * q_heads * group.q_rows;
  for (std::int64_t work = blockIdx.x; work < rows; work += gridDim.x) {
    const std::int64_t query = work % group.q_rows, head = work / group.q_rows % q_heads,
                       b = group.first + work / group.q_rows / q_heads;
    const AttentionSequence s = p.tables.sequences[b];
    const std::int64_t split_keys = SplitKeys(s, p.group);
    if (split_keys == 0 || query >= s.q_rows) continue;
    const bool computed = query < s.q_length;
    const int splits = computed ? static_cast<int>(NumSplits(s, split_keys)) : 0;
    const std::int64_t kv_head = head / p.group;
    const std::int64_t slot = group.Slot(b, p.kv_heads, kv_head, query * p.group + head % p.group, 0);
    const int t = static_cast<int>(threadIdx.x);
    __syncthreads();  // the row before is done with the arrays
    const float2 state = t < splits ? workspace.state[slot + t] : make_float2(-KERND_INFINITY, 0.0f);
    part_max[t] = state.x;
    __syncthreads();
    float largest = -KERND_INFINITY;
    for (int i = 0; i < splits; ++i) largest = fmaxf(largest, part_max[i]);
    // A part that saw nothing, or NaN alone, has a maximum of minus infinity.
    const float pivot = largest == -KERND_INFINITY ? 0.0f : largest;
    weight[t] = expf(state.x - pivot);
    part_sum[t] = state.y;
    __syncthreads();
    float sum = 0;
    for (int i = 0; i < splits; ++i) sum += part_sum[i] * weight[i];
    const bool empty = sum == 0;
    const float factor = empty ? 0.0f : OutputFactor(p, head, largest, sum, ValueFactor(p, b, kv_head));
    const std::int64_t o = At(p.o, b, head, s.q_start + query);
    for (std::int64_t c = t; c < p.v_head_dim; c += kThreads) {
      float x = 0;
      for (int i = 0; i < splits; ++i) {
        if (part_sum[i] != 0) x += workspace.sums[(slot + i) * p.v_head_dim + c] * weight[i];  // else never written
      }
      StoreElement(p.args.o, o + c, p.o_type, empty ? 0.0f : x * factor + 0.0f);
    }
    if (t == 0 && p.args.lse != nullptr) {
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
    const std::int64_t keys = SplitKeys(s, g.heads_per_kv);
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
  const std::int64_t rows = group.count * params.kv_heads * params.group * group.q_rows;
  return LaunchKernel("MergeParts", MergeParts, GridOf(rows), kThreads, 0, stream, params, group, workspace);
}

}  // namespace kernd::gpu
