// How sums of a tile become results, two neighbours at a time: for the tensor-core kernels.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/gpu/device/mma.cuh"
#include "kernels/gpu/matmul_epilogue.cuh"

namespace kernd::gpu {

// Two neighbours of a row, at element `at`; the second only where `both`.
template <typename T>
__device__ inline void StorePair(void* to, std::int64_t at, T x, T y, bool both) {
  struct alignas(2 * sizeof(T)) Pair {
    T x, y;
  };
  T* const place = static_cast<T*>(to) + at;
  if (both && reinterpret_cast<std::uintptr_t>(place) % sizeof(Pair) == 0) {
    *reinterpret_cast<Pair*>(place) = {x, y};
  } else {
    place[0] = x;
    if (both) place[1] = y;
  }
}

__device__ inline void StoreResults(DataType type, void* to, std::int64_t at, float x, float y, bool both) {
  const auto store_half = [&](std::uint32_t bits) {
    StorePair(to, at, static_cast<std::uint16_t>(bits), static_cast<std::uint16_t>(bits >> 16), both);
  };
  switch (type) {
    case DataType::kF16: store_half(Pack<DataType::kF16>(x, y)); return;
    case DataType::kBF16: store_half(Pack<DataType::kBF16>(x, y)); return;
    default: StorePair(to, at, x, y, both);
  }
}

// Where the tile's results go.
struct ResultPlace {
  std::int64_t item, split, c_offset;
  std::int64_t row0, col0;  // of the warp, in D
};

// Two sums of a row that exists, and two columns of which the first does. `sums`: where they go as they are, F32 or
// I32, [splits, batch, M, N]; null: results are made of them.
template <typename Sum>
__device__ inline void FinishPair(const MatmulEpilogue& e, void* sums, const ResultPlace& to, std::int64_t row,
                                  std::int64_t col, Sum x, Sum y) {
  const bool both = col + 1 < e.n;
  const std::int64_t at = (to.item * e.m + row) * e.n + col;
  if (sums != nullptr) return StorePair(sums, to.split * e.batch * e.m * e.n + at, x, y, both);
  if constexpr (std::is_same_v<Sum, std::int32_t>) {
    if (e.output == DataType::kI32) {  // exact: nothing but relu
      const bool relu = e.activation == Activation::kRelu;
      return StorePair(e.d, at, relu ? max(x, 0) : x, relu ? max(y, 0) : y, both);
    }
  }
  float results[2] = {static_cast<float>(x), static_cast<float>(y)};
  if (!e.plain) {
    results[0] = Finish<float>(e, x, to.c_offset, row, col);
    if (both) results[1] = Finish<float>(e, y, to.c_offset, row, col + 1);
  } else if (e.activation == Activation::kRelu) {
    for (float& r : results) r = Activate(Activation::kRelu, r);
  }
  StoreResults(e.output, e.d, at, results[0], results[1], both);
}

// Sums of kRows rows, from `row` on, two neighbouring columns of each; of the rows the first `rows` exist, of the
// columns the first at least. Finish() and rounding step by step for all of them, so that each branch is taken once and
// loads are in flight together.
template <int kRows>
__device__ inline void FinishRows(const MatmulEpilogue& e, const ResultPlace& to, std::int64_t row, int rows,
                                  std::int64_t col, float (&x)[2 * kRows]) {
  const bool both = col + 1 < e.n;
  const auto each = [&](const auto& step) {
#pragma unroll
    for (int i = 0; i < 2 * kRows; ++i) {
      if (i / 2 < rows && (i % 2 == 0 || both)) step(i, i / 2, i % 2);
    }
  };
  if (!e.plain) {
    const auto alpha = static_cast<float>(e.alpha);
    each([&](int i, int r, int c) {
      float factor = alpha;
      if (e.a_scale != nullptr) factor = Mul(factor, e.a_scale[(row + r) * e.a_scale_stride]);
      if (e.b_scale != nullptr) factor = Mul(factor, e.b_scale[(col + c) * e.b_scale_stride]);
      x[i] = Mul(x[i], factor);
    });
    if (e.c != nullptr) {
      const auto beta = static_cast<float>(e.beta);
      WithType(e.output, [&](auto type) {
        each([&](int i, int r, int c) {
          x[i] = fma(beta, LoadElement<float>(type(), e.c, to.c_offset + (row + r) * e.ldc + col + c), x[i]);
        });
      });
    }
    if (e.bias != nullptr) {
      float bias[2];
      for (int c = 0; c < 1 + both; ++c) bias[c] = LoadElement<float>(e.bias_type, e.bias, col + c);
      each([&](int i, int, int c) { x[i] = Add(x[i], bias[c]); });
    }
  }
  ActivateAll(e.activation, x);
  WithType(e.output, [&](auto type) {
    const std::int64_t at = (to.item * e.m + row) * e.n + col;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r < rows) StoreResults(type(), e.d, at + r * e.n, x[2 * r], x[2 * r + 1], both);
    }
  });
}

}  // namespace kernd::gpu
