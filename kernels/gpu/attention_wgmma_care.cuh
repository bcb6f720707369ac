// Values that are not finite, in attention_wgmma.cu. A product with 0 does not hide NaN: so a job whose O has become
// NaN or infinite is done again with care. Values that are not finite are taken out of V, and rows that see their keys
// remember them; all other rows get the same bits as before.
#pragma once

#include "kernels/gpu/attention_mma_fragment.cuh"
#include "kernels/gpu/attention_wgmma_shape.cuh"

namespace kernd::gpu::attention_wgmma {

// Of a lane's two rows: which of its keys of a tile weigh nothing, key 8 n + 2 t + e as bit 2 n + e.
template <unsigned kTiles>
__device__ inline void FindHidden(const float (&s)[kTiles][4], std::uint64_t (&hidden)[2]) {
  static_assert(kTiles <= 32);
#pragma unroll
  for (unsigned half = 0; half < 2; ++half) {
    hidden[half] = 0;
#pragma unroll
    for (unsigned i = 0; i < 2 * kTiles; ++i) {
      if (s[i / 2][2 * half + i % 2] == -KERND_INFINITY) hidden[half] |= std::uint64_t{1} << i;
    }
  }
}

// For each of a lane's elements of O, whether an infinity of either sign belongs to it; NaN counts as one of each.
template <unsigned kTiles>
struct Infinities {
  static constexpr unsigned kWords = (kTiles + 7) / 8;
  std::uint32_t of_sign[2][kWords] = {};

  __device__ void AddTo(float (&o)[kTiles][4]) const {
#pragma unroll
    for (unsigned n = 0; n < kTiles; ++n) {
#pragma unroll
      for (unsigned i = 0; i < 4; ++i) {
        const unsigned bit = n % 8 * 4 + i;
        if ((of_sign[0][n / 8] >> bit & 1) != 0) o[n][i] += KERND_INFINITY;
        if ((of_sign[1][n / 8] >> bit & 1) != 0) o[n][i] -= KERND_INFINITY;
      }
    }
  }
};

template <typename S>
__device__ inline bool IsFinite(std::uint32_t bits) {
  return (bits & attention_mma::kInfinite<S::kType>) != attention_mma::kInfinite<S::kType>;
}
// Both halves, where they are finite.
template <typename S>
__device__ inline std::uint32_t FiniteHalves(std::uint32_t pair) {
  return pair & attention_mma::HalvesOf(pair, 0xffff, [](std::uint32_t bits) { return IsFinite<S>(bits); });
}

// Takes what is not finite out of a tile of V, all computing threads together; `infinities` remembers what the lane's
// rows see of it. The tile is ready for wgmma afterwards.
template <typename S>
__device__ inline void TakeInfinities(std::uint32_t values, const std::uint64_t (&hidden)[2], bool (&dirty)[S::kKeys],
                                      Infinities<S::kDv / 8>& infinities) {
  using Tile = Slabs<S::kKeys>;
  const unsigned thread = threadIdx.x - kWarpgroup, lane = thread % 32;
  for (unsigned key = thread; key < S::kKeys; key += S::kComputing) {
    bool any = false;
    for (unsigned chunk = 0; chunk < S::kDv / 8; ++chunk) {
      const uint4 x = LoadShared16(values + Tile::Offset(key, chunk));
      any = any || FiniteHalves<S>(x.x) != x.x || FiniteHalves<S>(x.y) != x.y || FiniteHalves<S>(x.z) != x.z ||
            FiniteHalves<S>(x.w) != x.w;
    }
    dirty[key] = any;
  }
  NamedSync(kAllComputing, S::kComputing);
#pragma unroll 1
  for (unsigned key = 0; key < S::kKeys; ++key) {
    if (!dirty[key]) continue;
    bool sees[2];
#pragma unroll
    for (unsigned half = 0; half < 2; ++half) {
      const unsigned bit = key / 8 * 2 + key % 2;
      const auto word = static_cast<unsigned>(hidden[half] >> (bit / 32 * 32));
      sees[half] = (__shfl_sync(attention_mma::kAll, word, lane / 4 * 4 + key % 8 / 2) >> (bit % 32) & 1) == 0;
    }
#pragma unroll
    for (unsigned n = 0; n < S::kDv / 8; ++n) {
      const uint4 x = LoadShared16(values + Tile::Offset(key, n));
      const std::uint32_t pair = lane % 4 == 0 ? x.x : lane % 4 == 1 ? x.y : lane % 4 == 2 ? x.z : x.w;
#pragma unroll
      for (unsigned e = 0; e < 2; ++e) {
        const std::uint32_t bits = pair >> (16 * e) & 0xffff;
        if (IsFinite<S>(bits)) continue;
        const bool nan = (bits & 0x7fff) != attention_mma::kInfinite<S::kType>;
#pragma unroll
        for (unsigned sign = 0; sign < 2; ++sign) {
#pragma unroll
          for (unsigned half = 0; half < 2; ++half) {
            if (sees[half] && (nan || bits >> 15 == sign)) {
              infinities.of_sign[sign][n / 8] |= 1u << (n % 8 * 4 + 2 * half + e);
            }
          }
        }
      }
    }
  }
  NamedSync(kAllComputing, S::kComputing);  // everyone has seen what is in the tile
  for (unsigned key = thread; key < S::kKeys; key += S::kComputing) {
    if (!dirty[key]) continue;
    for (unsigned chunk = 0; chunk < S::kDv / 8; ++chunk) {
      const std::uint32_t at = values + Tile::Offset(key, chunk);
      const uint4 x = LoadShared16(at);
      StoreShared16(at,
                    make_uint4(FiniteHalves<S>(x.x), FiniteHalves<S>(x.y), FiniteHalves<S>(x.z), FiniteHalves<S>(x.w)));
    }
  }
  FenceProxyAsync();
  NamedSync(kAllComputing, S::kComputing);
}

}  // namespace kernd::gpu::attention_wgmma
