// The tensor-core matmul's tiles as records, and what is decided about them before anything is launched. Pure; no CUDA.
//
// Which tile, when a request names the method alone (matmul_bf16_sm80_mma): a fixed rule, after the side of the square
// with as many results as D has, or N where the problem is to be batch-invariant.
//
//   below 512         32 x 32 x 32
//   512 to 1023       64 x 64 x 32
//   1024 to 2048      128 x 128 x 32
//   above             128 x 256 x 64
//
// But none that is twice as high or wide as D, and none that does not fit into the device's shared memory: then the
// next smaller.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernd/kernels/gpu.h"

namespace kernd {

// What the products are made of: the operands' dtype and the instructions.
enum class MmaPath : std::uint8_t { kF16Sm75, kF16Sm80, kBF16Sm80, kTf32Sm80, kI8Sm75, kI8Sm80 };

constexpr DataType DataTypeOf(MmaPath path) {
  switch (path) {
    case MmaPath::kF16Sm75:
    case MmaPath::kF16Sm80: return DataType::kF16;
    case MmaPath::kBF16Sm80: return DataType::kBF16;
    case MmaPath::kTf32Sm80: return DataType::kF32;
    case MmaPath::kI8Sm75:
    case MmaPath::kI8Sm80: return DataType::kI8;
  }
  return DataType::kInvalid;
}

// Whether there is cp.async, and with it more than two stages.
constexpr bool IsAsync(MmaPath path) {
  return path != MmaPath::kF16Sm75 && path != MmaPath::kI8Sm75;
}

struct MmaTile {
  int m, n, k;           // of D, and elements of the sum
  int warps_m, warps_n;  // how its results are shared out
  int stages;            // of K in shared memory, at most
  int blocks;            // of a multiprocessor, as far as registers go

  constexpr int warps() const { return warps_m * warps_n; }
  constexpr int threads() const { return 32 * warps(); }
  constexpr int warp_m() const { return m / warps_m; }
  constexpr int warp_n() const { return n / warps_n; }
};

inline constexpr int kMmaTiles = 4;
inline constexpr MmaTile kMmaTile[kMmaTiles] = {
    {.m = 32, .n = 32, .k = 32, .warps_m = 2, .warps_n = 2, .stages = 4, .blocks = 6},
    {.m = 64, .n = 64, .k = 32, .warps_m = 2, .warps_n = 2, .stages = 4, .blocks = 4},
    {.m = 128, .n = 128, .k = 32, .warps_m = 2, .warps_n = 2, .stages = 4, .blocks = 2},
    {.m = 128, .n = 256, .k = 64, .warps_m = 2, .warps_n = 4, .stages = 4, .blocks = 1}};

// Results leave through shared memory: 16 rows of each warp at a time, F32 or I32, this many columns apart.
constexpr int ResultPitch(const MmaTile& tile) {
  return tile.warp_n() + 8;
}

// Of a block's shared memory.
constexpr std::size_t SharedBytes(MmaPath path, const MmaTile& tile, int stages) {
  const std::size_t operands = static_cast<std::size_t>(stages) * static_cast<std::size_t>(tile.m + tile.n) *
                               static_cast<std::size_t>(tile.k * ElementBytes(DataTypeOf(path)));
  const std::size_t results = static_cast<std::size_t>(tile.warps() * 16 * ResultPitch(tile) * 4);
  return operands > results ? operands : results;
}

// How many stages a block has on the device: as many as leave room for the multiprocessor's other blocks. Fewer of
// those before fewer than three stages, fewer than three before a block is alone; two at least. 0: two do not fit.
int StagesFor(MmaPath path, const MmaTile& tile, const DeviceInfo& device);

// 0 for the tile that the rule above chooses (an index of kMmaTile), 1 for the one after it if that does not fit, ...
int PlaceInRule(int tile, const MatmulProblem& problem, const MatmulGeometry& geometry);

// Blocks that work on D together: parts of K, each but the last `k_per_split` long, so that a device is not left idle
// by few tiles and a long K. One where the problem is to be batch-invariant: then the sums of a row depend on K alone,
// whatever the tile.
struct MmaSplits {
  std::int64_t splits = 1, k_per_split = 0;
};
MmaSplits SplitsFor(const MmaTile& tile, const MatmulProblem& problem, const MatmulGeometry& geometry,
                    const DeviceInfo& device);

// Where the sums go before they are results: straight on, or to memory as [splits, batch, M, N] for EnqueueFinish, as
// they are in parts or the epilogue wants doubles. `in_d`: D has room for them.
struct MmaSums {
  bool needed = false, in_d = false;
  std::int64_t workspace_bytes = 0;  // a multiple of kDeviceAlignment; negative: past 2^63
};
MmaSums SumsFor(const MatmulProblem& problem, const MatmulGeometry& geometry, const MmaSplits& splits);

}  // namespace kernd
