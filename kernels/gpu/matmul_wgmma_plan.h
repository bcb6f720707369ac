// What is decided about the matmul for SM 9.0 before anything is launched: how bulk copies see the operands, which are
// packed first, and the workspace. Pure; no CUDA.
#pragma once

#include <cstdint>

#include "kernd/kernels/gpu.h"
#include "kernels/gpu/matmul_epilogue.h"
#include "kernels/gpu/matmul_mma_plan.h"

namespace kernd {

// An operand as the kernel reads it: lines of elements, `ld` apart, in items that are `item_stride` apart. Bulk copies
// want both distances in whole chunks of 16 bytes; an operand that lies otherwise is packed, in lines of the same
// direction.
struct WgmmaOperandPlan {
  bool packed = false;
  bool along_k = false;                      // a line is a row of A or a column of B; else an element of K of all rows
  std::int64_t line = 0, lines = 0, ld = 0;  // elements, and how many
  std::int64_t items = 1, item_stride = 0;
  BatchStrides item_of;  // of an item of the batch, in items of the operand
  // Of a packed operand: the source's distinct items, and the copy's bytes.
  BatchStrides source;
  std::int64_t bytes = 0;
};

struct WgmmaPlan {
  WgmmaOperandPlan a, b;
  MmaSplits splits;
  MmaSums sums;
  std::int64_t a_at = 0, b_at = 0, sums_at = 0;  // in the workspace
  std::int64_t workspace_bytes = 0;              // a multiple of kDeviceAlignment; negative: past 2^63
};

// For a problem that has results and a product, of 16-bit operands whose dimensions are below kMostWgmmaElements.
WgmmaPlan WgmmaPlanOf(const MmaTile& tile, const MatmulProblem& problem, const MatmulGeometry& geometry,
                      const DeviceInfo& device);

// Places in operands are ints, and a tile may begin a little past the end. Elements that a stride may have.
inline constexpr std::int64_t kMostWgmmaElements = 0x7fff'0000, kMostWgmmaStride = (std::int64_t{1} << 39) - 8;

// Rows (M) of every tile; of which each of the two computing warpgroups has half.
inline constexpr int kWgmmaRows = 128, kWgmmaDepth = 64;
// A tile that has no more columns than this, at the end of D, may have products of its own, and its turn after all
// others.
inline constexpr int kWgmmaNarrow = 64;
constexpr bool EndsNarrow(const MmaTile& tile, std::int64_t n) {
  return n % tile.n != 0 && n % tile.n <= kWgmmaNarrow;
}
inline constexpr int kWgmmaTiles = 2;
inline constexpr MmaTile kWgmmaTile[kWgmmaTiles] = {
    {.m = kWgmmaRows, .n = 128, .k = kWgmmaDepth, .warps_m = 8, .warps_n = 1, .stages = 6, .blocks = 1},
    {.m = kWgmmaRows, .n = 256, .k = kWgmmaDepth, .warps_m = 8, .warps_n = 1, .stages = 4, .blocks = 1}};

}  // namespace kernd
