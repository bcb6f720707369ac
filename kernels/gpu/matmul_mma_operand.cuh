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

// The chunks of each stage that one thread copies, one of every kLinesAtOnce-th line; places move on with the stages.
template <typename Shared, int kThreads>
class AsyncLoader {
 public:
  // From element `k0` of K on.
  __device__ AsyncLoader(const OperandView& v, std::int64_t k0)
      : line_bytes_(v.line_bytes), rows_(v.rows), to_(Shared::Offset(Line(), Chunk())) {
    from_ = v.from + (Shared::kLinesAreRows ? k0 * Shared::kElement : k0 * v.line_bytes) + Line() * v.line_bytes +
            Chunk() * kChunk;
  }

  // Part kPart of kParts of the next stage, into the one at `stage`: kK elements of K, of which `k_left` exist.
  template <int kPart, int kParts>
  __device__ void Issue(int k_left, std::uint32_t stage) const {
    constexpr int kFirst = kPart * kEach / kParts, kEnd = (kPart + 1) * kEach / kParts;
    stage += to_;
    if (rows_ == Shared::kTileRows && k_left >= Shared::kTileK) {
      const char* from = from_ + kFirst * kLinesAtOnce * line_bytes_;
#pragma unroll
      for (int i = kFirst; i < kEnd; ++i) {
        if (InTile(i)) CopyAsync(stage + i * kLinesAtOnce * Shared::kPitch, from, true);
        from += kLinesAtOnce * line_bytes_;
      }
      return;
    }
    const int lines = Shared::kLinesAreRows ? rows_ : k_left;
    const int in_line = (Shared::kLinesAreRows ? k_left : rows_) - Chunk() * Shared::kPerChunk;
#pragma unroll 1
    for (int i = kFirst; i < kEnd && InTile(i); ++i) {
      const std::uint32_t to = stage + i * kLinesAtOnce * Shared::kPitch;
      const char* const from = from_ + i * kLinesAtOnce * line_bytes_;
      const int count = Line() + i * kLinesAtOnce < lines ? in_line : 0;
      if (count <= 0 || count >= Shared::kPerChunk) {
        CopyAsync(to, from, count > 0);
      } else {
        StoreShared(to, LoadChunk<Shared::kElement>(from, Shared::kElement, count, 0));
      }
    }
  }

  // The stage after it is the next one.
  __device__ void Next() {
    from_ += Shared::kLinesAreRows ? Shared::kTileK * Shared::kElement : Shared::kTileK * line_bytes_;
  }

 private:
  static constexpr int kLinesAtOnce = kThreads / Shared::kChunks;
  static constexpr int kEach = (Shared::kLines + kLinesAtOnce - 1) / kLinesAtOnce;
  static_assert(kThreads % Shared::kChunks == 0 && kLinesAtOnce % 8 == 0);  // after 8 lines, swizzles are the same

  __device__ static int Line() { return static_cast<int>(threadIdx.x) / Shared::kChunks; }
  __device__ static int Chunk() { return static_cast<int>(threadIdx.x) % Shared::kChunks; }
  __device__ static bool InTile(int i) {
    return Shared::kLines % kLinesAtOnce == 0 || Line() + i * kLinesAtOnce < Shared::kLines;
  }

  const char* from_;  // of the thread's first line
  std::int64_t line_bytes_;
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

// Of 16 rows from `row0` on, step `step` of K: the registers of A as mma.sync wants them.
template <typename Shared>
__device__ inline void LoadA(std::uint32_t stage, int row0, int step, std::uint32_t (&r)[4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if constexpr (Shared::kLinesAreRows) {
    LoadMatrices(stage + Shared::Offset(row0 + lane % 16, 2 * step + lane / 16), r);
  } else {
    // Matrices (rows, K): (0, 0), (8, 0), (0, 8), (8, 8), each turned.
    LoadTransposed(stage + Shared::Offset(16 * step + lane % 8 + lane / 16 * 8, row0 / 8 + lane / 8 % 2), r);
  }
}

// Of 16 rows (columns of B): registers 0 and 1 are the first 8 rows', 2 and 3 the others'.
template <typename Shared>
__device__ inline void LoadB(std::uint32_t stage, int row0, int step, std::uint32_t (&r)[4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if constexpr (Shared::kLinesAreRows) {
    LoadMatrices(stage + Shared::Offset(row0 + lane % 8 + lane / 16 * 8, 2 * step + lane / 8 % 2), r);
  } else {
    LoadTransposed(stage + Shared::Offset(16 * step + lane % 16, row0 / 8 + lane / 16), r);
  }
}

}  // namespace kernd::gpu::matmul_mma
