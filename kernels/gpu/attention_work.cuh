// How a grid is cut into pieces of work: for each a sequence, a kv head, rows and keys. A row is a query of one head of
// the kv head's group: row = query * group + head.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/gpu/attention_split.h"

namespace kernd::gpu {

// One block's piece. Columns are those of V; keys and rows are the sequence's.
struct AttentionWork {
  std::int64_t b, kv_head, first_row, first_col, first_key, last_key, split;
  std::int64_t rows;  // of the kv head, the last that the piece's kernel writes
  bool any;
};

struct AttentionPlan {
  std::int64_t works = 0;
  std::int64_t col_blocks = 1;
  std::int64_t slots = 0, blocks = 0;  // row blocks of all sequences; of each, unless packed
  std::int64_t section = 1;            // kv heads of all sequences whose row blocks run at the same time, unless packed
  bool packed = false;
  bool whole = false;  // no sequence is cut along its keys, as a kernel that has no parts wants it
  bool split = false;  // only the sequences of `group` that are cut; otherwise only those that are not
  std::int64_t min_rows = 0, max_rows = 0;  // with `split`: only sequences with so many rows; 0: no limit
  SplitGroup group;
  SplitWorkspace workspace;
};

// Kv heads whose keys and values fit into half of the L2 together, at least one: their row blocks read them from there.
inline std::int64_t SectionOf(const AttentionGeometry& g, std::int64_t element_bytes, const DeviceInfo& device) {
  const std::int64_t row = (g.head_dim + g.v_head_dim) * element_bytes;
  const std::int64_t fit =
      device.l2_bytes / 2 / std::max<std::int64_t>(1, row) / std::max<std::int64_t>(1, g.max_kv_length);
  return std::max<std::int64_t>(1, std::min(fit, g.batch * g.kv_heads));
}

// Fills in how many pieces there are, of `rows` rows and `cols` columns each. `most_rows`: of a kv head, the most of a
// sequence; `all_rows`: of all sequences, where packed.
inline void CutIntoPieces(const AttentionParams& p, std::int64_t rows, std::int64_t cols, std::int64_t most_rows,
                          std::int64_t all_rows, AttentionPlan& plan) {
  const auto blocks_of = [](std::int64_t count, std::int64_t size) { return (count + size - 1) / size; };
  plan.col_blocks = std::max<std::int64_t>(1, blocks_of(p.v_head_dim, cols));
  plan.blocks = blocks_of(most_rows, rows);
  plan.slots = plan.packed ? all_rows / rows + p.batch : p.batch * plan.blocks;
  plan.works =
      (plan.split ? plan.group.count * plan.blocks * plan.group.splits : plan.slots) * p.kv_heads * plan.col_blocks;
}

#if defined(__CUDACC__) || defined(KERND_EMULATOR)

// Where the row blocks of a packed sequence begin. Each has a slot for every block that it starts in Q's rows, and one
// more, so that sequences find their slots by themselves.
__device__ inline std::int64_t FirstSlot(const AttentionParams& p, std::int64_t b, unsigned rows) {
  return p.tables.sequences[b].q_start * p.group / rows + b;
}

// Piece `work` of the grid. Late rows come first, as they see most: of each section's heads, or of the packed sequences
// in turn.
__device__ inline AttentionWork FindWork(const AttentionParams& p, const AttentionPlan& plan, std::int64_t work,
                                         unsigned rows, unsigned cols) {
  AttentionWork out{};
  out.first_col = work % plan.col_blocks * cols;
  work /= plan.col_blocks;
  if (plan.split) {
    out.kv_head = work % p.kv_heads;
    work /= p.kv_heads;
    out.split = work % plan.group.splits;
    work /= plan.group.splits;
    out.first_row = work % plan.blocks * rows;
    out.b = plan.group.first + work / plan.blocks;
  } else if (plan.packed) {
    out.kv_head = work % p.kv_heads;
    const std::int64_t slot = plan.slots - 1 - work / p.kv_heads;
    std::int64_t low = 0, high = p.batch;
    while (high - low > 1) {
      const std::int64_t middle = (low + high) / 2;
      (FirstSlot(p, middle, rows) <= slot ? low : high) = middle;
    }
    out.b = low;
    out.first_row = (slot - FirstSlot(p, low, rows)) * rows;  // negative before a slice's first sequence
  } else {
    const std::int64_t heads = p.batch * p.kv_heads, first = work / (plan.section * plan.blocks) * plan.section;
    const std::int64_t in_section = work - first * plan.blocks, width = min(plan.section, heads - first);
    const std::int64_t head = first + in_section % width;
    out.b = head / p.kv_heads;
    out.kv_head = head % p.kv_heads;
    out.first_row = (plan.blocks - 1 - in_section / width) * rows;
  }
  const AttentionSequence& s = p.tables.sequences[out.b];
  const std::int64_t split_keys = plan.whole ? 0 : SplitKeys(s, p.group, p.kv_heads), computed = s.q_length * p.group;
  out.first_key = out.split * split_keys;
  out.last_key = plan.split ? min(s.kv_length, out.first_key + split_keys) : s.kv_length;
  out.rows = plan.split ? computed : s.q_rows * p.group;
  out.any = plan.split == (split_keys != 0) && out.first_row >= 0 && out.first_row < out.rows &&
            (!plan.split || (out.first_key < out.last_key && computed >= plan.min_rows &&
                             (plan.max_rows == 0 || computed <= plan.max_rows)));
  return out;
}

#endif  // __CUDACC__ || KERND_EMULATOR

}  // namespace kernd::gpu
