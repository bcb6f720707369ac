// Packed matmul of one tile; compiled once per instruction set.
//
// For each block of K (256): A is packed into panels of kRows rows, B into panels of two registers of columns, both
// converted to the type of the sums on the way, tails zero-filled; then every panel pair runs the micro-kernel: kRows x
// 2 registers of sums, one fused multiply-add for each k in turn. An element's sum thus depends on its row of A, its
// column of B and K alone: not on M, N, the tile, its neighbours or the thread.
#include "server/cpu/matmul_tile.h"

#include "server/cpu/matmul_epilogue.h"
#include "server/cpu/pack.h"
#include "server/cpu/simd.h"

namespace kernd::cpu::KERND_ISA {
namespace {

template <typename T>
inline constexpr int kPanelCols = 2 * kLanes<T>;

Index RoundUp(Index n, Index to) {
  return (n + to - 1) / to * to;
}

template <typename T>
Index PanelBytes(Index rows, Index cols) {
  return (RoundUp(rows, kRows) + RoundUp(cols, kPanelCols<T>)) * kBlockK * static_cast<Index>(sizeof(T));
}

Index ScratchBytes(TileSum sum, Index rows, Index cols) {
  const bool f64 = sum == TileSum::kF64;
  const Index panel_cols = f64 ? kPanelCols<double> : kPanelCols<float>;
  const Index sums = RoundUp(rows, kRows) * RoundUp(cols, panel_cols) * (f64 ? 8 : 4);
  return RoundUp(f64 ? PanelBytes<double>(rows, cols) : PanelBytes<float>(rows, cols), 64) + RoundUp(sums, 64);
}

// Adds one register of a block's sums to those of the blocks before; the first block sets them.
void AddSums(F32 x, float* at, bool first) {
  StoreVector(at, first ? x : LoadVector<F32>(at) + x);
}
void AddSums(F64 x, double* at, bool first) {
  StoreVector(at, first ? x : LoadVector<F64>(at) + x);
}
void AddSums(F32 x, std::int32_t* at, bool first) {
  const U32 exact = (U32) __builtin_convertvector(x, I32);  // unsigned: wraps
  StoreVector(at, first ? exact : LoadVector<U32>(at) + exact);
}

// Adds to (or, in the first block of K, sets) a kRows x kPanelCols block of sums. Rows are `stride` sums apart.
template <typename T, typename Sum>
void MicroKernel(const T* __restrict a, const T* __restrict b, Index k, Sum* sums, Index stride, bool first) {
  typedef Vector<T> V;
  constexpr int w = kLanes<T>;
  V acc[kRows][2] = {};
  for (Index i = 0; i < k; ++i, a += kRows, b += 2 * w) {
    const V b0 = LoadVector<V>(b), b1 = LoadVector<V>(b + w);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const V x = Splat(a[r]);
      acc[r][0] = Fma(x, b0, acc[r][0]);
      acc[r][1] = Fma(x, b1, acc[r][1]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    AddSums(acc[r][0], sums + r * stride, first);
    AddSums(acc[r][1], sums + r * stride + w, first);
  }
}

template <typename T, typename Sum>
void RunTile(const MatmulJob& job, const MatmulTile& tile, void* scratch) {
  constexpr int nr = kPanelCols<T>;
  const Index rows = RoundUp(tile.rows, kRows), cols = RoundUp(tile.cols, nr);
  T* const a = static_cast<T*>(scratch);
  T* const b = a + rows * kBlockK;
  Sum* const sums =
      reinterpret_cast<Sum*>(static_cast<char*>(scratch) + RoundUp(PanelBytes<T>(tile.rows, tile.cols), 64));
  if (job.k == 0) __builtin_memset(sums, 0, static_cast<std::size_t>(rows * cols) * sizeof(Sum));
  const Operand op_a = {tile.a, job.a_type, job.lda, job.transpose_a, job.a_scale};
  const Operand op_b = {tile.b, job.b_type, job.ldb, !job.transpose_b, job.b_scale};
  for (Index k0 = 0; k0 < job.k; k0 += kBlockK) {
    const Index k = Min(kBlockK, job.k - k0);
    PackPanels<kRows>(op_a, tile.m0, tile.rows, k0, k, a);
    PackPanels<nr>(op_b, tile.n0, tile.cols, k0, k, b);
    for (Index r = 0; r < rows; r += kRows) {
      for (Index c = 0; c < cols; c += nr) MicroKernel(a + r * k, b + c * k, k, sums + r * cols + c, cols, k0 == 0);
    }
  }
  Epilogue(job, tile, sums, cols);
}

void Run(const MatmulJob& job, const MatmulTile& tile, void* scratch) {
  switch (job.sum) {
    case TileSum::kF32: return RunTile<float, float>(job, tile, scratch);
    case TileSum::kF64: return RunTile<double, double>(job, tile, scratch);
    case TileSum::kI32: return RunTile<float, std::int32_t>(job, tile, scratch);
  }
}

void RunEpilogue(const MatmulJob& job, const MatmulTile& tile, const void* sums, Index row_stride) {
  switch (job.sum) {
    case TileSum::kF32: return Epilogue(job, tile, static_cast<const float*>(sums), row_stride);
    case TileSum::kF64: return Epilogue(job, tile, static_cast<const double*>(sums), row_stride);
    case TileSum::kI32: return Epilogue(job, tile, static_cast<const std::int32_t*>(sums), row_stride);
  }
}

}  // namespace

extern const MatmulKernel kMatmulKernel = {kRows, kPanelCols<float>, ScratchBytes, Run, RunEpilogue};

}  // namespace kernd::cpu::KERND_ISA
