// The kernels for one number of channels, for the sources that instantiate them (attention_mma_<D>.cu).
#pragma once

#include "kernels/gpu/attention_mma_decode.cuh"
#include "kernels/gpu/attention_mma_tile.cuh"

namespace kernd::gpu {
namespace attention_mma {

// Blocks of an SM that the registers of their threads allow: S and O take 8 + kDv / 4 of 32 bits for 16 rows of a warp,
// the fragments at hand and addresses about 60 more.
constexpr unsigned BlocksByRegisters(unsigned dv, unsigned m) {
  const unsigned registers = 60 + m * (32 + dv / 2 + 8);
  return registers <= 128 ? 4 : registers <= 168 ? 3 : 2;
}

template <MmaKind kKind, unsigned kD, unsigned kDv, unsigned kM>
using Tile = TileShape<kKind, kD, kDv, kM, 4, BlocksByRegisters(kDv, kM)>;

template <MmaKind kKind, unsigned kD, unsigned kDv>
MmaFamily Family() {
  // Turing: 64 KiB of shared memory and no copies beside the arithmetic.
  if constexpr (kKind == MmaKind::kF16Sm75) {
    if constexpr (kD > 128) {
      return {};
    } else {
      const MmaKernel small = TileKernel<Tile<kKind, kD, kDv, 1>>();
      return {.large = small, .small = small};
    }
  } else {
    const MmaKernel small = TileKernel<Tile<kKind, kD, kDv, 1>>();
    const MmaKernel decode = DecodeKernel<DecodeShape<kKind, kD, kDv>>();
    // O of 32 rows leaves room for nothing else past 128 columns.
    if constexpr (kDv > 128 || kD > 128) {
      return {.large = small, .small = small, .decode = decode};
    } else {
      return {.large = TileKernel<Tile<kKind, kD, kDv, 2>>(), .small = small, .decode = decode};
    }
  }
}

}  // namespace attention_mma

template <unsigned kD, unsigned kDv>
MmaFamily MmaFamilyOf(MmaKind kind) {
  switch (kind) {
    case MmaKind::kF16Sm75: return attention_mma::Family<MmaKind::kF16Sm75, kD, kDv>();
    case MmaKind::kF16Sm80: return attention_mma::Family<MmaKind::kF16Sm80, kD, kDv>();
    case MmaKind::kBF16Sm80: return attention_mma::Family<MmaKind::kBF16Sm80, kD, kDv>();
  }
  return {};
}

}  // namespace kernd::gpu
