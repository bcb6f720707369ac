// Panels of an operand, in the order in which the micro-kernels read it. Compiled once per instruction set.
#pragma once

#include "server/cpu/matmul_tile.h"
#include "server/cpu/simd.h"

namespace kernd::cpu::KERND_ISA {

// X [R, K] in memory: element (r, k) at r * ld + k, or at k * ld + r when `k_major`.
struct Operand {
  const void* data;
  DataType type;
  Index ld;
  bool k_major;
  TileScale scale;

  const char* At(Index r, Index k) const {
    return static_cast<const char*>(data) + (k_major ? k * ld + r : r * ld + k) * ElementBytes(type);
  }
};

// panel[k][0..Width) for `count` <= Width rows of `k` elements, each at `row(r)`; rows past `count` are zeros. F32 rows
// are transposed a square of registers at a time, straight from where they lie; others are converted first, in runs
// that stay in the first-level cache.
template <int Width, typename RowAt>
inline void PackRows(DataType type, Index count, Index k, const RowAt& row, float* panel) {
  constexpr Index kRun = 64;
  alignas(64) float run[kWidth * kRun];
  for (Index r0 = 0; r0 < Width; r0 += kWidth) {
    const Index height = Max<Index>(0, Min<Index>(kWidth, count - r0));
    for (Index k0 = 0; k0 < k; k0 += kRun) {
      const Index n = Min(kRun, k - k0);
      const bool direct = type == DataType::kF32 && n == kRun;
      if (!direct) {
        for (Index r = 0; r < height; ++r) LoadRow(type, row(r0 + r, k0), n, run + r * kRun);
      }
      for (Index i0 = 0; i0 < n; i0 += kWidth) {
        F32 square[kWidth];
        for (Index r = 0; r < kWidth; ++r) {
          square[r] =
              r >= height ? F32{} : LoadVector<F32>(direct ? row(r0 + r, k0 + i0) : (const char*)(run + r * kRun + i0));
        }
        Transpose(square);
        const Index m = Min<Index>(kWidth, n - i0);
        for (Index i = 0; i < m; ++i) {
          float* to = panel + (k0 + i0 + i) * Width + r0;
          if (r0 + kWidth <= Width) {
            StoreVector(to, square[i]);
          } else {
            __builtin_memcpy(to, &square[i], Width % kWidth * sizeof(float));
          }
        }
      }
    }
  }
}

// Multiplies by scales that vary along K.
template <int Width, typename T>
void ScalePanel(const TileScale& s, Index r0, Index count, Index k0, Index k, T* panel) {
  for (Index i = 0; i < k; ++i) {
    const float* column = s.values + (k0 + i) / s.block_k * s.k_stride;
    for (Index r = 0; r < count; ++r) panel[i * Width + r] *= column[(r0 + r) / s.block_rows * s.row_stride];
  }
}

// Rows [r0, r0 + rows) and columns [k0, k0 + k) of X as panels[rows / Width, rounded up][k][Width].
template <int Width, typename T>
void PackPanels(const Operand& x, Index r0, Index rows, Index k0, Index k, T* panels) {
  if (x.k_major) {
    for (Index i = 0; i < k; ++i) {  // all panels at once: memory is read in its own order
      for (Index r = 0; r < rows; r += Width) {
        const Index count = Min<Index>(Width, rows - r);
        T* const to = panels + r * k + i * Width;
        LoadRow(x.type, x.At(r0 + r, k0 + i), count, to);
        for (Index j = count; j < Width; ++j) to[j] = 0;
      }
    }
  }
  for (Index r = 0; r < rows; r += Width) {
    const Index count = Min<Index>(Width, rows - r);
    T* const panel = panels + r * k;
    if (!x.k_major) {
      if constexpr (sizeof(T) == 4) {
        PackRows<Width>(
            x.type, count, k, [&](Index row, Index i) { return x.At(r0 + r + row, k0 + i); }, panel);
      } else {
        T run[kBlockK];
        for (Index j = 0; j < Width; ++j) {
          if (j < count) LoadRow(x.type, x.At(r0 + r + j, k0), k, run);
          for (Index i = 0; i < k; ++i) panel[i * Width + j] = j < count ? run[i] : 0;
        }
      }
    }
    if (x.scale.along_k) ScalePanel<Width>(x.scale, r0 + r, count, k0, k, panel);
  }
}

}  // namespace kernd::cpu::KERND_ISA
