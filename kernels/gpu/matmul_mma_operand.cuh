// How the tensor-core matmul brings a tile of an operand into shared memory, and from there into fragments. A row is a
// row of A or a column of B; a tile is kRows of them by kK elements of K.
#pragma once

#include <cstdint>

#include "kernels/gpu/device/copy_async.cuh"
#include "kernels/gpu/device/mma.cuh"
#include "kernels/gpu/device/shared.cuh"
#include "kernels/gpu/matmul_epilogue.cuh"
#include "kernels/gpu/matmul_mma.h"

namespace kernd::gpu::matmul_mma {

inline constexpr int kChunk = 16;      // bytes: what copies move, and a row of a matrix of ldmatrix
inline constexpr int kStepBytes = 32;  // of K, that one step of mma.sync takes, whatever the type

// In shared memory. Lines are rows, or, kAlongK not, elements of K: ldmatrix.trans turns them, of 16-bit types alone.
template <int kSize, int kRows, int kK, bool kAlongK>
struct SharedOperand {
  static_assert(kAlongK || kSize == 2);
  static constexpr int kElement = kSize, kTileRows = kRows, kTileK = kK;
  static constexpr bool kLinesAreRows = kAlongK;
  static constexpr int kLines = kAlongK ? kRows : kK, kPitch = (kAlongK ? kK : kRows) * kSize;
  static constexpr int kChunks = kPitch / kChunk, kBytes = kLines * kPitch;
  static constexpr int kPerChunk = kChunk / kSize;  // elements

  __device__ static std::uint32_t Offset(int line, int chunk) {
    return SwizzledRows<static_cast<unsigned>(kPitch / 2)>::Offset(static_cast<unsigned>(line),
                                                                   static_cast<unsigned>(chunk));
  }
};

// The part of an operand that a block reads: rows from its first on, of one batch item, up to `k_end`.
struct OperandView {
  const char* from;  // (its first row, element 0 of K)
  std::int64_t line_bytes;
  int rows;  // that there are, at most a tile's
};

template <typename Shared>
__device__ inline OperandView ViewOf(const MmaOperand& o, std::int64_t item, std::int64_t row0) {
  const std::int64_t element = OffsetOf(o.batch, item) + (o.along_k ? row0 * o.ld : row0);
  return {static_cast<const char*>(o.data) + element * Shared::kElement, o.ld * Shared::kElement,
          static_cast<int>(min(o.rows - row0, static_cast<std::int64_t>(Shared::kTileRows)))};
}

// --- chunks of 16 bytes through registers, whatever their alignment --------------------------------------------------

template <int kSize>
__device__ inline std::uint32_t LoadBits(const char* from) {
  if constexpr (kSize == 1) {
    return *reinterpret_cast<const std::uint8_t*>(from);
  } else if constexpr (kSize == 2) {
    return *reinterpret_cast<const std::uint16_t*>(from);
  } else {
    return *reinterpret_cast<const std::uint32_t*>(from);
  }
}

// The first `count` of a chunk's elements, `stride` bytes apart, and zeros after them. `width`: as MmaOperand has it.
template <int kSize>
__device__ inline uint4 LoadChunk(const char* from, std::int64_t stride, int count, int width) {
  constexpr int kPerWord = 4 / kSize, kPerChunk = kChunk / kSize;
  if (count >= kPerChunk && stride == kSize && width == 16) return *reinterpret_cast<const uint4*>(from);
  std::uint32_t words[4] = {};
  if (count >= kPerChunk && stride == kSize && width >= 4) {
#pragma unroll
    for (int w = 0; w < 4; ++w) words[w] = LoadBits<4>(from + 4 * w);
  } else {
#pragma unroll
    for (int e = 0; e < kPerChunk; ++e) {
      if (e < count) words[e / kPerWord] |= LoadBits<kSize>(from + e * stride) << (8 * kSize * (e % kPerWord));
    }
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

// --- cp.async, where every line is aligned to 16 bytes ---------------------------------------------------------------

// The chunks of each stage that one thread copies, one of every kLinesAtOnce-th line. From one chunk to the next, and
// from the last of a stage to the first of the next stage, a pointer moves on.
template <typename Shared, int kThreads>
class AsyncLoader {
 public:
  static constexpr int kLinesAtOnce = kThreads / Shared::kChunks;
  static constexpr int kEach = (Shared::kLines + kLinesAtOnce - 1) / kLinesAtOnce;
  static_assert(kThreads % Shared::kChunks == 0 && kLinesAtOnce % 8 == 0);  // after 8 lines, swizzles are the same

  // From element `k0` of K on.
  __device__ AsyncLoader(const OperandView& v, std::int64_t k0)
      : jump_(kLinesAtOnce * v.line_bytes),
        step_((Shared::kLinesAreRows ? Shared::kTileK * Shared::kElement : Shared::kTileK * v.line_bytes) -
              kEach * jump_),
        rows_(v.rows),
        to_(Shared::Offset(Line(), Chunk())) {
    from_ = v.from + (Shared::kLinesAreRows ? k0 * Shared::kElement : k0 * v.line_bytes) + Line() * v.line_bytes +
            Chunk() * kChunk;
  }

  // Whether all of a stage is there, if `k_left` elements of K are.
  __device__ bool IsWhole(std::int64_t k_left) const { return rows_ == Shared::kTileRows && k_left >= Shared::kTileK; }

  // Part `part` of `parts` of a stage, into the one at `stage`, `when` it is whole. In their order, whole or not.
  __device__ void IssuePart(int part, int parts, std::uint32_t stage, bool when) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (i * parts / kEach != part) continue;
      CopyAsyncIf(when && InTile(i), stage + to_ + i * kLinesAtOnce * Shared::kPitch, from_);
      from_ += i + 1 == kEach ? jump_ + step_ : jump_;
    }
  }

  // All of a stage that is not whole, before its parts.
  __device__ void IssueEdge(int k_left, std::uint32_t stage) const {
    const int lines = Shared::kLinesAreRows ? rows_ : k_left;
    const int in_line = (Shared::kLinesAreRows ? k_left : rows_) - Chunk() * Shared::kPerChunk;
    std::uint32_t to = stage + to_;
    const char* from = from_;
#pragma unroll 1
    for (int i = 0; i < kEach; ++i) {
      const int count = Line() + i * kLinesAtOnce < lines ? in_line : 0;
      if (!InTile(i)) {
      } else if (count <= 0 || count >= Shared::kPerChunk) {
        CopyAsync(to, from, count > 0);
      } else {
        StoreShared(to, LoadChunk<Shared::kElement>(from, Shared::kElement, count, 0));
      }
      to += kLinesAtOnce * Shared::kPitch;
      from += jump_;
    }
  }

 private:
  __device__ static int Line() {
    return static_cast<int>(threadIdx.x) / Shared::kChunks;
  }
  __device__ static int Chunk() {
    return static_cast<int>(threadIdx.x) % Shared::kChunks;
  }
  __device__ static bool InTile(int i) {
    return Shared::kLines % kLinesAtOnce == 0 || Line() + i * kLinesAtOnce < Shared::kLines;
  }

  const char* from_;
  std::int64_t jump_, step_;
  int rows_;
  std::uint32_t to_;
};

// --- through registers, a stage at a time ---------------------------------------------------------------------------

template <typename Shared, int kThreads>
struct RegisterLoader {
  static constexpr int kTotal = Shared::kLines * Shared::kChunks;
  static constexpr int kEach = (kTotal + kThreads - 1) / kThreads;  // chunks of a thread

  struct Place {
    int line, chunk;
  };
  // Of the thread's chunk i. Neighbours are such that they read neighbouring memory.
  __device__ static Place PlaceOf(bool turned, int i) {
    const int at = static_cast<int>(threadIdx.x) + i * kThreads;
    return turned ? Place{at % Shared::kLines, at / Shared::kLines} : Place{at / Shared::kChunks, at % Shared::kChunks};
  }
  // Memory has elements of K one line after the other, shared memory row after row: only of types that ldmatrix.trans
  // does not turn.
  __device__ static bool Turned(const MmaOperand& o) { return Shared::kLinesAreRows && !o.along_k; }

  __device__ static uint4 Load(const MmaOperand& o, const OperandView& v, std::int64_t k0, int k_left, int i) {
    const bool turned = Turned(o);
    const Place place = PlaceOf(turned, i);
    const int at = place.chunk * Shared::kPerChunk;
    const int lines_left = Shared::kLinesAreRows ? v.rows : k_left;
    const int count = (Shared::kLinesAreRows ? k_left : v.rows) - at;
    if (place.line >= lines_left || (kTotal % kThreads != 0 && place.chunk >= Shared::kChunks)) {
      return make_uint4(0, 0, 0, 0);
    }
    if (turned) {
      const char* from = v.from + (k0 + at) * v.line_bytes + place.line * Shared::kElement;
      return LoadChunk<Shared::kElement>(from, v.line_bytes, count, 0);
    }
    const char* from = v.from + (Shared::kLinesAreRows ? k0 * Shared::kElement : k0 * v.line_bytes) +
                       place.line * v.line_bytes + at * Shared::kElement;
    return LoadChunk<Shared::kElement>(from, Shared::kElement, count, o.width);
  }

  __device__ static void Store(const MmaOperand& o, const uint4& x, int i, std::uint32_t to) {
    const Place place = PlaceOf(Turned(o), i);
    if (kTotal % kThreads != 0 && (place.line >= Shared::kLines || place.chunk >= Shared::kChunks)) return;
    StoreShared(to + Shared::Offset(place.line, place.chunk), x);
  }
};

// --- fragments -------------------------------------------------------------------------------------------------------

// How a warp reads 16 rows and a step of K at a time, as mma.sync wants them: of A, or, kIsA not, of B, where registers
// 0 and 1 are the first 8 columns' and 2 and 3 the others'. All places are the lane's first one with bits of its chunk
// turned over, and a constant: 16 lines further on, swizzles are the same.
template <typename Shared, bool kIsA>
class FragmentReader {
 public:
  // `row0`: the warp's first, a multiple of its number of rows, which is a power of two.
  __device__ explicit FragmentReader(int row0) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    // Of the two bits that tell the four matrices apart, one is for rows and one for K.
    const int low = lane / 8 % 2, high = lane / 16, rows = kIsA ? low : high, k = kIsA ? high : low;
    first_ = Shared::kLinesAreRows ? Shared::Offset(row0 + lane % 8 + 8 * rows, k)
                                   : Shared::Offset(lane % 8 + 8 * k, row0 / 8 + rows);
  }

  // Rows 16 i .. 16 i + 15, step `step`.
  __device__ void Load(std::uint32_t stage, int i, int step, std::uint32_t (&r)[4]) const {
    if constexpr (Shared::kLinesAreRows) {
      LoadMatrices(stage + (first_ ^ (2 * kChunk * step)) + 16 * i * Shared::kPitch, r);
    } else {
      LoadTransposed(stage + (first_ ^ (2 * kChunk * i)) + 16 * step * Shared::kPitch, r);
    }
  }

 private:
  std::uint32_t first_;
};

}  // namespace kernd::gpu::matmul_mma
