// How matmul_simt.cu brings operands into shared memory: words, laid out [word of K][row], whatever the operand's type,
// orientation and alignment. A row is a row of A or a column of B.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>
#include <type_traits>

#include "kernels/gpu/matmul_epilogue.cuh"

namespace kernd::gpu {

struct SimtOperand {
  const void* data = nullptr;
  std::int64_t rows = 0, ld = 0;
  bool k_contiguous = false;  // else rows are
  bool vectors = false;       // every chunk can be loaded at once
  bool e5m2 = false;          // of F8: which one
  BatchStrides batch;
  // Scales of blocks of rows and K; null: none.
  const float* block_scale = nullptr;
  std::int64_t block_scale_stride = 0, block_rows = 1, block_k = 1;
};

// What a type is multiplied as: I8 as words of four along K (dp4a), everything else as single numbers.
template <DataType kType, bool kBlockScales>
struct SimtType {
  static constexpr bool kScaled = kBlockScales;
  static constexpr bool kDot = kType == DataType::kI8 && !kBlockScales;
  static constexpr int kPerWord = kDot ? 4 : 1;
  using Element = std::conditional_t<
      kType == DataType::kF16, __half,
      std::conditional_t<kType == DataType::kBF16, __nv_bfloat16,
                         std::conditional_t<kType == DataType::kF32, float,
                                            std::conditional_t<kType == DataType::kF64, double,
                                                               std::conditional_t<kType == DataType::kI8, std::int8_t,
                                                                                  std::uint8_t>>>>>;
  using Word = std::conditional_t<kType == DataType::kF64, double, std::conditional_t<kDot, std::int32_t, float>>;

  // Bytes at a multiple of which four elements in memory (16 along K where four make a word) can be loaded at once.
  static constexpr int kVectorBytes = sizeof(Element) >= 4 ? 16 : 4 * sizeof(Element);

  static __device__ Word Convert(Element x, bool e5m2) {
    if constexpr (kType == DataType::kF16) {
      return __half2float(x);
    } else if constexpr (kType == DataType::kBF16) {
      return __bfloat162float(x);
    } else if constexpr (IsFloat8(kType)) {
      const __nv_fp8_interpretation_t format = e5m2 ? __NV_E5M2 : __NV_E4M3;
      return __half2float(__half(__nv_cvt_fp8_to_halfraw(x, format)));
    } else {
      return static_cast<Word>(x);
    }
  }

  static __device__ Word MultiplyAdd(Word a, Word b, Word sum) {
    if constexpr (kDot) {
      return __dp4a(a, b, sum);
    } else {
      return fma(a, b, sum);
    }
  }
};

template <typename T>
struct alignas(sizeof(T) >= 4 ? 16 : 4 * sizeof(T)) Four {
  T at[4];
};

template <typename Type>
__device__ inline typename Type::Word Scaled(const SimtOperand& o, typename Type::Word x, std::int64_t row,
                                             std::int64_t k) {
  if constexpr (Type::kScaled) {
    if (o.block_scale != nullptr) {
      x = Mul(x, o.block_scale[Divide(row, o.block_rows) * o.block_scale_stride + Divide(k, o.block_k)]);
    }
  }
  return x;
}

// Words (row, k .. k + 3 words) or (row .. row + 3, k), which start at `from`. `k` counts elements. kInside: all of
// them are inside the operand, and it has vectors; else what is outside is zero.
template <typename Type, bool kInside>
__device__ inline void LoadChunk(const SimtOperand& o, const typename Type::Element* from, std::int64_t row,
                                 std::int64_t k, std::int64_t k_size, typename Type::Word (&words)[4]) {
  using Element = typename Type::Element;
  // `r` rows and `at` elements of K further.
  const auto element = [&](int r, int at) {
    if (row + r >= o.rows || k + at >= k_size) return Element{};
    return from[o.k_contiguous ? r * o.ld + at : at * o.ld + r];
  };
  if constexpr (Type::kDot && kInside) {
    if (o.k_contiguous) {
      const int4 v = *reinterpret_cast<const int4*>(from);
      words[0] = v.x, words[1] = v.y, words[2] = v.z, words[3] = v.w;
    } else {
      // Four steps of K, each four rows wide, turned into four rows, each four steps long.
      unsigned v[4];
      for (int i = 0; i < 4; ++i) v[i] = *reinterpret_cast<const unsigned*>(from + i * o.ld);
      const unsigned low01 = __byte_perm(v[0], v[1], 0x5140), low23 = __byte_perm(v[2], v[3], 0x5140);
      const unsigned high01 = __byte_perm(v[0], v[1], 0x7362), high23 = __byte_perm(v[2], v[3], 0x7362);
      words[0] = static_cast<int>(__byte_perm(low01, low23, 0x5410));
      words[1] = static_cast<int>(__byte_perm(low01, low23, 0x7632));
      words[2] = static_cast<int>(__byte_perm(high01, high23, 0x5410));
      words[3] = static_cast<int>(__byte_perm(high01, high23, 0x7632));
    }
  } else if constexpr (Type::kDot) {
    for (int i = 0; i < 4; ++i) {
      unsigned word = 0;
      for (int j = 0; j < 4; ++j) {
        const Element x = o.k_contiguous ? element(0, 4 * i + j) : element(i, j);
        word |= static_cast<unsigned>(static_cast<std::uint8_t>(x)) << (8 * j);
      }
      words[i] = static_cast<int>(word);
    }
  } else {
    Four<Element> v;
    if constexpr (kInside) {
      v = *reinterpret_cast<const Four<Element>*>(from);
    } else {
      for (int i = 0; i < 4; ++i) v.at[i] = o.k_contiguous ? element(0, i) : element(i, 0);
    }
    for (int i = 0; i < 4; ++i) {
      const std::int64_t r = o.k_contiguous ? row : row + i, at = o.k_contiguous ? k + i : k;
      words[i] = Type::Convert(v.at[i], o.e5m2);
      // Scales end where the operand does.
      if (!Type::kScaled || kInside || (r < o.rows && at < k_size)) words[i] = Scaled<Type>(o, words[i], r, at);
    }
  }
}

// kWords words of K by kRows rows, on their way from memory to shared memory, held by kThreads threads.
template <typename Type, int kRows, int kWords, int kThreads>
struct TileInFlight {
  using Word = typename Type::Word;
  static constexpr int kPitch = kRows + 4;  // a multiple of 16 bytes that spreads columns over the banks
  static constexpr int kChunks = kRows * kWords / 4 / kThreads;
  static_assert(kChunks * kThreads * 4 == kRows * kWords);
  static_assert(kThreads % (kWords / 4) == 0 && kThreads % (kRows / 4) == 0);

  Word words[kChunks][4];

  // Where chunk i of this thread is in the tile.
  static __device__ int RowOf(bool k_contiguous, int i) {
    const int chunk = static_cast<int>(threadIdx.x) + i * kThreads;
    return k_contiguous ? chunk / (kWords / 4) : chunk % (kRows / 4) * 4;
  }
  static __device__ int WordOf(bool k_contiguous, int i) {
    const int chunk = static_cast<int>(threadIdx.x) + i * kThreads;
    return k_contiguous ? chunk % (kWords / 4) * 4 : chunk / (kRows / 4);
  }

  // From row `row0` and element `k0` of K on.
  __device__ void Load(const SimtOperand& o, const typename Type::Element* base, std::int64_t row0, std::int64_t k0,
                       std::int64_t k_size) {
    const bool inside = o.vectors && row0 + kRows <= o.rows && k0 + kWords * Type::kPerWord <= k_size;
    std::int64_t row = row0 + RowOf(o.k_contiguous, 0), k = k0 + WordOf(o.k_contiguous, 0) * Type::kPerWord;
    const typename Type::Element* from = base + (o.k_contiguous ? row * o.ld + k : k * o.ld + row);
    // From one chunk of a thread to its next.
    const int next_row = o.k_contiguous ? kThreads / (kWords / 4) : 0;
    const int next_k = o.k_contiguous ? 0 : kThreads / (kRows / 4) * Type::kPerWord;
    const std::int64_t next = (next_row + next_k) * o.ld;
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      if (inside) {
        LoadChunk<Type, true>(o, from, row, k, k_size, words[i]);
      } else {
        LoadChunk<Type, false>(o, from, row, k, k_size, words[i]);
      }
      row += next_row, k += next_k, from += next;
    }
  }

  __device__ void Store(bool k_contiguous, Word* tile) const {
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      Word* to = tile + WordOf(k_contiguous, i) * kPitch + RowOf(k_contiguous, i);
      if (k_contiguous) {
        for (int j = 0; j < 4; ++j) to[j * kPitch] = words[i][j];
      } else {
        for (int j = 0; j < 4; ++j) to[j] = words[i][j];
      }
    }
  }
};

}  // namespace kernd::gpu
