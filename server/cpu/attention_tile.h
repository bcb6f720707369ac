// A run of query rows of one sequence and one key/value head, computed by one thread: the seam between the driver
// (attention.cc) and the kernel that is compiled once per instruction set (attention_tile.cc). Plain data only; strides
// in elements; pointers need not be aligned but for the scratch.
#pragma once

#include <atomic>
#include <cstdint>

#include "kernd/kernels/dtype.h"
#include "server/cpu/isa.h"

namespace kernd::cpu {

// What the tiles of a call share.
struct AttentionJob {
  DataType type{}, o_type{}, bias_type{};
  std::int64_t group = 1;  // query heads of a key/value head
  std::int64_t head_dim = 0, v_head_dim = 0;
  std::int64_t q_head = 0, q_row = 0, k_row = 0, v_row = 0, o_head = 0, o_row = 0, lse_head = 0;
  std::int64_t mask_head = 0, mask_row = 0, bias_head = 0, bias_row = 0;
  std::int64_t window_left = 0, window_right = 0;  // "unbounded" is a number beyond every length
  float softcap = 0;                               // 0: none
  const std::atomic<bool>* stop = nullptr;         // as Stop in team.h
};

// A "row" is one query row of one head: row r is query r / group of head r % group, so that the rows of a tile lie at
// about the same place and share their keys. Pointers are to query 0, key 0 and the first head of the group.
struct AttentionTile {
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  const void* mask = nullptr;     // may be null
  const void* bias = nullptr;     // may be null
  const float* slopes = nullptr;  // [group]; may be null
  const float* sinks = nullptr;   // [group]; may be null
  void* o = nullptr;
  float* lse = nullptr;  // may be null
  std::int64_t row_begin = 0, row_end = 0;
  std::int64_t q_length = 0;  // queries from here on are written as empty rows
  std::int64_t kv_length = 0, diagonal = 0;
  float logit_factor = 1;  // scale and the operands' own
  float v_factor = 1;
};

struct AttentionKernel {
  std::int64_t block_rows;  // tiles are best multiples of this
  // Bytes of scratch for tiles of up to `rows` rows.
  std::int64_t (*scratch_bytes)(std::int64_t rows, std::int64_t head_dim, std::int64_t v_head_dim);
  void (*run)(const AttentionJob& job, const AttentionTile& tile, void* scratch);
};

const AttentionKernel& AttentionKernelFor(Isa isa);

namespace baseline {
extern const AttentionKernel kAttentionKernel;
}
namespace avx2 {
extern const AttentionKernel kAttentionKernel;
}
namespace avx512 {
extern const AttentionKernel kAttentionKernel;
}

}  // namespace kernd::cpu
