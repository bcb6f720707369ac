// Long sequences with few queries, cut along the keys: each part leaves its sums in the workspace, and a second kernel
// merges them. How a sequence is cut depends on its own lengths and the heads of the problem alone, so that its rows
// have the same bits in any batch.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "kernd/kernels/gpu.h"
#include "kernels/gpu/attention_device.cuh"

#ifdef __CUDACC__
#define KERND_HOST_DEVICE __host__ __device__
#else
#define KERND_HOST_DEVICE
#endif

namespace kernd::gpu {

inline constexpr std::int64_t kSplitRows = 128;  // query heads of a kv head times queries, at most
inline constexpr std::int64_t kSplitKeyMultiple = 128;
inline constexpr std::int64_t kMinSplitKeys = 256;
inline constexpr std::int64_t kMaxSplits = 256;
inline constexpr std::int64_t kUsualParts = 128;  // of all heads of a sequence: most SMs get one
inline constexpr std::int64_t kLongSplitKeys = 1024;

// Keys of each part but the last; 0: the sequence is not cut. `group` is 0 where there are no heads of Q. While it
// begins and ends, a part reads little: so there are no more of them than a sequence alone needs to be quick.
KERND_HOST_DEVICE inline std::int64_t SplitKeys(const AttentionSequence& s, std::int64_t group, std::int64_t kv_heads) {
  if (group == 0 || s.q_length == 0 || s.q_length > kSplitRows / group || s.kv_length <= kMinSplitKeys) return 0;
  std::int64_t parts = kv_heads < kUsualParts ? kUsualParts / kv_heads : 1;  // of a head
  if (s.kv_length / parts >= kLongSplitKeys) parts *= 2;                     // an SM reads two at a time
  const std::int64_t share = (s.kv_length + parts - 1) / parts;
  const std::int64_t keys = (share + kSplitKeyMultiple - 1) / kSplitKeyMultiple * kSplitKeyMultiple;
  return keys < kMinSplitKeys ? kMinSplitKeys : keys;
}
static_assert(2 * kUsualParts <= kMaxSplits);

KERND_HOST_DEVICE inline std::int64_t NumSplits(const AttentionSequence& s, std::int64_t split_keys) {
  return (s.kv_length + split_keys - 1) / split_keys;
}

// Consecutive sequences whose parts are in the workspace at the same time. Those among them that are not cut count, as
// the place of a part is found without a table.
struct SplitGroup {
  std::int64_t first = 0, count = 0;
  // The most of a cut sequence:
  std::int64_t q_rows = 0;  // rows of O, padding included
  std::int64_t rows = 0;    // computed, of a kv head: queries times the group
  std::int64_t splits = 0;

  // Part `split` of row `row`, a query times the group plus a head of it.
  KERND_HOST_DEVICE std::int64_t Slot(std::int64_t b, std::int64_t kv_heads, std::int64_t kv_head, std::int64_t row,
                                      std::int64_t split) const {
    return (((b - first) * kv_heads + kv_head) * rows + row) * splits + split;
  }
};

// Where the parts are: for each slot m and the sum of exp(logit - m), and the sums of exp(logit - m) v.
struct SplitWorkspace {
  float2* state = nullptr;  // [slots]
  float* sums = nullptr;    // [slots, Dv]; not written where the sum of exponentials is 0
};

// All cut sequences of a problem, in groups as large as a bounded workspace allows; one that needs more alone gets it.
struct SplitPlan {
  std::vector<SplitGroup> groups;
  std::int64_t max_slots = 0;
  std::int64_t bytes = 0;  // a multiple of kDeviceAlignment; negative: past 2^63
  bool all = false;        // no sequence with rows is left uncut

  SplitWorkspace At(void* workspace) const {
    const auto state = static_cast<float2*>(workspace);
    return {.state = state, .sums = reinterpret_cast<float*>(state + max_slots)};
  }
};
SplitPlan PlanSplits(const AttentionGeometry& g);

// Writes O and LSE of every row of the group's cut sequences, padding rows too.
absl::Status LaunchMerge(const AttentionParams& params, const SplitGroup& group, const SplitWorkspace& workspace,
                         Stream stream);

}  // namespace kernd::gpu
