// What both tensor-core attention kernels do with fragments: a warp's rows of S and O in registers, 16 at a time.
//
// With lane = 4 g + t, accumulator [n][i] is row g + 8 (i / 2), column 8 n + 2 t + i % 2: a lane has two rows, and the
// four lanes of a g have them together.
#pragma once

#include "kernels/gpu/attention_mma.h"
#include "kernels/gpu/device/copy_async.cuh"
#include "kernels/gpu/device/math.cuh"
#include "kernels/gpu/device/mma.cuh"
#include "kernels/gpu/device/shared.cuh"

namespace kernd::gpu::attention_mma {

inline constexpr unsigned kWarp = 32, kAll = ~0u;

// Code for SM 7.5 has no kernels of the newer kinds: they are never launched there, as min_sm says.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
inline constexpr bool kHasSm80 = false;
#else
inline constexpr bool kHasSm80 = true;
#endif

// How logits come from dot products.
struct Logits {
  bool general;  // factor, mask, bias, slopes and cap are applied one by one; otherwise the factor alone, with Exp2
  float binary;  // of what the softmax gets, to logarithms of base 2

  __device__ static Logits Of(const AttentionParams& p) {
    // The maximum is taken before the factor: that wants a positive one, with room above it.
    const bool plain = Factor(p) > 0 && Factor(p) < 1e30f;
    const bool general =
        !plain || p.args.mask != nullptr || p.args.bias != nullptr || p.tables.alibi_slopes != nullptr || p.softcap > 0;
    return {general, general ? kLog2E : Factor(p) * kLog2E};
  }
  __device__ static float Factor(const AttentionParams& p) { return static_cast<float>(p.scale); }
  // Of what the softmax gets, to natural logarithms.
  __device__ float Natural(const AttentionParams& p) const { return general ? 1.0f : Factor(p); }
};

// A row of the block, as shared memory has it. Keys first .. last - 1 are its own; rows that are not computed: 0, 0.
// Positions within a sequence fit into an int: attention_mma.cu refuses longer ones.
struct MmaRow {
  int query, head, first, last;
};

__device__ inline MmaRow MmaRowOf(const AttentionParams& p, const AttentionSequence& s, const AttentionWork& work,
                                  unsigned row) {
  const auto at = static_cast<unsigned>(work.first_row) + row, group = static_cast<unsigned>(p.group);
  const unsigned query = at / group;
  MmaRow out{.query = static_cast<int>(query)};
  out.head = static_cast<int>(work.kv_head * p.group + (at - query * group));
  if (query < s.q_length) {
    const std::int64_t position = query + s.diagonal;
    const auto clamp = [&](std::int64_t key) {
      return static_cast<int>(max(min(key, work.last_key), static_cast<std::int64_t>(0)));
    };
    out.first = clamp(position - p.window_left);
    out.last = clamp(position + p.window_right + 1);
  }
  return out;
}

// Where the lane's row of ldmatrix is, for operands whose rows are those of the product (Q), its columns (K), or its
// depth (V); `tile` is the shared address of 16 x 16 elements at row `row` and chunk `chunk`.
template <unsigned kCols>
__device__ inline std::uint32_t RowOperand(std::uint32_t tile, unsigned lane, unsigned row, unsigned chunk) {
  return tile + SwizzledRows<kCols>::Offset(row + lane % 16, chunk + lane / 16);
}
template <unsigned kCols>
__device__ inline std::uint32_t ColumnOperand(std::uint32_t tile, unsigned lane, unsigned row, unsigned chunk) {
  return tile + SwizzledRows<kCols>::Offset(row + lane / 16 * 8 + lane % 8, chunk + lane / 8 % 2);
}

// 64-key (or fewer) slice of one row of S: its keys of the tile that the row may see; others become minus infinity.
template <unsigned kTiles>
__device__ inline void Select(const MmaRow& row, int base, unsigned lane, unsigned half, float (&s)[kTiles][4]) {
  const int to_lane = base + static_cast<int>(lane % 4 * 2), first = row.first - to_lane, last = row.last - to_lane;
#pragma unroll
  for (unsigned n = 0; n < kTiles; ++n) {
#pragma unroll
    for (unsigned e = 0; e < 2; ++e) {
      const int key = static_cast<int>(8 * n + e);  // from the lane's first
      if (key < first || key >= last) s[n][2 * half + e] = -KERND_INFINITY;
    }
  }
}

// Dot products become logits, for the rare options: by way of local memory, where a loop can find them. Unrolled, they
// would be the bulk of the code.
template <unsigned kTiles>
__device__ inline void Adjust(const AttentionParams& p, const AttentionSequence& s, const AttentionWork& work,
                              const MmaRow& at, int base, unsigned lane, unsigned half, float (&x)[kTiles][4]) {
  float local[2 * kTiles];
#pragma unroll
  for (unsigned i = 0; i < 2 * kTiles; ++i) local[i] = x[i / 2][2 * half + i % 2];
  if (at.first < at.last) {
    const AttentionRow row = RowOf(p, s, work.b, at.head, at.query);
    const float center = static_cast<float>(row.position - base);
#pragma unroll 1
    for (unsigned i = 0; i < 2 * kTiles; ++i) {
      const unsigned in_tile = i / 2 * 8 + lane % 4 * 2 + i % 2;
      const int key = base + static_cast<int>(in_tile);
      if (key < at.first || key >= at.last) continue;
      local[i] = Logit(p, row, key, fabsf(center - static_cast<float>(in_tile)), local[i] * Logits::Factor(p));
    }
  }
#pragma unroll
  for (unsigned i = 0; i < 2 * kTiles; ++i) x[i / 2][2 * half + i % 2] = local[i];
}

// Maximum and sum of a lane's row, the sum being the lane's share.
struct RowState {
  float largest, sum;
};

// Moves a row on by a tile of logits, which become probabilities. Returns what O is to be multiplied with: exactly 1
// where the maximum stays, so that a tile of which the row sees nothing leaves its bits alone.
template <unsigned kTiles>
__device__ inline float Soften(const Logits& logits, unsigned half, float (&s)[kTiles][4], RowState& state) {
  float most = state.largest;
#pragma unroll
  for (unsigned n = 0; n < kTiles; ++n) most = fmaxf(most, fmaxf(s[n][2 * half], s[n][2 * half + 1]));  // skips NaN
  most = fmaxf(most, __shfl_xor_sync(kAll, most, 1));
  most = fmaxf(most, __shfl_xor_sync(kAll, most, 2));
  const float pivot = most == -KERND_INFINITY ? 0.0f : most;
  const float shrink = Exp2((state.largest - pivot) * logits.binary);
  state.largest = most;
  float sum = 0;
#pragma unroll
  for (unsigned n = 0; n < kTiles; ++n) {
#pragma unroll
    for (unsigned e = 0; e < 2; ++e) {
      float& x = s[n][2 * half + e];
      x = Exp2((x - pivot) * logits.binary);
      sum += x;
    }
  }
  state.sum = state.sum * shrink + sum;
  return shrink;
}

__device__ inline float QuadSum(float x) {
  x += __shfl_xor_sync(kAll, x, 1);
  return x + __shfl_xor_sync(kAll, x, 2);
}

// The lane's part of P as the left operand of P V, for 16 keys.
template <DataType kType, unsigned kTiles>
__device__ inline void PackProbabilities(const float (&s)[kTiles][4], unsigned step, std::uint32_t (&a)[4]) {
#pragma unroll
  for (unsigned r = 0; r < 4; ++r) {
    const float(&from)[4] = s[2 * step + r / 2];
    a[r] = Pack<kType>(from[2 * (r % 2)], from[2 * (r % 2) + 1]);
  }
}

// --- With care
// -------------------------------------------------------------------------------------------------------- A product
// with 0 does not hide NaN. So a block whose O has become NaN or infinite does its work again with care: keys that
// weigh nothing have the probability -0, which no exponential gives, and the values that are not finite are left out of
// P V and added to the rows that see their keys. All other rows get the same bits as before. The same code takes the
// rare options, so that the code for all other problems has neither.

// Marks what is hidden: logits of minus infinity, before they become probabilities.
template <unsigned kTiles>
__device__ inline std::uint32_t HiddenKeys(const float (&s)[kTiles][4], unsigned half) {
  static_assert(kTiles <= 16);
  std::uint32_t hidden = 0;
#pragma unroll
  for (unsigned i = 0; i < 2 * kTiles; ++i) {
    if (s[i / 2][2 * half + i % 2] == -KERND_INFINITY) hidden |= 1u << i;
  }
  return hidden;
}
template <unsigned kTiles>
__device__ inline void HideKeys(std::uint32_t hidden, unsigned half, float (&s)[kTiles][4]) {
#pragma unroll
  for (unsigned i = 0; i < 2 * kTiles; ++i) {
    if ((hidden >> i & 1) != 0) s[i / 2][2 * half + i % 2] = -0.0f;
  }
}

template <DataType kType>
inline constexpr std::uint32_t kInfinite = kType == DataType::kF16 ? 0x7c00 : 0x7f80;

// Of a pair of elements, those halves for which `chosen(bits)`, with `value` in their place.
template <typename Chosen>
__device__ inline std::uint32_t HalvesOf(std::uint32_t pair, std::uint32_t value, const Chosen& chosen) {
  return (chosen(pair & 0xffff) ? value : 0) | (chosen(pair >> 16) ? value << 16 : 0);
}

// Adds the values that are not finite of 16 keys and 8 columns to the rows that see their keys.
template <DataType kType, bool kWide>
__device__ inline void AddInfinities(float (&o)[4], const std::uint32_t (&p)[4], std::uint32_t b0, std::uint32_t b1) {
  constexpr std::uint32_t kOne = kType == DataType::kF16 ? 0x3c00 : 0x3f80;
  std::uint32_t sees[4];
#pragma unroll
  for (unsigned r = 0; r < 4; ++r) sees[r] = HalvesOf(p[r], kOne, [](std::uint32_t bits) { return bits != 0x8000; });
    // How many infinities of either sign a row sees; NaN counts as one of each, and their sum is NaN.
#pragma unroll
  for (unsigned sign = 0; sign < 2; ++sign) {
    const auto counts = [&](std::uint32_t bits) {
      return (bits & kInfinite<kType>) == kInfinite<kType> &&
             ((bits & 0x7fff) != kInfinite<kType> || bits >> 15 == sign);
    };
    float seen[4] = {};
    Multiply<kType, kWide>(seen, sees, HalvesOf(b0, kOne, counts), HalvesOf(b1, kOne, counts));
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) {
      if (seen[i] > 0) o[i] += sign == 0 ? KERND_INFINITY : -KERND_INFINITY;
    }
  }
}

// Whether all of O is finite.
template <unsigned kTiles>
__device__ inline bool AllFinite(const float (&o)[kTiles][4]) {
  float poison = 0;  // becomes NaN with the first infinity or NaN
#pragma unroll
  for (unsigned n = 0; n < kTiles; ++n) {
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) poison = fmaf(o[n][i], 0.0f, poison);
  }
  return poison == 0;
}

// O += P V of 16 keys, whose values lie in a swizzled tile from row `key` on.
template <DataType kType, bool kWide, bool kCareful, unsigned kDv, unsigned kM>
__device__ inline void AddValues(const std::uint32_t (&p)[kM][4], std::uint32_t values, unsigned lane, unsigned key,
                                 float (&o)[kM][kDv / 8][4]) {
#pragma unroll
  for (unsigned n = 0; n < kDv / 16; ++n) {
    std::uint32_t v[4];
    LoadTransposed(RowOperand<kDv>(values, lane, key, 2 * n), v);
    [[maybe_unused]] const std::uint32_t all[4] = {v[0], v[1], v[2], v[3]};
    [[maybe_unused]] bool finite = true;
    if constexpr (kCareful) {
#pragma unroll
      for (unsigned i = 0; i < 4; ++i) {
        v[i] &=
            HalvesOf(v[i], 0xffff, [](std::uint32_t bits) { return (bits & kInfinite<kType>) != kInfinite<kType>; });
        finite = finite && v[i] == all[i];
      }
    }
#pragma unroll
    for (unsigned m = 0; m < kM; ++m) {
      Multiply<kType, kWide>(o[m][2 * n], p[m], v[0], v[1]);
      Multiply<kType, kWide>(o[m][2 * n + 1], p[m], v[2], v[3]);
    }
    if constexpr (kCareful) {
      if (__any_sync(kAll, !finite) == 0) continue;
#pragma unroll
      for (unsigned m = 0; m < kM; ++m) {
        AddInfinities<kType, kWide>(o[m][2 * n], p[m], all[0], all[1]);
        AddInfinities<kType, kWide>(o[m][2 * n + 1], p[m], all[2], all[3]);
      }
    }
  }
}

// Copies of kRows rows of kCols elements into swizzled tiles, by kThreads threads: each has the same chunks of some
// rows.
template <unsigned kRows, unsigned kCols, unsigned kThreads>
struct RowCopies {
  using Place = SwizzledRows<kCols>;
  static constexpr unsigned kAcross =
      Place::kChunks & (~Place::kChunks + 1);  // chunks of a row in turn: a power of two
  static constexpr unsigned kDown = kThreads / kAcross < kRows ? kThreads / kAcross : kRows;
  static_assert(kRows % kDown == 0 && kDown * kAcross == kThreads);

  // Elements from the first of the tile to the thread's first.
  __device__ static std::int64_t Start(unsigned thread, std::int64_t stride) {
    return thread / kAcross * stride + 8 * (thread % kAcross);
  }

  // Enqueues the thread's copies from `from` on, which then points to those of the next tile. What lies past `rows` or
  // `cols` becomes zero and is not read.
  template <bool kAsync>
  __device__ static void Bring(std::uint32_t to, const std::uint16_t*& from, std::int64_t stride, unsigned rows,
                               unsigned cols, unsigned thread) {
    const unsigned row = thread / kAcross, chunk = thread % kAcross;
#pragma unroll
    for (unsigned i = 0; i < kRows; i += kDown) {
#pragma unroll
      for (unsigned j = 0; j < Place::kChunks; j += kAcross) {
        Copy16<kAsync>(to + Place::Offset(row + i, chunk + j), from + 8 * j, row + i < rows && 8 * (chunk + j) < cols);
      }
      from += kDown * stride;
    }
  }
};

}  // namespace kernd::gpu::attention_mma
