// matmul_*_mma_<M>x<N>x<K>: on tensor cores by mma.sync, for the sources that instantiate it (matmul_mma_<dtype>.cu).
//   tile     kMmaTile[] of matmul_mma_plan.h: 32x32x32, 64x64x32 and 128x128x32 with 4 warps, 128x256x64 with 8
//   memory   a ring of 2 to 4 stages of K in shared memory, swizzled (device/shared.cuh), filled by cp.async while the
//            stage before is multiplied: 48 KiB each for 128x256x64 in 16 bits. Where a line is not aligned to 16
//            bytes, or I8 and F32 lie across K, and on SM 7.5: through registers, a part of it between two steps of K
//   sums     F32 or int32 in registers, steps of 32 bytes of K in order, whatever the tile; TF32 rounds its operands
//   results  through shared memory, 16 rows of a warp at a time; or as sums to memory, for matmul_finish
//   limits   none of shape; a block does one tile after another where a grid cannot hold them
//   time     for 128x256x64 in 16 bits, a step of K of a warp is 32 mma.sync, 8 clocks each at A100's rate, beside 8
//            ldmatrix: shared memory is read at half of its rate. Not measured yet.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/gpu/launch.cuh"
#include "kernels/gpu/matmul_mma_operand.cuh"

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

// The sums of a warp, and a step of K added to them.
template <typename Shape>
struct WarpSums {
  typename Shape::Sum at[Shape::kFragmentsM][Shape::kFragmentsN][4] = {};

  // From the warp's first row and column of the stage.
  __device__ void Add(std::uint32_t stage, int row0, int col0, int step) {
    std::uint32_t a[Shape::kFragmentsM][4], b[Shape::kFragmentsN / 2][4];
#pragma unroll
    for (int i = 0; i < Shape::kFragmentsM; ++i) LoadA<typename Shape::A>(stage, row0 + 16 * i, step, a[i]);
#pragma unroll
    for (int j = 0; j < Shape::kFragmentsN / 2; ++j) {
      LoadB<typename Shape::B>(stage + Shape::A::kBytes, col0 + 16 * j, step, b[j]);
    }
    if constexpr (Shape::kPath == MmaPath::kTf32Sm80) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
#pragma unroll
        for (int i = 0; i < Shape::kFragmentsM; ++i) a[i][r] = RoundToTf32(a[i][r]);
#pragma unroll
        for (int j = 0; j < Shape::kFragmentsN / 2; ++j) b[j][r] = RoundToTf32(b[j][r]);
      }
    }
#pragma unroll
    for (int i = 0; i < Shape::kFragmentsM; ++i) {
#pragma unroll
      for (int j = 0; j < Shape::kFragmentsN; ++j) {
        MultiplyStep<Shape::kPath>(at[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
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

// Adds elements k_begin .. k_end - 1 of K, at least one, to the sums of the warp that begins at (row0, col0) of the
// tile. `busy`: any of its results exist.
template <typename Shape>
__device__ inline void MultiplyAll(const MmaProblem& p, const OperandView& a, const OperandView& b,
                                   std::int64_t k_begin, std::int64_t k_end, std::uint32_t ring, int row0, int col0,
                                   bool busy, WarpSums<Shape>& sums) {
  constexpr std::int64_t kK = Shape::kTile.k;
  const std::int64_t steps = (k_end - k_begin + kK - 1) / kK;
  const auto left = [&](std::int64_t k0) { return static_cast<int>(min(k_end - k0, kK)); };
  AsyncLoader<typename Shape::A, Shape::kThreads> load_a(a, k_begin);
  AsyncLoader<typename Shape::B, Shape::kThreads> load_b(b, k_begin);
  const auto fill = [&](std::int64_t step, std::uint32_t stage) {
    const std::int64_t k0 = k_begin + step * kK;
    if constexpr (Shape::kAligned) {
      if (step < steps) {
        load_a.template Issue<0, 1>(left(k0), stage);
        load_b.template Issue<0, 1>(left(k0), stage + Shape::A::kBytes);
        load_a.Next();
        load_b.Next();
      }
      CommitCopies<true>();
    } else if (step < steps) {
      StagePart<Shape> part;
#pragma unroll 1
      for (int i = 0; i < Shape::kSteps; ++i) {
        part.Load(p, a, b, k0, left(k0), i);
        part.Store(p, stage, i);
      }
    }
  };
  const int stages = Shape::kAligned ? p.stages : 2;
  for (int s = 0; s + 1 < stages; ++s) fill(s, ring + s * Shape::kStageBytes);
  int read = 0, write = stages - 1;
#pragma unroll 1
  for (std::int64_t step = 0; step < steps; ++step) {
    if constexpr (Shape::kAligned) WaitForStage(stages);
    __syncthreads();  // the stage is there for all, and nobody reads the one before it any more
    const std::uint32_t from = ring + read * Shape::kStageBytes, to = ring + write * Shape::kStageBytes;
    const std::int64_t next = step + stages - 1;
    if constexpr (Shape::kAligned) {
      fill(next, to);
      if (busy) {
#pragma unroll
        for (int i = 0; i < Shape::kSteps; ++i) sums.Add(from, row0, col0, i);
      }
    } else {
      const std::int64_t k0 = k_begin + next * kK;
      // Unrolled, the places of many chunks would be kept in registers that there are not.
#pragma unroll 1
      for (int i = 0; i < Shape::kSteps; ++i) {
        StagePart<Shape> part;
        if (next < steps) part.Load(p, a, b, k0, left(k0), i);
        if (busy) sums.Add(from, row0, col0, i);
        if (next < steps) part.Store(p, to, i);
      }
    }
    read = read + 1 == stages ? 0 : read + 1;
    write = write + 1 == stages ? 0 : write + 1;
  }
}

// --- results ---------------------------------------------------------------------------------------------------------

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

// Two sums of a row that exists, and two columns of which the first does.
template <typename Sum>
__device__ inline void FinishPair(const MmaProblem& p, const ResultPlace& to, std::int64_t row, std::int64_t col, Sum x,
                                  Sum y) {
  const MatmulEpilogue& e = p.epilogue;
  const bool both = col + 1 < e.n;
  const std::int64_t at = (to.item * e.m + row) * e.n + col;
  if (p.sums != nullptr) return StorePair(p.sums, to.split * e.batch * e.m * e.n + at, x, y, both);
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

// 16 rows of the warp at a time go through its part of shared memory, so that what follows is there once in the code,
// and a warp writes whole lines. Shifting the sums keeps their indices constant, and the sums in registers.
template <typename Shape>
__device__ inline void WriteResults(const MmaProblem& p, const ResultPlace& to, WarpSums<Shape>& sums) {
  using Sum = typename Shape::Sum;
  constexpr int kPitch = ResultPitch(Shape::kTile), kPairs = Shape::kTile.warp_n() / 2;  // of a row
  struct alignas(8) Pair {
    Sum x, y;
  };
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  Sum* const slab = static_cast<Sum*>(DynamicShared()) + warp * 16 * kPitch;
#pragma unroll 1
  for (int strip = 0; strip < Shape::kFragmentsM; ++strip) {
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
#pragma unroll 1
    for (int at = lane; at < 16 * kPairs; at += 32) {
      const std::int64_t row = to.row0 + 16 * strip + at / kPairs, col = to.col0 + at % kPairs * 2;
      if (row >= p.epilogue.m || col >= p.epilogue.n) continue;
      const Pair pair = *reinterpret_cast<const Pair*>(slab + at / kPairs * kPitch + at % kPairs * 2);
      FinishPair(p, to, row, col, pair.x, pair.y);
    }
    __syncwarp();
  }
}

// --- the kernel ------------------------------------------------------------------------------------------------------

template <typename Shape>
__device__ inline void MultiplyTiles(const MmaProblem& p) {
  constexpr MmaTile kTile = Shape::kTile;
  // Tiles below one another that run together, so that they share their columns of B.
  constexpr std::int64_t kGroup = 8;
  const std::uint32_t ring = SharedAddress(DynamicShared());
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int row0 = warp / kTile.warps_n * kTile.warp_m(), col0 = warp % kTile.warps_n * kTile.warp_n();
  const std::int64_t tiles = p.tiles_m * p.tiles_n, all = p.epilogue.batch * p.splits * tiles;
  for (std::int64_t work = blockIdx.x; work < all; work += gridDim.x) {
    const std::int64_t piece = Divide(work, tiles), in_piece = work - piece * tiles;
    const std::int64_t item = Divide(piece, p.splits), split = piece - item * p.splits;
    const std::int64_t group = Divide(in_piece, kGroup * p.tiles_n), in_group = in_piece - group * kGroup * p.tiles_n;
    const std::int64_t high = min(kGroup, p.tiles_m - group * kGroup), tile_n = Divide(in_group, high);
    const std::int64_t m0 = (group * kGroup + in_group - tile_n * high) * kTile.m, n0 = tile_n * kTile.n;
    const OperandView a = ViewOf<typename Shape::A>(p.a, item, m0), b = ViewOf<typename Shape::B>(p.b, item, n0);
    const bool busy = row0 < a.rows && col0 < b.rows;
    const std::int64_t k_begin = split * p.k_per_split, k_end = min(p.k, k_begin + p.k_per_split);
    WarpSums<Shape> sums;
    MultiplyAll<Shape>(p, a, b, k_begin, k_end, ring, row0, col0, busy, sums);
    __syncthreads();  // results take the place of the stages
    if (busy) {
      WriteResults<Shape>(p, {item, split, OffsetOf(p.epilogue.c_batch, item), m0 + row0, n0 + col0}, sums);
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
