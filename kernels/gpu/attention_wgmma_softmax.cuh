// The online softmax of attention_wgmma.cu on accumulators of wgmma: of a lane's two rows it has every fourth pair of
// columns. Maxima are kept as logarithms of base 2, so that one fused multiply-add prepares each exponential.
#pragma once

#include "kernels/gpu/attention_device.cuh"
#include "kernels/gpu/attention_mma_fragment.cuh"

namespace kernd::gpu::attention_wgmma {

// From dot products to logarithms of base 2.
struct Scaling {
  float factor;            // of a dot product
  float softcap, inverse;  // 0: none
  float binary;            // of what Adjust leaves, positive
  bool general;            // Adjust has something to do

  __device__ static Scaling Of(const AttentionParams& p) {
    const float factor = static_cast<float>(p.scale);
    // The maximum is taken before the factor: that wants a positive one, with room above it.
    const bool general = !(factor > 0 && factor < 1e30f) || p.softcap > 0;
    // Logits below any cap of 1e-30 are as good as 0, and its inverse is a number.
    const float softcap = p.softcap > 0 ? fmaxf(p.softcap, 1e-30f) : 0.0f;
    return {factor, softcap, softcap > 0 ? 1 / softcap : 0.0f, general ? kLog2E : factor * kLog2E, general};
  }

  template <unsigned kTiles>
  __device__ void Adjust(float (&s)[kTiles][4]) const {
    if (softcap > 0) {
#pragma unroll
      for (unsigned n = 0; n < kTiles; ++n) {
#pragma unroll
        for (unsigned i = 0; i < 4; ++i) s[n][i] = softcap * tanhf(s[n][i] * factor * inverse);
      }
    } else {
#pragma unroll
      for (unsigned n = 0; n < kTiles; ++n) {
#pragma unroll
        for (unsigned i = 0; i < 4; ++i) s[n][i] *= factor;
      }
    }
  }
};

// Of a row: the largest logit so far as a logarithm of base 2, and the lane's share of the sum.
struct RowState {
  float largest, sum;
};

// A row's maximum moves on by a tile. Returns what O and the sum are to be multiplied with: exactly 1 where the maximum
// stays, so that a tile of which the row sees nothing leaves its bits alone.
template <unsigned kTiles>
__device__ inline float MoveMaximum(float binary, unsigned half, const float (&s)[kTiles][4], RowState& state) {
  float most = fmaxf(s[0][2 * half], s[0][2 * half + 1]), other = fmaxf(s[1][2 * half], s[1][2 * half + 1]);
#pragma unroll
  for (unsigned n = 2; n < kTiles; ++n) {  // skips NaN
    float& of = n % 2 == 0 ? most : other;
    of = fmaxf(of, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
  }
  most = fmaxf(most, other);
  most = fmaxf(most, __shfl_xor_sync(attention_mma::kAll, most, 1));
  most = fmaxf(most, __shfl_xor_sync(attention_mma::kAll, most, 2));
  const float before = state.largest;
  state.largest = fmaxf(before, most * binary);
  return Exp2(before - (state.largest == -KERND_INFINITY ? 0.0f : state.largest));
}

// Logits become probabilities.
template <unsigned kTiles>
__device__ inline void Exponentiate(float binary, unsigned half, float shrink, float (&s)[kTiles][4], RowState& state) {
  const float pivot = state.largest == -KERND_INFINITY ? 0.0f : state.largest;
  float sum[2] = {0, 0};
#pragma unroll
  for (unsigned n = 0; n < kTiles; ++n) {
#pragma unroll
    for (unsigned e = 0; e < 2; ++e) {
      float& x = s[n][2 * half + e];
      x = Exp2(fmaf(x, binary, -pivot));
      sum[e] += x;
    }
  }
  state.sum = fmaf(state.sum, shrink, sum[0] + sum[1]);
}

// O moves on. Maxima settle soon; then there is nothing to multiply.
template <unsigned kTiles>
__device__ inline void Rescale(const float (&shrink)[2], float (&o)[kTiles][4]) {
  if (__any_sync(attention_mma::kAll, shrink[0] != 1 || shrink[1] != 1) == 0) return;
#pragma unroll
  for (unsigned n = 0; n < kTiles; ++n) {
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) o[n][i] *= shrink[i / 2];
  }
}

}  // namespace kernd::gpu::attention_wgmma
