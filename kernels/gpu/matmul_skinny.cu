// matmul_{f16,bf16}_sm80_skinny: for few rows, where reading B once is all the time there is.
//
//   tile     8, 16, 24 or 32 rows by 32 columns, all of K: 12 warps take steps of 32 elements of K in turns, each its
//   own memory   none is shared until the end: a lane reads fragments of mma.sync straight from A and B, 16 bytes of a
//   line
//            at a time (8 of a line across K), 4, 3 or, of 32 rows, 2 steps ahead: 96, 72 or 48 KiB of B are in flight
//            on an SM. A step's elements of K are numbered such that a lane's 16 bytes are what it multiplies; across
//            K, bytes of two lines are put together in pairs
//   sums     F32; those of the warps are added in their order, so they depend on K alone: one launch, no workspace
//   crooked  lines are read element by element, as are the last K % 32
//   limits   none of shape; A is read again for each 32 columns, and B for each 32 rows
//   time     memory, of whose rate an H200 gives it 45 %: of 4096 x 4096 in B, 21.6 us with a row and 23.9 with 17;
//            cuBLASLt takes 17. Probably it loses by reading but 64 bytes of a line of B at once
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/gpu/cuda.h"
#include "kernels/gpu/device/mma.cuh"
#include "kernels/gpu/launch.cuh"
#include "kernels/gpu/matmul_epilogue.cuh"
#include "kernels/gpu/matmul_passes.h"
#include "kernels/gpu/variants.h"

namespace kernd {
namespace gpu {
namespace {

constexpr int kWarps = 12, kThreads = 32 * kWarps, kColumns = 32, kStep = 32;

struct SkinnyOperand {
  const std::uint16_t* data = nullptr;
  std::int64_t row_stride = 0, k_stride = 0;  // of a row of A or a column of B, and of K; one of them is 1
  BatchStrides batch;
};

struct SkinnyMatmul {
  SkinnyOperand a, b;
  bool vectors = false;  // lines and items of both begin where a lane's pieces may, and columns come in whole pieces
  std::int64_t k = 0, tiles_m = 0, tiles_n = 0;
  MatmulEpilogue epilogue;
};

// What a lane multiplies in a step, of kEights * 8 rows and 4 tiles of 8 columns. Lane 4 g + q has rows 8 i + g,
// columns g of each tile, and elements 8 q .. 8 q + 7 of K, two in a register.
template <int kEights>
struct Step {
  std::uint32_t a[kEights][4] = {};
  std::uint32_t b[4][4] = {};  // [tile]; of a line across K as it is read: [pair of lines][line][column pair]
};

template <int kEights>
struct Sums {
  static constexpr int kTiles = (kEights + 1) / 2;  // of 16 rows
  float at[kTiles][4][4] = {};

  template <DataType kType>
  __device__ void Add(const Step<kEights>& x) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {  // of a step: 16 elements of K
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        constexpr int kLast = kEights - 1;
        const bool both = 2 * t + 1 < kEights;
        const auto& low = x.a[2 * t];
        const auto& high = x.a[both ? 2 * t + 1 : kLast];
        const std::uint32_t a[4] = {low[2 * half], both ? high[2 * half] : 0, low[2 * half + 1],
                                    both ? high[2 * half + 1] : 0};
#pragma unroll
        for (int j = 0; j < 4; ++j) Multiply<kType, true>(at[t][j], a, x.b[j][2 * half], x.b[j][2 * half + 1]);
      }
    }
  }
};

// Columns that a lane's number in tile `tile` stands for. Across K, a lane's piece of a line has one of each tile.
template <bool kAlongK>
__device__ constexpr int ColumnOf(int tile, int in_tile) {
  return kAlongK ? 8 * tile + in_tile : 4 * in_tile + tile;
}

__device__ inline void Read16(const std::uint16_t* from, std::uint32_t (&to)[4]) {
  const uint4 x = *reinterpret_cast<const uint4*>(from);
  to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
}

// Where a lane reads. Rows and columns that do not exist are read as the last that does: what becomes of them is not
// kept, and touches no other.
template <int kEights, bool kAlongK>
class Reader {
 public:
  // `pieces`: for Pieces(); else for Elements().
  __device__ Reader(const SkinnyMatmul& p, std::int64_t item, std::int64_t row0, std::int64_t col0, bool pieces)
      : p_(p) {
    const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4;
    q_ = lane % 4;
    const std::uint16_t* const a = p.a.data + OffsetOf(p.a.batch, item);
    const std::uint16_t* const b = p.b.data + OffsetOf(p.b.batch, item);
#pragma unroll
    for (int i = 0; i < kEights; ++i) a_[i] = a + min(row0 + 8 * i + g, p.epilogue.m - 1) * p.a.row_stride;
    if (kAlongK || !pieces) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        b_[j] = b + min(col0 + ColumnOf<kAlongK>(j, g), p.epilogue.n - 1) * p.b.row_stride;
      }
    } else {
      b_[0] = b + min(col0 + 4 * g, p.epilogue.n - 4);
    }
  }

  // From element k0 of K on, all of which exist.
  __device__ void Pieces(std::int64_t k0, Step<kEights>& x) const {
    const std::int64_t k = k0 + 8 * q_;
    if constexpr (kAlongK) {
#pragma unroll
      for (int j = 0; j < 4; ++j) Read16(b_[j] + k, x.b[j]);
    } else {
      const std::uint16_t* line = b_[0] + k * p_.b.k_stride;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const uint2 columns = *reinterpret_cast<const uint2*>(line);
        x.b[i / 2][2 * (i % 2)] = columns.x;
        x.b[i / 2][2 * (i % 2) + 1] = columns.y;
        line += p_.b.k_stride;
      }
    }
#pragma unroll
    for (int i = 0; i < kEights; ++i) Read16(a_[i] + k, x.a[i]);
  }

  // After Pieces(), of lines across K: pairs of elements of a column.
  __device__ static void Pair(Step<kEights>& x) {
    if constexpr (!kAlongK) {
      std::uint32_t pairs[4][4];
#pragma unroll
      for (int r = 0; r < 4; ++r) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const std::uint32_t first = x.b[r][j / 2], second = x.b[r][2 + j / 2];
          pairs[j][r] = j % 2 == 0 ? (first & 0xffff) | second << 16 : first >> 16 | (second & 0xffff0000);
        }
      }
#pragma unroll
      for (int i = 0; i < 16; ++i) x.b[i / 4][i % 4] = pairs[i / 4][i % 4];
    }
  }

  // The same as both, whatever the strides, and zeros past the end of K.
  __device__ void Elements(std::int64_t k0, Step<kEights>& x) const {
    const std::int64_t k = k0 + 8 * q_;
    const auto pair = [&](const std::uint16_t* line, std::int64_t stride, int r) {
      const std::uint32_t low = k + 2 * r < p_.k ? line[(k + 2 * r) * stride] : 0;
      const std::uint32_t high = k + 2 * r + 1 < p_.k ? line[(k + 2 * r + 1) * stride] : 0;
      return low | high << 16;
    };
#pragma unroll
    for (int r = 0; r < 4; ++r) {
#pragma unroll
      for (int j = 0; j < 4; ++j) x.b[j][r] = pair(b_[j], p_.b.k_stride, r);
#pragma unroll
      for (int i = 0; i < kEights; ++i) x.a[i][r] = pair(a_[i], p_.a.k_stride, r);
    }
  }

 private:
  const SkinnyMatmul& p_;
  int q_;
  const std::uint16_t* a_[kEights];
  const std::uint16_t* b_[4];
};

// The warp's part of the sums. Steps go round the warps, the last one, which K may end in, too.
template <DataType kType, int kEights, bool kAlongK>
__device__ inline void MultiplySteps(const SkinnyMatmul& p, std::int64_t item, std::int64_t row0, std::int64_t col0,
                                     Sums<kEights>& sums) {
  constexpr int kAhead = kEights <= 2 ? 4 : kEights == 3 ? 3 : 2;  // as registers go
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const Reader<kEights, kAlongK> pieces(p, item, row0, col0, true);
  const std::int64_t whole = p.vectors ? p.k / kStep : 0, all = (p.k + kStep - 1) / kStep;
  Step<kEights> ahead[kAhead];
  const auto read = [&](std::int64_t step, Step<kEights>& x) {
    if (step < whole) pieces.Pieces(step * kStep, x);
  };
#pragma unroll
  for (int i = 0; i < kAhead; ++i) read(warp + i * kWarps, ahead[i]);
  std::int64_t step = warp;
#pragma unroll 1
  while (step < whole) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (step < whole) {
        pieces.Pair(ahead[i]);
        sums.template Add<kType>(ahead[i]);
        read(step + kAhead * kWarps, ahead[i]);
      }
      step += kWarps;
    }
  }
  // Of the warp, the first that is not whole.
  step = whole + (warp + kWarps - whole % kWarps) % kWarps;
#pragma unroll 1
  for (; step < all; step += kWarps) {
    const Reader<kEights, kAlongK> elements(p, item, row0, col0, false);
    Step<kEights> x;
    elements.Elements(step * kStep, x);
    sums.template Add<kType>(x);
  }
}

template <DataType kType, int kEights, bool kAlongK>
__global__ void __launch_bounds__(kThreads, 1) matmul_skinny(const __grid_constant__ SkinnyMatmul p) {
  constexpr int kPitch = kColumns + 8;  // then lanes of a warp meet at no bank
  __shared__ float parts[kWarps][16][kPitch];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const std::int64_t tiles = p.tiles_m * p.tiles_n, all = p.epilogue.batch * tiles;
  for (std::int64_t work = blockIdx.x; work < all; work += gridDim.x) {
    const std::int64_t item = Divide(work, tiles), tile = work - item * tiles, tile_n = Divide(tile, p.tiles_m);
    const std::int64_t row0 = (tile - tile_n * p.tiles_m) * (8 * kEights), col0 = tile_n * kColumns;
    Sums<kEights> sums;
    MultiplySteps<kType, kEights, kAlongK>(p, item, row0, col0, sums);
    const std::int64_t c_offset = OffsetOf(p.epilogue.c_batch, item);
#pragma unroll
    for (int t = 0; t < Sums<kEights>::kTiles; ++t) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float* const to = &parts[warp][lane / 4][8 * j + lane % 4 * 2];
        to[0] = sums.at[t][j][0], to[1] = sums.at[t][j][1];
        to[8 * kPitch] = sums.at[t][j][2], to[8 * kPitch + 1] = sums.at[t][j][3];
      }
      __syncthreads();
      const std::int64_t col = col0 + ColumnOf<kAlongK>(lane / 8, lane % 8);
#pragma unroll 1
      for (int i = warp; i < min(16, 8 * kEights - 16 * t); i += kWarps) {
        const std::int64_t row = row0 + 16 * t + i;
        if (row >= p.epilogue.m || col >= p.epilogue.n) break;
        float sum = parts[0][i][lane];
#pragma unroll
        for (int w = 1; w < kWarps; ++w) sum = Add(sum, parts[w][i][lane]);
        FinishAndStore(p.epilogue, sum, item, c_offset, row, col);
      }
      __syncthreads();
    }
  }
}

std::int64_t CeilDivide(std::int64_t x, std::int64_t by) {
  return x / by + (x % by != 0);
}

// Rows of a tile, in eights.
int EightsOf(std::int64_t m) {
  return m <= 24 ? static_cast<int>(CeilDivide(m, 8)) : 4;
}

// Whether a lane may read `elements` of a line at a time.
bool HasVectors(std::int64_t elements, std::int64_t lines, std::int64_t ld, const Dims& batch_strides) {
  const auto whole = [&](std::int64_t stride) { return stride % elements == 0; };
  return (lines == 1 || whole(ld)) && std::all_of(batch_strides.begin(), batch_strides.end(), whole);
}
bool HasVectors(const MatmulProblem& p, const MatmulGeometry& g) {
  if (p.transpose_a || !HasVectors(8, g.m, g.lda, g.a_batch_strides)) return false;
  if (p.transpose_b) return HasVectors(8, g.n, g.ldb, g.b_batch_strides);
  return g.n % 4 == 0 && HasVectors(4, g.k, g.ldb, g.b_batch_strides);
}

template <DataType kType, int kEights>
absl::Status LaunchTiles(const SkinnyMatmul& p, bool b_along_k, Stream stream) {
  const std::int64_t tiles = p.epilogue.batch * p.tiles_m * p.tiles_n;
  const auto blocks = static_cast<unsigned>(std::min<std::int64_t>(tiles, INT32_MAX));
  const auto kernel = b_along_k ? matmul_skinny<kType, kEights, true> : matmul_skinny<kType, kEights, false>;
  return LaunchKernel("matmul_skinny", kernel, blocks, kThreads, 0, stream, p);
}

template <DataType kType>
absl::Status Launch(const MatmulProblem& p, const MatmulGeometry& g, const DeviceInfo&, const MatmulArgs& args, void*,
                    Stream stream) {
  if (g.d.elements() == 0) return absl::OkStatus();
  const MatmulEpilogue epilogue = MatmulEpilogueOf(p, g, args);
  if (HasNoProduct(p, g)) return EnqueueFinish(epilogue, {}, stream);
  const int eights = EightsOf(g.m);
  const auto operand = [&](const void* data, bool along_k, std::int64_t ld, const Dims& batch_strides) {
    return SkinnyOperand{.data = static_cast<const std::uint16_t*>(data),
                         .row_stride = along_k ? ld : 1,
                         .k_stride = along_k ? 1 : ld,
                         .batch = BatchStridesOf(g.batch_shape, batch_strides)};
  };
  const SkinnyMatmul problem{.a = operand(args.a, !p.transpose_a, g.lda, g.a_batch_strides),
                             .b = operand(args.b, p.transpose_b, g.ldb, g.b_batch_strides),
                             .vectors = HasVectors(p, g),
                             .k = g.k,
                             .tiles_m = CeilDivide(g.m, 8 * eights),
                             .tiles_n = CeilDivide(g.n, kColumns),
                             .epilogue = epilogue};
  switch (eights) {
    case 1: return LaunchTiles<kType, 1>(problem, p.transpose_b, stream);
    case 2: return LaunchTiles<kType, 2>(problem, p.transpose_b, stream);
    case 3: return LaunchTiles<kType, 3>(problem, p.transpose_b, stream);
    default: return LaunchTiles<kType, 4>(problem, p.transpose_b, stream);
  }
}

template <DataType kType>
absl::Status Load(const DeviceInfo& device) {
  if (device.sm < 80) return absl::OkStatus();
  cudaFuncAttributes attributes;
  for (const auto kernel :
       {matmul_skinny<kType, 1, false>, matmul_skinny<kType, 1, true>, matmul_skinny<kType, 2, false>,
        matmul_skinny<kType, 2, true>, matmul_skinny<kType, 3, false>, matmul_skinny<kType, 3, true>,
        matmul_skinny<kType, 4, false>, matmul_skinny<kType, 4, true>}) {
    KERND_CUDA(cudaFuncGetAttributes(&attributes, kernel));
  }
  return LoadMatmulPasses();
}

// Memory, or blocks one after the other on a multiprocessor, each of which waits for it several times. Of the memory's
// rate, 45 % were measured on an H200, and 1.4 times that where L2 has what is read again. A
// problem that is to be batch-invariant gets the rows of matmul_mma.cc unasked: M must not decide.
double Estimate(const MatmulProblem& p, const MatmulGeometry& g, const DeviceInfo& device) {
  constexpr double kLaunch = 6, kWait = 1.2;
  if (p.numerics == Numerics::kBatchInvariant) return 8;
  if (g.d.elements() == 0 || HasNoProduct(p, g)) return kLaunch;
  const auto up = [](double x, double by) { return std::ceil(x / by); };
  const double m = static_cast<double>(g.m), n = static_cast<double>(g.n), k = static_cast<double>(g.k);
  const double batch = static_cast<double>(g.batch), rows = 8 * EightsOf(g.m), steps = up(k, kStep * kWarps);
  const double waits = HasVectors(p, g) ? up(steps, rows > 24 ? 2 : rows > 16 ? 3 : 4) : 1.5 * steps;
  const double tiles = batch * up(m, rows) * up(n, kColumns);
  const double per_microsecond = static_cast<double>(device.memory_bytes_per_second) * 0.45e-6;
  const double memory = batch * ((m + n) * k * 2 + m * n * static_cast<double>(ElementBytes(g.output_dtype)));
  const double cached = tiles * (std::min(m, rows) + kColumns) * k * 2;  // from L2
  return kLaunch + std::max({memory / per_microsecond, cached / (1.4 * per_microsecond),
                             up(tiles, device.multiprocessors) * (1 + waits) * kWait});
}

template <DataType kType>
MatmulVariant Row() {
  return {
      .info = {.name = absl::StrCat("matmul_", std::string(Token(kType)), "_sm80_skinny"),
               .op = OpKind::kMatmul,
               .dtypes = {kType},
               .method = "few rows: tensor cores (mma.sync) on fragments straight from memory, all of K in a block; "
                         "batch-invariant"},
      .min_sm = 80,
      .why_not = [](const MatmulProblem&, const MatmulGeometry&, const DeviceInfo&) { return std::string(); },
      .estimate = Estimate,
      .workspace_bytes = [](const MatmulProblem&, const MatmulGeometry&, const DeviceInfo&) { return std::int64_t{0}; },
      .load = Load<kType>,
      .launch = Launch<kType>};
}

}  // namespace
}  // namespace gpu

absl::Span<const MatmulVariant> MatmulSkinnyVariants() {
  static const auto& rows = *new std::vector<MatmulVariant>{gpu::Row<DataType::kF16>(), gpu::Row<DataType::kBF16>()};
  return rows;
}

}  // namespace kernd
