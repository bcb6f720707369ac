// matmul_*_sm75_simt: every type, layout and option, without tensor cores.
//
//   tile     128 x 128 x 16 words (F64: x 8), 256 threads of 8 x 8 sums; 32 x 64 x 32 (F64: x 16), 128 threads of 4 x
//   4,
//            where the large ones would leave multiprocessors idle
//   memory   two stages in shared memory, the next in registers; 33 KiB, small 26 KiB
//   sums     F32 for F16, BF16, F32 and F8, F64 for F64, int32 by dp4a for I8 (F32 where scales change along K); always
//            one after the other along K, so that a result depends on its row of A, its column of B and nothing else,
//            the tile included
//   limits   none; offsets are 64-bit, and blocks stride over tiles where a grid cannot hold them
//   time     FMA units when large (F16 and BF16 are converted once, on the way in); latency of the loads when small
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/gpu/cuda.h"
#include "kernels/gpu/matmul_simt_tile.cuh"
#include "kernels/gpu/variants.h"

namespace kernd {
namespace gpu {

struct SimtProblem {
  SimtOperand a, b;
  std::int64_t k = 0;
  std::int64_t tiles_m = 0, tiles_n = 0;
  MatmulEpilogue epilogue;
};

template <typename Type_, int kM_, int kN_, int kWords_, int kSums_>
struct SimtTile {
  using Type = Type_;
  static constexpr int kM = kM_, kN = kN_, kWords = kWords_, kK = kWords * Type::kPerWord;
  static constexpr int kSums = kSums_;  // of a thread, in each direction
  static constexpr int kThreads = kM / kSums * (kN / kSums);
  // Blocks of a multiprocessor, as far as registers go.
  static constexpr int kResident = kSums * kSums * sizeof(typename Type::Word) > 256 ? 1 : 512 / kThreads;
};

template <typename Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kResident) matmul_simt(const __grid_constant__ SimtProblem p) {
  using Type = typename Tile::Type;
  using Word = typename Type::Word;
  using Element = typename Type::Element;
  using TileA = TileInFlight<Type, Tile::kM, Tile::kWords, Tile::kThreads>;
  using TileB = TileInFlight<Type, Tile::kN, Tile::kWords, Tile::kThreads>;
  constexpr int kSums = Tile::kSums, kQuads = kSums / 4;
  constexpr int kThreadsM = Tile::kM / kSums, kThreadsN = Tile::kN / kSums;
  __shared__ alignas(16) Word shared_a[2][Tile::kWords * TileA::kPitch];
  __shared__ alignas(16) Word shared_b[2][Tile::kWords * TileB::kPitch];
  Word* const slab = shared_a[0];  // one row of sums of each thread, after the products
  static_assert(kThreadsM * Tile::kN <= 2 * Tile::kWords * TileA::kPitch);

  const int thread = static_cast<int>(threadIdx.x), thread_n = thread % kThreadsN, thread_m = thread / kThreadsN;
  const std::int64_t tiles = p.epilogue.batch * p.tiles_m * p.tiles_n, steps = (p.k + Tile::kK - 1) / Tile::kK;
  for (std::int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const std::int64_t item = Divide(tile, p.tiles_m * p.tiles_n), in_item = tile - item * (p.tiles_m * p.tiles_n);
    const std::int64_t tile_n = Divide(in_item, p.tiles_m), n0 = tile_n * Tile::kN;
    const std::int64_t m0 = (in_item - tile_n * p.tiles_m) * Tile::kM;
    const Element* a = static_cast<const Element*>(p.a.data) + OffsetOf(p.a.batch, item);
    const Element* b = static_cast<const Element*>(p.b.data) + OffsetOf(p.b.batch, item);

    Word sums[kSums][kSums] = {};
    TileA next_a;
    TileB next_b;
    if (steps > 0) {
      next_a.Load(p.a, a, m0, 0, p.k);
      next_b.Load(p.b, b, n0, 0, p.k);
      next_a.Store(p.a.k_contiguous, shared_a[0]);
      next_b.Store(p.b.k_contiguous, shared_b[0]);
    }
    __syncthreads();
    for (std::int64_t step = 0; step < steps; ++step) {
      const bool more = step + 1 < steps;
      if (more) {
        next_a.Load(p.a, a, m0, (step + 1) * Tile::kK, p.k);
        next_b.Load(p.b, b, n0, (step + 1) * Tile::kK, p.k);
      }
      const Word* from_a = shared_a[step & 1] + 4 * thread_m;
      const Word* from_b = shared_b[step & 1] + 4 * thread_n;
#pragma unroll
      for (int w = 0; w < Tile::kWords; ++w) {
        Four<Word> x[kQuads], y[kQuads];
#pragma unroll
        for (int q = 0; q < kQuads; ++q) {
          x[q] = *reinterpret_cast<const Four<Word>*>(from_a + w * TileA::kPitch + q * (Tile::kM / kQuads));
          y[q] = *reinterpret_cast<const Four<Word>*>(from_b + w * TileB::kPitch + q * (Tile::kN / kQuads));
        }
#pragma unroll
        for (int i = 0; i < kSums; ++i) {
#pragma unroll
          for (int j = 0; j < kSums; ++j) {
            sums[i][j] = Type::MultiplyAdd(x[i / 4].at[i % 4], y[j / 4].at[j % 4], sums[i][j]);
          }
        }
      }
      if (more) {
        next_a.Store(p.a.k_contiguous, shared_a[(step + 1) & 1]);
        next_b.Store(p.b.k_contiguous, shared_b[(step + 1) & 1]);
      }
      __syncthreads();
    }

    // Row i of every thread goes through shared memory, so that the epilogue's code is there once and its accesses run
    // along rows. Shifting the sums keeps their indices constant, and the sums in registers. Adding 0 makes one of the
    // two zeros, whose sign depends on how far a tile reaches past K.
    const std::int64_t c_offset = OffsetOf(p.epilogue.c_batch, item);
#pragma unroll 1
    for (int i = 0; i < kSums; ++i) {
#pragma unroll
      for (int j = 0; j < kSums; ++j) {
        slab[thread_m * Tile::kN + j / 4 * (Tile::kN / kQuads) + 4 * thread_n + j % 4] = sums[0][j] + Word{0};
#pragma unroll
        for (int r = 0; r + 1 < kSums; ++r) sums[r][j] = sums[r + 1][j];
      }
      __syncthreads();
#pragma unroll 1
      for (int at = thread; at < kThreadsM * Tile::kN; at += Tile::kThreads) {
        const std::int64_t row = m0 + i / 4 * (Tile::kM / kQuads) + 4 * (at / Tile::kN) + i % 4;
        const std::int64_t col = n0 + at % Tile::kN;
        if (row < p.epilogue.m && col < p.epilogue.n) FinishAndStore(p.epilogue, slab[at], item, c_offset, row, col);
      }
      __syncthreads();
    }
  }
}

template <DataType kType, bool kBlockScales>
struct SimtTiles {
  using Type = SimtType<kType, kBlockScales>;
  static constexpr int kHalf = sizeof(typename Type::Word) == 8 ? 2 : 1;  // as many words, in bytes
  using Large = SimtTile<Type, 128, 128, 16 / kHalf, 8>;
  using Small = SimtTile<Type, 32, 64, 32 / kHalf, 4>;
};

}  // namespace gpu

namespace {

using gpu::SimtOperand;
using gpu::SimtProblem;
using gpu::SimtTiles;

std::int64_t Tiles(const MatmulGeometry& g, int tile_m, int tile_n) {
  // Every tile has elements of D, so the product is below 2^63.
  return g.batch * (g.m / tile_m + (g.m % tile_m != 0)) * (g.n / tile_n + (g.n % tile_n != 0));
}

bool UseLargeTile(const MatmulGeometry& g, const DeviceInfo& device) {
  return g.m > 32 && 2 * Tiles(g, 128, 128) > device.multiprocessors;
}

template <typename Type>
SimtOperand OperandOf(const TensorSpec& spec, const void* data, bool k_contiguous, std::int64_t rows, std::int64_t ld,
                      const Dims& batch_shape, const Dims& batch_strides, const std::optional<ScaleSpec>& scale,
                      const float* scales) {
  SimtOperand o{.data = data,
                .rows = rows,
                .ld = ld,
                .k_contiguous = k_contiguous,
                .e5m2 = spec.dtype == DataType::kF8E5M2,
                .batch = BatchStridesOf(batch_shape, batch_strides)};
  const std::int64_t vector_bytes = Type::kDot && k_contiguous ? 16 : Type::kVectorBytes;
  const auto aligned = [&](std::int64_t elements) { return elements * ElementBytes(spec.dtype) % vector_bytes == 0; };
  o.vectors = reinterpret_cast<std::uintptr_t>(data) % vector_bytes == 0 && aligned(ld) &&
              std::all_of(batch_strides.begin(), batch_strides.end(), aligned);
  if (Type::kScaled && scale && scales != nullptr) {
    o.block_scale = scales;
    switch (scale->kind) {
      case ScaleSpec::Kind::kTensor: o.block_rows = o.block_k = INT64_MAX; break;
      case ScaleSpec::Kind::kRow:
        o.block_scale_stride = 1;
        o.block_k = INT64_MAX;
        break;
      case ScaleSpec::Kind::kBlock:
        o.block_scale_stride = scale->spec.EffectiveStrides()[0];
        o.block_rows = scale->block_rows;
        o.block_k = scale->block_k;
        break;
    }
  }
  return o;
}

template <typename Tile>
absl::Status Enqueue(SimtProblem p, const MatmulGeometry& g, Stream stream) {
  p.tiles_m = g.m / Tile::kM + (g.m % Tile::kM != 0);
  p.tiles_n = g.n / Tile::kN + (g.n % Tile::kN != 0);
  const auto blocks = static_cast<unsigned>(std::min<std::int64_t>(Tiles(g, Tile::kM, Tile::kN), INT32_MAX));
  gpu::matmul_simt<Tile><<<blocks, Tile::kThreads, 0, stream>>>(p);
  KERND_CUDA_LAUNCHED("matmul_simt");
  return absl::OkStatus();
}

template <DataType kType, bool kBlockScales>
absl::Status LaunchTiles(const MatmulProblem& p, const MatmulGeometry& g, const DeviceInfo& device,
                         const MatmulArgs& args, Stream stream) {
  using AllTiles = SimtTiles<kType, kBlockScales>;
  using Type = typename AllTiles::Type;
  const SimtProblem problem{.a = OperandOf<Type>(p.a, args.a, !p.transpose_a, g.m, g.lda, g.batch_shape,
                                                 g.a_batch_strides, p.a_scale, args.a_scale),
                            .b = OperandOf<Type>(p.b, args.b, p.transpose_b, g.n, g.ldb, g.batch_shape,
                                                 g.b_batch_strides, p.b_scale, args.b_scale),
                            .k = HasNoProduct(p, g) ? 0 : g.k,
                            .epilogue = MatmulEpilogueOf(p, g, args)};
  return UseLargeTile(g, device) ? Enqueue<typename AllTiles::Large>(problem, g, stream)
                                 : Enqueue<typename AllTiles::Small>(problem, g, stream);
}

template <DataType kType>
absl::Status Launch(const MatmulProblem& p, const MatmulGeometry& g, const DeviceInfo& device, const MatmulArgs& args,
                    void* /*workspace*/, Stream stream) {
  if (g.d.elements() == 0) return absl::OkStatus();
  if constexpr (ElementBytes(kType) == 1) {
    if (HasBlockScales(p)) return LaunchTiles<kType, true>(p, g, device, args, stream);
  }
  return LaunchTiles<kType, false>(p, g, device, args, stream);
}

// With lazy loading, asking for a kernel's attributes is what brings it to the device.
template <typename Tiles>
absl::Status LoadTiles() {
  cudaFuncAttributes attributes;
  KERND_CUDA(cudaFuncGetAttributes(&attributes, gpu::matmul_simt<typename Tiles::Large>));
  KERND_CUDA(cudaFuncGetAttributes(&attributes, gpu::matmul_simt<typename Tiles::Small>));
  return absl::OkStatus();
}

template <DataType kType>
absl::Status Load(const DeviceInfo&) {
  if constexpr (ElementBytes(kType) == 1) KERND_RETURN_IF_ERROR((LoadTiles<SimtTiles<kType, true>>()));
  return LoadTiles<SimtTiles<kType, false>>();
}

// Multiply-adds that a multiprocessor does in a clock.
template <DataType kType>
double RateOf(const DeviceInfo& device) {
  if constexpr (kType == DataType::kF64) return device.sm == 80 || device.sm == 90 || device.sm == 100 ? 64 : 2;
  if constexpr (kType == DataType::kI8) return 256;
  return 128;
}

// Waves of tiles, each as long as its multiply-adds, and no shorter than the loads of its steps; or, where that takes
// longer, everything once through memory.
template <DataType kType>
double Estimate(const MatmulProblem& p, const MatmulGeometry& g, const DeviceInfo& device) {
  constexpr double kLaunch = 6.5, kStep = 1.8;  // microseconds, of the host and of the device; fitted on an H200
  using Large = typename SimtTiles<kType, false>::Large;
  using Small = typename SimtTiles<kType, false>::Small;
  const auto time = [&]<typename Tile>(Tile) {
    const double tiles = static_cast<double>(Tiles(g, Tile::kM, Tile::kN));
    const double waves = std::ceil(tiles / (Tile::kResident * device.multiprocessors));
    const int step_k = HasBlockScales(p) ? Tile::kWords : Tile::kK;
    const double steps = HasNoProduct(p, g) ? 0 : std::ceil(static_cast<double>(g.k) / step_k);
    const double resident = std::min<double>(Tile::kResident, std::ceil(tiles / device.multiprocessors));
    const double products = static_cast<double>(Tile::kM) * Tile::kN * step_k * resident;
    const double efficiency = Tile::kSums == 8 ? 0.5 : 0.3;
    const double step = products / (RateOf<kType>(device) * efficiency) / (device.clock_khz * 1e-3);
    return waves * steps * std::max(kStep, step);
  };
  const double compute = UseLargeTile(g, device) ? time(Large{}) : time(Small{});
  const double m = static_cast<double>(g.m), n = static_cast<double>(g.n), k = static_cast<double>(g.k);
  const double bytes = (m + n) * k * ElementBytes(kType) + m * n * ElementBytes(g.output_dtype);
  const double memory =
      static_cast<double>(g.batch) * bytes / (static_cast<double>(device.memory_bytes_per_second) * 0.85) * 1e6;
  return kLaunch + std::max(compute, memory);
}

template <DataType kType>
MatmulVariant Row() {
  // The two F8 types share their kernels: either operand may be of either.
  constexpr DataType kCode = IsFloat8(kType) ? DataType::kF8E4M3 : kType;
  return {
      .info = {.name = absl::StrCat("matmul_", std::string(Token(kType)), "_sm75_simt"),
               .op = OpKind::kMatmul,
               .dtypes = {kType},
               .method = "register blocks on the FMA units, sums in the order of K; batch-invariant"},
      .min_sm = 75,
      .why_not = [](const MatmulProblem&, const MatmulGeometry&, const DeviceInfo&) { return std::string(); },
      .estimate = Estimate<kCode>,
      .workspace_bytes = [](const MatmulProblem&, const MatmulGeometry&, const DeviceInfo&) { return std::int64_t{0}; },
      .load = Load<kCode>,
      .launch = Launch<kCode>};
}

}  // namespace

absl::Span<const MatmulVariant> MatmulSimtVariants() {
  static const auto& rows = *new std::vector<MatmulVariant>{
      Row<DataType::kF16>(), Row<DataType::kBF16>(),   Row<DataType::kF32>(),   Row<DataType::kF64>(),
      Row<DataType::kI8>(),  Row<DataType::kF8E4M3>(), Row<DataType::kF8E5M2>()};
  return rows;
}

}  // namespace kernd
