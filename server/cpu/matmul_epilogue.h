// D = act(alpha * scales * sums + beta * C + bias), in runs of columns that stay in the first-level cache. Compiled
// once per instruction set.
#pragma once

#include "server/cpu/matmul_tile.h"
#include "server/cpu/simd.h"

namespace kernd::cpu::KERND_ISA {

inline float RowScale(const TileScale& s, Index row) {
  return s.values == nullptr || s.along_k ? 1.0f : s.values[row * s.row_stride];
}

inline void Activate(TileActivation activation, Index n, float* x) {
  for (Index i = 0; i < n; i += kWidth) {  // rows are padded to whole registers
    const F32 v = LoadVector<F32>(x + i);
    switch (activation) {
      case TileActivation::kNone: return;
      case TileActivation::kRelu: StoreVector(x + i, v < 0.0f ? Splat(0.0f) : v); break;
      case TileActivation::kGelu: {
        const F32 inner = 0.797884560802865f * Fma(0.044715f * v * v, v, v);
        StoreVector(x + i, 0.5f * v * (1.0f + Tanh(inner)));
        break;
      }
      case TileActivation::kSilu: StoreVector(x + i, v / (1.0f + Exp(-v))); break;
    }
  }
}

inline void Activate(TileActivation activation, Index n, double* x) {
  for (Index i = 0; i < n; ++i) {
    switch (activation) {
      case TileActivation::kNone: return;
      case TileActivation::kRelu: x[i] = x[i] < 0 ? 0 : x[i]; break;
      case TileActivation::kGelu:
        x[i] = 0.5 * x[i] * (1 + __builtin_tanh(0.7978845608028654 * (x[i] + 0.044715 * x[i] * x[i] * x[i])));
        break;
      case TileActivation::kSilu: x[i] = x[i] / (1 + __builtin_exp(-x[i])); break;
    }
  }
}

inline void StoreResult(DataType type, const float* x, Index n, void* d) {
  StoreRow(type, x, n, d);
}
inline void StoreResult(DataType type, const double* x, Index n, void* d) {
  char* const to = static_cast<char*>(d);
  if (type == DataType::kF64) {
    __builtin_memcpy(to, x, static_cast<std::size_t>(8 * n));
    return;
  }
  for (Index i = 0; i < n; ++i) {  // I32: half to even, saturating, NaN gives 0
    const double r = __builtin_nearbyint(x[i]);
    const std::int32_t v = !(r == r)            ? 0
                           : r >= 2147483647.0  ? INT32_MAX
                           : r <= -2147483648.0 ? INT32_MIN
                                                : (std::int32_t)r;
    __builtin_memcpy(to + 4 * i, &v, 4);
  }
}

// One run of at most kRunCols columns. T: float; double where the result is F64 or I32 (which float cannot hold).
inline constexpr Index kRunCols = 256;
template <typename T, typename Sum>
void EpilogueRun(const MatmulJob& job, const MatmulTile& tile, const Sum* sums, Index row, Index col, Index n) {
  alignas(64) T x[kRunCols], y[kRunCols];
  const Index out = row * job.n + col;
  const T factor = static_cast<T>(job.alpha) * RowScale(job.a_scale, row);
  for (Index i = 0; i < n; ++i) x[i] = static_cast<T>(sums[i]) * factor;
  for (Index i = n; i % kWidth != 0; ++i) x[i] = 0;
  if (job.b_scale.values != nullptr && !job.b_scale.along_k) {
    for (Index i = 0; i < n; ++i) x[i] *= job.b_scale.values[(col + i) * job.b_scale.row_stride];
  }
  if (tile.c != nullptr) {
    LoadRow(job.d_type, static_cast<const char*>(tile.c) + (row * job.ldc + col) * ElementBytes(job.d_type), n, y);
    const T beta = static_cast<T>(job.beta);
    for (Index i = 0; i < n; ++i) x[i] += beta * y[i];
  }
  if (job.bias != nullptr) {
    LoadRow(job.bias_type, static_cast<const char*>(job.bias) + col * ElementBytes(job.bias_type), n, y);
    for (Index i = 0; i < n; ++i) x[i] += y[i];
  }
  Activate(job.activation, n, x);
  StoreResult(job.d_type, x, n, static_cast<char*>(tile.d) + out * ElementBytes(job.d_type));
}

// `sums` [tile.rows, tile.cols], rows `stride` apart.
template <typename Sum>
void Epilogue(const MatmulJob& job, const MatmulTile& tile, const Sum* sums, Index stride) {
  // Sums that are the result already. I32 needs this for speed; the others gain as well.
  const bool plain = job.alpha == 1 && tile.c == nullptr && job.bias == nullptr &&
                     job.activation == TileActivation::kNone && job.a_scale.values == nullptr &&
                     job.b_scale.values == nullptr && sizeof(Sum) == ElementBytes(job.d_type) &&
                     (job.sum == TileSum::kI32) == (job.d_type == DataType::kI32);
  for (Index r = 0; r < tile.rows; ++r) {
    const Index row = tile.m0 + r;
    if (plain) {
      char* const d = static_cast<char*>(tile.d) + (row * job.n + tile.n0) * ElementBytes(job.d_type);
      __builtin_memmove(d, sums + r * stride, static_cast<std::size_t>(tile.cols) * sizeof(Sum));
      continue;
    }
    for (Index c = 0; c < tile.cols; c += kRunCols) {
      const Index n = Min(kRunCols, tile.cols - c);
      const Sum* from = sums + r * stride + c;
      if (job.d_type == DataType::kF64 || job.d_type == DataType::kI32) {
        EpilogueRun<double>(job, tile, from, row, tile.n0 + c, n);
      } else {
        EpilogueRun<float>(job, tile, from, row, tile.n0 + c, n);
      }
    }
  }
}

}  // namespace kernd::cpu::KERND_ISA
