// What the roles of a block of matmul_wgmma_tile.cuh share: sizes, shared memory, and which tile is next.
#pragma once

#include <cstdint>

#include "kernels/gpu/device/cluster.cuh"
#include "kernels/gpu/device/mbarrier.cuh"
#include "kernels/gpu/device/shared.cuh"
#include "kernels/gpu/device/warpgroup.cuh"
#include "kernels/gpu/device/wgmma.cuh"
#include "kernels/gpu/matmul_wgmma.h"
#include "kernels/gpu/matmul_work.cuh"

namespace kernd::gpu::matmul_wgmma {

// A tile of an operand in shared memory: kRows rows of A or columns of B by 64 elements of K, in slabs whose lines are
// 128 bytes. K-major: one slab, a line a row. MN-major: a slab for each 64 rows, a line an element of K.
template <unsigned kRows_, Major kMajor_>
struct OperandTile {
  static constexpr unsigned kRows = kRows_, kBytes = kRows * 128;
  static constexpr Major kMajor = kMajor_;
  static constexpr unsigned kSlab = kMajor == Major::kK ? kBytes : 64 * 128;
  static_assert(kRows % 64 == 0 && kRows <= 256);

  // Of 16 elements of K from the tile's first row on.
  __device__ static std::uint64_t Descriptor(std::uint32_t address) {
    return kMajor == Major::kK ? KMajorDescriptor(address) : MnMajorDescriptor(address, kSlab);
  }
  // From one 16 elements of K to the next, and from 64 rows to the next.
  static constexpr std::uint32_t kStepBytes = kMajor == Major::kK ? 32 : 16 * 128, kRowsBytes = 64 * 128;
};

// What a block is made of. A tile has 128 rows, 64 of each warpgroup that computes, and kN columns. kCluster: blocks
// that do tiles below one another at the same time, each of which copies a part of B for all. kNarrow: as
// WgmmaMatmulKernel has it.
template <DataType kType_, unsigned kN_, unsigned kStages_, Major kA, Major kB, unsigned kCluster_ = 1,
          bool kNarrow_ = false>
struct Shape {
  static constexpr bool kNarrow = kNarrow_;
  static constexpr DataType kType = kType_;
  static constexpr unsigned kM = kWgmmaRows, kN = kN_, kK = kWgmmaDepth, kStages = kStages_, kCluster = kCluster_;
  using A = OperandTile<kM, kA>;
  using B = OperandTile<kN, kB>;
  static constexpr unsigned kGroups = 2, kComputing = kGroups * kWarpgroup, kThreads = kWarpgroup + kComputing;
  static constexpr unsigned kWarps = kComputing / 32;
  // Of the 65536 registers of an SM; what the producer gives back is for the others.
  static constexpr unsigned kProducerRegisters = 56, kComputingRegisters = 224;
  static_assert(kN % 128 == 0 && (kN / kCluster) % 64 == 0);
};

// Results leave through a part of shared memory that each warp has: 16 rows by 64 columns in F32, or by 128 in 16 bits.
inline constexpr unsigned kStripBytes = 4096;

template <typename S>
struct Shared {
  alignas(1024) std::uint8_t a[S::kStages][S::A::kBytes];
  alignas(1024) std::uint8_t b[S::kStages][S::B::kBytes];
  alignas(1024) std::uint8_t strips[S::kWarps][kStripBytes];
  alignas(8) std::uint64_t full[S::kStages], empty[S::kStages];
};

// A tile: its first row and column, and the part of K.
struct Work {
  std::int64_t item, split, row0, col0, k_begin, k_end;
  bool narrow;  // kWgmmaNarrow columns at most
};

// Calls `work(Work)` for each tile of the block, narrow ones last, so that they fill the wave which the others leave
// open. All roles see the same, and the blocks of a cluster as many.
template <typename S, typename Function>
__device__ inline void ForEachTile(const WgmmaMatmul& p, const Function& work) {
  const std::int64_t high = (p.tiles_m + S::kCluster - 1) / S::kCluster;
  const std::int64_t wide = p.tiles_n - (S::kNarrow && p.narrow), pieces = p.epilogue.batch * p.splits;
  const std::int64_t before = pieces * high * wide, all = pieces * high * p.tiles_n;
  const std::int64_t clusters = gridDim.x / S::kCluster;
  unsigned rank = 0;
  if constexpr (S::kCluster > 1) rank = ClusterRank();
  for (std::int64_t i = blockIdx.x / S::kCluster; i < all; i += clusters) {
    const bool narrow = S::kNarrow && i >= before;
    const MatmulWork at = FindMatmulWork({high, narrow ? 1 : wide, p.splits, p.group}, narrow ? i - before : i);
    const std::int64_t k_begin = at.split * p.k_per_split;
    work(Work{at.item, at.split, (at.tile_m * S::kCluster + rank) * S::kM, (narrow ? wide : at.tile_n) * S::kN, k_begin,
              min(p.k, k_begin + p.k_per_split), narrow});
  }
}

}  // namespace kernd::gpu::matmul_wgmma
