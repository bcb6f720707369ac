// matmul_*_mma_<M>x<N>x<K>: on tensor cores by mma.sync, for the sources that instantiate it (matmul_mma_<dtype>.cu).
//   tile     kMmaTile[] of matmul_mma_plan.h: 32x32x32, 64x64x32 and 128x128x32 with 4 warps, 128x256x64 with 8
//   memory   a ring of 2 to 4 stages of K in shared memory, swizzled (device/shared.cuh), filled by cp.async: 48 KiB
//   each
//            for 128x256x64 in 16 bits. Where a line is not aligned to 16 bytes, or I8 and F32 lie across K, and on
//            SM 7.5: through registers, a part of it between two steps of K
//   sums     F32 or int32 in registers, steps of 32 bytes of K in order, whatever the tile; TF32 rounds its operands
//   overlap  fragments of a step are read while the one before is multiplied, across the one barrier of a stage, and
//            copies are spread over a stage's products without a branch
//   results  through shared memory, 16 rows of a warp at a time, in pieces of 16 bytes; or as sums to memory, for
//            matmul_finish
//   limits   none of shape; a block does one tile after another where a grid cannot hold them
//   time     a stage of 128x256x64 in 16 bits is 256 mma.sync of a scheduler, 1650 clocks at 62 % of wgmma's rate,
//   beside
//            1400 clocks of shared memory (1024 of ldmatrix, 384 of copies) and 48 KiB from L2
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/gpu/launch.cuh"
#include "kernels/gpu/matmul_mma_operand.cuh"
#include "kernels/gpu/matmul_results.cuh"
#include "kernels/gpu/matmul_work.cuh"

namespace kernd::gpu {
namespace matmul_mma {

// Code for SM 7.5 has no kernels of the newer paths: they are never launched there, as min_sm says.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
inline constexpr bool kHasAsync = false;
#else
inline constexpr bool kHasAsync = true;
#endif

// One kernel of the family. kAlongKA, kAlongKB: how operands lie in shared memory. kAligned: they are copied by
// cp.async.
template <MmaPath kPath_, int kIndex, bool kAlongKA, bool kAlongKB, bool kAligned_>
struct Shape {
  static constexpr MmaPath kPath = kPath_;
  static constexpr bool kAligned = kAligned_;
  static constexpr MmaTile kTile = kMmaTile[kIndex];
  static constexpr int kElement = ElementBytes(DataTypeOf(kPath));
  static constexpr bool kIntegers = kPath == MmaPath::kI8Sm75 || kPath == MmaPath::kI8Sm80;
  using Sum = std::conditional_t<kIntegers, std::int32_t, float>;
  using A = SharedOperand<kElement, kTile.m, kTile.k, kAlongKA>;
  using B = SharedOperand<kElement, kTile.n, kTile.k, kAlongKB>;
  static constexpr int kThreads = kTile.threads(), kStageBytes = A::kBytes + B::kBytes;
  static constexpr int kSteps = kTile.k * kElement / kStepBytes;
  static constexpr int kFragmentsM = kTile.warp_m() / 16, kFragmentsN = kTile.warp_n() / 8;  // of 16 x 8 results
  static_assert(kTile.warp_m() % 16 == 0 && kTile.warp_n() % 16 == 0 && kSteps > 0);
};

// D += A B of 16 rows, 32 bytes of K and 8 columns.
template <MmaPath kPath, typename Sum>
__device__ inline void MultiplyStep(Sum (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  if constexpr (kPath == MmaPath::kTf32Sm80) {
    MultiplyTf32(d, a, b0, b1);
  } else if constexpr (std::is_same_v<Sum, std::int32_t>) {
    MultiplyI8<kPath == MmaPath::kI8Sm80>(d, a, b0, b1);
  } else {
    Multiply<DataTypeOf(kPath), kPath != MmaPath::kF16Sm75>(d, a, b0, b1);
  }
}

// Of a warp: where it reads a stage, and what it read for a step of K.
template <typename Shape>
struct WarpReader {
  FragmentReader<typename Shape::A, true> a;
  FragmentReader<typename Shape::B, false> b;
};
template <typename Shape>
struct Fragments {
  std::uint32_t a[Shape::kFragmentsM][4], b[Shape::kFragmentsN / 2][4];

  __device__ void Load(const WarpReader<Shape>& from, std::uint32_t stage, int step) {
#pragma unroll
    for (int i = 0; i < Shape::kFragmentsM; ++i) from.a.Load(stage, i, step, a[i]);
#pragma unroll
    for (int j = 0; j < Shape::kFragmentsN / 2; ++j) from.b.Load(stage + Shape::A::kBytes, j, step, b[j]);
  }
};

// The sums of a warp.
template <typename Shape>
struct WarpSums {
  typename Shape::Sum at[Shape::kFragmentsM][Shape::kFragmentsN][4] = {};

  __device__ void Add(Fragments<Shape>& x) {
    if constexpr (Shape::kPath == MmaPath::kTf32Sm80) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
#pragma unroll
        for (int i = 0; i < Shape::kFragmentsM; ++i) x.a[i][r] = RoundToTf32(x.a[i][r]);
#pragma unroll
        for (int j = 0; j < Shape::kFragmentsN / 2; ++j) x.b[j][r] = RoundToTf32(x.b[j][r]);
      }
    }
    // Forth and back, so that each multiplication has an operand in common with the one before.
#pragma unroll
    for (int i = 0; i < Shape::kFragmentsM; ++i) {
#pragma unroll
      for (int q = 0; q < Shape::kFragmentsN; ++q) {
        const int j = i % 2 == 0 ? q : Shape::kFragmentsN - 1 - q;
        MultiplyStep<Shape::kPath>(at[i][j], x.a[i], x.b[j / 2][j % 2 * 2], x.b[j / 2][j % 2 * 2 + 1]);
      }
    }
  }
};

// --- the pipeline ----------------------------------------------------------------------------------------------------

// Until the oldest of `stages` - 1 groups of copies is there.
__device__ inline void WaitForStage(int stages) {
  switch (stages) {
    case 2: WaitCopies<true, 0>(); return;
    case 3: WaitCopies<true, 1>(); return;
    default: WaitCopies<true, 2>(); return;
  }
}

// What of a stage a thread holds in registers between two steps of K: part `part` of its chunks of A, then B.
template <typename Shape>
struct StagePart {
  using LoaderA = RegisterLoader<typename Shape::A, Shape::kThreads>;
  using LoaderB = RegisterLoader<typename Shape::B, Shape::kThreads>;
  static constexpr int kChunks = LoaderA::kEach + LoaderB::kEach;
  static constexpr int kMost = (kChunks + Shape::kSteps - 1) / Shape::kSteps;

  __device__ static constexpr int First(int part) { return part * kChunks / Shape::kSteps; }

  __device__ void Load(const MmaProblem& p, const OperandView& a, const OperandView& b, std::int64_t k0, int k_left,
                       int part) {
#pragma unroll
    for (int q = 0; q < kMost; ++q) {
      const int i = First(part) + q;
      if (i >= First(part + 1)) continue;
      held[q] = i < LoaderA::kEach ? LoaderA::Load(p.a, a, k0, k_left, i)
                                   : LoaderB::Load(p.b, b, k0, k_left, i - LoaderA::kEach);
    }
  }
  __device__ void Store(const MmaProblem& p, std::uint32_t stage, int part) const {
#pragma unroll
    for (int q = 0; q < kMost; ++q) {
      const int i = First(part) + q;
      if (i >= First(part + 1)) continue;
      if (i < LoaderA::kEach) {
        LoaderA::Store(p.a, held[q], i, stage);
      } else {
        LoaderB::Store(p.b, held[q], i - LoaderA::kEach, stage + Shape::A::kBytes);
      }
    }
  }

  uint4 held[kMost];
};

// The elements of K that a block adds, at least one.
struct PartOfK {
  std::int64_t begin, end;
};

// Adds them to the sums of a warp. While it multiplies for one step of K, it reads for the next one, across the stages,
// and copies a part of the stage that is still to come: nothing but a barrier a stage stands between two products.
template <typename Shape>
__device__ inline void MultiplyAsync(const MmaProblem& p, const OperandView& a, const OperandView& b, PartOfK k,
                                     std::uint32_t ring, const WarpReader<Shape>& reader, WarpSums<Shape>& sums) {
  constexpr std::int64_t kK = Shape::kTile.k;
  constexpr int kCopyParts = Shape::kSteps > 1 ? Shape::kSteps - 1 : 1;
  AsyncLoader<typename Shape::A, Shape::kThreads> load_a(a, k.begin);
  AsyncLoader<typename Shape::B, Shape::kThreads> load_b(b, k.begin);
  const int stages = p.stages;
  const std::uint32_t end = ring + stages * Shape::kStageBytes;
  const auto after = [&](std::uint32_t stage) {
    return stage + Shape::kStageBytes == end ? ring : stage + Shape::kStageBytes;
  };
  std::int64_t to_copy = k.end - k.begin;  // elements of K
  std::uint32_t read = ring, write = ring;
  const auto copy = [&](int part, int parts) {
    const bool whole_a = load_a.IsWhole(to_copy), whole_b = load_b.IsWhole(to_copy);
    if (part == 0 && to_copy > 0 && !(whole_a && whole_b)) {
      const int left = static_cast<int>(min(to_copy, kK));
      if (!whole_a) load_a.IssueEdge(left, write);
      if (!whole_b) load_b.IssueEdge(left, write + Shape::A::kBytes);
    }
    load_a.IssuePart(part, parts, write, whole_a);
    load_b.IssuePart(part, parts, write + Shape::A::kBytes, whole_b);
    if (part + 1 < parts) return;
    CommitCopies<true>();
    to_copy -= kK;
    write = after(write);
  };
  // The next stage is there for all, and nobody reads the one before it any more.
  const auto wait = [&] {
    WaitForStage(stages);
    __syncthreads();
  };
#pragma unroll 1
  for (int s = 0; s + 1 < stages; ++s) copy(0, 1);
  wait();
  Fragments<Shape> now, next;
  now.Load(reader, read, 0);
#pragma unroll 1
  for (std::int64_t k0 = k.begin; k0 < k.end; k0 += kK) {
#pragma unroll
    for (int i = 0; i < Shape::kSteps; ++i) {
      if (i + 1 == Shape::kSteps) {
        if (Shape::kSteps == 1) copy(0, 1);
        wait();
        read = after(read);
        next.Load(reader, read, 0);  // past the last stage: what nobody uses
      } else {
        next.Load(reader, read, i + 1);
        copy(i, kCopyParts);
      }
      sums.Add(now);
      now = next;
    }
  }
}

// The same through registers, where lines are not aligned. `busy`: any of the warp's results exist. Two stages, of
// which one is filled while the other is read.
template <typename Shape>
__device__ inline void MultiplyThroughRegisters(const MmaProblem& p, const OperandView& a, const OperandView& b,
                                                PartOfK k, std::uint32_t ring, const WarpReader<Shape>& reader,
                                                bool busy, WarpSums<Shape>& sums) {
  constexpr std::int64_t kK = Shape::kTile.k;
  const auto left = [&](std::int64_t k0) { return static_cast<int>(min(k.end - k0, kK)); };
  std::uint32_t read = ring, write = ring + Shape::kStageBytes;
#pragma unroll 1
  for (int i = 0; i < Shape::kSteps; ++i) {
    StagePart<Shape> part;
    part.Load(p, a, b, k.begin, left(k.begin), i);
    part.Store(p, read, i);
  }
#pragma unroll 1
  for (std::int64_t k0 = k.begin + kK; k0 < k.end + kK; k0 += kK) {
    __syncthreads();  // the stage is there for all, and nobody reads the one before it any more
                      // Unrolled, the places of many chunks would be kept in registers that there are not.
#pragma unroll 1
    for (int i = 0; i < Shape::kSteps; ++i) {
      StagePart<Shape> part;
      if (k0 < k.end) part.Load(p, a, b, k0, left(k0), i);
      if (busy) {
        Fragments<Shape> x;
        x.Load(reader, read, i);
        sums.Add(x);
      }
      if (k0 < k.end) part.Store(p, write, i);
    }
    const std::uint32_t other = read;
    read = write;
    write = other;
  }
}

// --- results ---------------------------------------------------------------------------------------------------------

// Whether anything happens to the sums before they are stored.
template <typename Sum>
__device__ inline bool IsFinished(const MmaProblem& p) {
  const MatmulEpilogue& e = p.epilogue;
  if (p.sums != nullptr) return true;
  return e.plain && e.activation == Activation::kNone && (std::is_same_v<Sum, float> || e.output == DataType::kI32);
}

// A result from its sum, both as bits.
template <typename Sum>
__device__ inline std::uint32_t FinishedBits(const MatmulEpilogue& e, std::uint32_t bits, std::int64_t c_offset,
                                             std::int64_t row, std::int64_t col) {
  if constexpr (std::is_same_v<Sum, std::int32_t>) {
    const auto sum = static_cast<std::int32_t>(bits);
    if (e.output == DataType::kI32) return static_cast<std::uint32_t>(max(sum, 0));  // exact: nothing but relu
    const auto x = static_cast<float>(sum);
    return __float_as_uint(e.plain ? Activate(e.activation, x) : Finish<float>(e, sum, c_offset, row, col));
  } else {
    const float sum = __uint_as_float(bits);
    return __float_as_uint(e.plain ? Activate(e.activation, sum) : Finish<float>(e, sum, c_offset, row, col));
  }
}

__device__ inline std::uint32_t PackedPair(DataType type, std::uint32_t low, std::uint32_t high) {
  return type == DataType::kF16 ? Pack<DataType::kF16>(__uint_as_float(low), __uint_as_float(high))
                                : Pack<DataType::kBF16>(__uint_as_float(low), __uint_as_float(high));
}

// 16 rows of the warp at a time go through its part of shared memory, so that what follows is there once in the code,
// and whole lines are written, 16 bytes at a time where they are so aligned. Shifting the sums keeps their indices
// constant, and the sums in registers.
template <typename Shape>
__device__ inline void WriteResults(const MmaProblem& p, const ResultPlace& to, WarpSums<Shape>& sums) {
  using Sum = typename Shape::Sum;
  constexpr int kCols = Shape::kTile.warp_n(), kPitch = ResultPitch(Shape::kTile), kGroup = 8;
  struct alignas(8) Pair {
    Sum x, y;
  };
  const MatmulEpilogue& e = p.epilogue;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  std::uint32_t* const slab = static_cast<std::uint32_t*>(DynamicShared()) + warp * 16 * kPitch;
  const bool finished = IsFinished<Sum>(p), short_type = p.sums == nullptr && ElementBytes(e.output) == 2;
  const int element = short_type ? 2 : 4;
  const bool vectors = e.n * element % 16 == 0;
  // Of the strip, which moves on.
  int rows = static_cast<int>(min(e.m - to.row0, std::int64_t{16} * Shape::kFragmentsM));
  const int cols = static_cast<int>(min(e.n - to.col0, std::int64_t{kCols}));
  char* d = static_cast<char*>(p.sums != nullptr ? p.sums : e.d) +
            (((p.sums != nullptr ? to.split * e.batch : 0) + to.item) * e.m * e.n + to.row0 * e.n + to.col0) * element;
#pragma unroll 1
  for (int strip = 0; strip < Shape::kFragmentsM && rows > 0; ++strip) {
#pragma unroll
    for (int j = 0; j < Shape::kFragmentsN; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        *reinterpret_cast<Pair*>(slab + (lane / 4 + 8 * half) * kPitch + 8 * j + lane % 4 * 2) = {
            sums.at[0][j][2 * half], sums.at[0][j][2 * half + 1]};
#pragma unroll
        for (int i = 0; i + 1 < Shape::kFragmentsM; ++i) {
          sums.at[i][j][2 * half] = sums.at[i + 1][j][2 * half];
          sums.at[i][j][2 * half + 1] = sums.at[i + 1][j][2 * half + 1];
        }
      }
    }
    __syncwarp();
    if (!finished) {
#pragma unroll 1
      for (int at = lane; at < 16 * kCols; at += 32) {
        const int row = at / kCols, col = at % kCols;
        if (row >= rows || col >= cols) continue;
        std::uint32_t& place = slab[row * kPitch + col];
        place = FinishedBits<Sum>(e, place, to.c_offset, to.row0 + 16 * strip + row, to.col0 + col);
      }
      __syncwarp();
    }
    if (vectors) {
#pragma unroll 1
      for (int at = lane; at < 16 * kCols / kGroup; at += 32) {
        const int row = at / (kCols / kGroup), col = at % (kCols / kGroup) * kGroup;
        if (row >= rows || col >= cols) continue;
        const uint4 x = *reinterpret_cast<const uint4*>(slab + row * kPitch + col);
        const uint4 y = *reinterpret_cast<const uint4*>(slab + row * kPitch + col + 4);
        uint4* const line = reinterpret_cast<uint4*>(d + (row * e.n + col) * element);
        if (short_type) {
          *line = make_uint4(PackedPair(e.output, x.x, x.y), PackedPair(e.output, x.z, x.w),
                             PackedPair(e.output, y.x, y.y), PackedPair(e.output, y.z, y.w));
        } else {
          line[0] = x;
          if (col + 4 < cols) line[1] = y;
        }
      }
    } else {
#pragma unroll 2
      for (int at = lane; at < 16 * kCols; at += 32) {
        const int row = at / kCols, col = at % kCols;
        if (row >= rows || col >= cols) continue;
        const std::uint32_t bits = slab[row * kPitch + col];
        char* const place = d + (row * e.n + col) * element;
        if (short_type) {
          *reinterpret_cast<std::uint16_t*>(place) = static_cast<std::uint16_t>(PackedPair(e.output, bits, 0));
        } else {
          *reinterpret_cast<std::uint32_t*>(place) = bits;
        }
      }
    }
    __syncwarp();
    rows -= 16;
    d += 16 * e.n * element;
  }
}

// --- the kernel ------------------------------------------------------------------------------------------------------

template <typename Shape>
__device__ inline void MultiplyTiles(const MmaProblem& p) {
  constexpr MmaTile kTile = Shape::kTile;
  constexpr std::int64_t kGroup = 8;
  const std::uint32_t ring = SharedAddress(DynamicShared());
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int row0 = warp / kTile.warps_n * kTile.warp_m(), col0 = warp % kTile.warps_n * kTile.warp_n();
  const WarpReader<Shape> reader{FragmentReader<typename Shape::A, true>(row0),
                                 FragmentReader<typename Shape::B, false>(col0)};
  const std::int64_t all = p.epilogue.batch * p.splits * p.tiles_m * p.tiles_n;
  for (std::int64_t work = blockIdx.x; work < all; work += gridDim.x) {
    const MatmulWork at = FindMatmulWork({p.tiles_m, p.tiles_n, p.splits, kGroup}, work);
    const std::int64_t m0 = at.tile_m * kTile.m, n0 = at.tile_n * kTile.n;
    const OperandView a = ViewOf<typename Shape::A>(p.a, at.item, m0), b = ViewOf<typename Shape::B>(p.b, at.item, n0);
    const bool busy = row0 < a.rows && col0 < b.rows;
    const PartOfK k{at.split * p.k_per_split, min(p.k, (at.split + 1) * p.k_per_split)};
    WarpSums<Shape> sums;
    if constexpr (Shape::kAligned) {
      MultiplyAsync<Shape>(p, a, b, k, ring, reader, sums);
    } else {
      MultiplyThroughRegisters<Shape>(p, a, b, k, ring, reader, busy, sums);
    }
    __syncthreads();  // results take the place of the stages
    if (busy) {
      WriteResults<Shape>(p, {at.item, at.split, OffsetOf(p.epilogue.c_batch, at.item), m0 + row0, n0 + col0}, sums);
    }
    __syncthreads();
  }
}

template <typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kTile.blocks)
    matmul_mma(const __grid_constant__ MmaProblem p) {
  if constexpr (kHasAsync || !IsAsync(Shape::kPath)) MultiplyTiles<Shape>(p);
}

template <typename Shape>
absl::Status Load(std::size_t shared_bytes) {
  return AllowSharedMemory(&matmul_mma<Shape>, shared_bytes);
}

template <typename Shape>
absl::Status Launch(const MmaProblem& p, std::size_t shared_bytes, Stream stream) {
  const std::int64_t all = p.epilogue.batch * p.splits * p.tiles_m * p.tiles_n;
  const auto blocks = static_cast<unsigned>(std::min<std::int64_t>(all, INT32_MAX));
  return LaunchKernel("matmul_mma", matmul_mma<Shape>, blocks, Shape::kThreads, shared_bytes, stream, p);
}

template <MmaPath kPath, int kIndex, bool kAlongKA, bool kAlongKB, bool kAligned>
MmaMatmulKernel KernelOf() {
  using One = Shape<kPath, kIndex, kAlongKA, kAlongKB, kAligned>;
  return {.load = Load<One>, .launch = Launch<One>};
}

// Of 16-bit types, each orientation; others always lie along K in shared memory, and are turned on the way if need be.
template <MmaPath kPath, int kIndex>
MmaMatmulKernel KernelOf(const MmaLayout& layout) {
  if constexpr (ElementBytes(DataTypeOf(kPath)) == 2) {
    const auto with = [&]<bool kAligned>(std::bool_constant<kAligned>) {
      if (layout.a_along_k) {
        return layout.b_along_k ? KernelOf<kPath, kIndex, true, true, kAligned>()
                                : KernelOf<kPath, kIndex, true, false, kAligned>();
      }
      return layout.b_along_k ? KernelOf<kPath, kIndex, false, true, kAligned>()
                              : KernelOf<kPath, kIndex, false, false, kAligned>();
    };
    if constexpr (IsAsync(kPath)) {
      if (layout.aligned) return with(std::true_type());
    }
    return with(std::false_type());
  } else {
    if constexpr (IsAsync(kPath)) {
      if (layout.aligned && layout.a_along_k && layout.b_along_k) return KernelOf<kPath, kIndex, true, true, true>();
    }
    return KernelOf<kPath, kIndex, true, true, false>();
  }
}

}  // namespace matmul_mma

template <MmaPath kPath>
MmaMatmulKernel MmaMatmulKernelOf(int tile, const MmaLayout& layout) {
  switch (tile) {
    case 0: return matmul_mma::KernelOf<kPath, 0>(layout);
    case 1: return matmul_mma::KernelOf<kPath, 1>(layout);
    case 2: return matmul_mma::KernelOf<kPath, 2>(layout);
    default: return matmul_mma::KernelOf<kPath, 3>(layout);
  }
}

}  // namespace kernd::gpu
