// matmul_pack and matmul_finish: the passes around cuBLASLt, and after sums in parts.
//
//   pack     tiles of 64 x 64, 256 threads, 16 elements each, all loaded before the first is used. Reads run along the
//            source's own contiguous dimension, writes along K: through shared memory (64 x 65) where the two differ
//            Where they do not, and elements stay what they are, a warp copies 128 pieces of 16 bytes of a line: what
//            is crooked is read in aligned pieces, two for each of the copy's, and shifted
//   finish   a warp does 128 columns of a row, each lane every 32nd, so that accesses are whole lines whatever N is
//   limits   none; offsets are 64-bit, and blocks stride over tiles where a grid cannot hold them
//   time     memory
#include <cuda_fp8.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/gpu/cuda.h"
#include "kernels/gpu/launch.cuh"
#include "kernels/gpu/matmul_epilogue.cuh"
#include "kernels/gpu/matmul_passes.h"

namespace kernd {
namespace gpu {
namespace {

constexpr int kThreads = 256, kSide = 64;

// Bits of an element, or F8 made F16, of which E5M2 is the upper half.
template <typename From, typename To>
__device__ To Packed(From bits, bool e5m2) {
  if constexpr (sizeof(From) == sizeof(To)) {
    return bits;
  } else {
    const To e4m3 = __nv_cvt_fp8_to_halfraw(bits, __NV_E4M3).x;
    return e5m2 ? static_cast<To>(bits << 8) : e4m3;
  }
}

template <typename From, typename To>
__global__ void __launch_bounds__(kThreads)
    matmul_pack(const __grid_constant__ MatmulPack p, std::int64_t tiles_row, std::int64_t tiles_k) {
  constexpr int kLinesAtOnce = kThreads / kSide, kEach = kSide / kLinesAtOnce;
  __shared__ To staged[kSide][kSide + 1];  // [row][k]
  const int lane = static_cast<int>(threadIdx.x) % kSide, first = static_cast<int>(threadIdx.x) / kSide;
  const bool e5m2 = p.type == DataType::kF8E5M2;
  for (std::int64_t tile = blockIdx.x; tile < p.items * tiles_row * tiles_k; tile += gridDim.x) {
    const std::int64_t item = Divide(tile, tiles_row * tiles_k), in_item = tile - item * (tiles_row * tiles_k);
    const std::int64_t tile_row = Divide(in_item, tiles_k), row0 = tile_row * kSide;
    const std::int64_t k0 = (in_item - tile_row * tiles_k) * kSide;
    // A line is what is contiguous in the source.
    const std::int64_t line0 = (p.k_contiguous ? row0 : k0) + first, at = (p.k_contiguous ? k0 : row0) + lane;
    const std::int64_t lines = p.k_contiguous ? p.rows : p.k;
    const bool inside = at < (p.k_contiguous ? p.k : p.rows);
    const From* from = static_cast<const From*>(p.from) + OffsetOf(p.batch, item) + line0 * p.ld + at;
    To x[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      x[i] = Packed<From, To>(inside && line0 + i * kLinesAtOnce < lines ? *from : From{0}, e5m2);
      from += kLinesAtOnce * p.ld;
    }
    if (!p.k_contiguous) {
#pragma unroll
      for (int i = 0; i < kEach; ++i) staged[lane][first + i * kLinesAtOnce] = x[i];
      __syncthreads();
#pragma unroll
      for (int i = 0; i < kEach; ++i) x[i] = staged[first + i * kLinesAtOnce][lane];
      __syncthreads();
    }
    To* to = static_cast<To*>(p.to) + (item * p.to_rows + row0 + first) * p.to_k + k0 + lane;
    const bool writes = k0 + lane < p.to_k;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (writes && row0 + first + i * kLinesAtOnce < p.to_rows) *to = x[i];
      to += kLinesAtOnce * p.to_k;
    }
  }
}

constexpr int kLanes = 32, kWarps = kThreads / kLanes, kFinishEach = 4, kLineEach = 4;

// 16 of the 32 bytes at `x`, from byte `shift` on, 0 to 15.
__device__ inline uint4 ShiftedChunk(const uint4 (&x)[2], unsigned shift) {
  std::uint32_t w[8] = {x[0].x, x[0].y, x[0].z, x[0].w, x[1].x, x[1].y, x[1].z, x[1].w};
#pragma unroll
  for (int i = 0; i < 6; ++i) w[i] = (shift & 8) != 0 ? w[i + 2] : w[i];
#pragma unroll
  for (int i = 0; i < 5; ++i) w[i] = (shift & 4) != 0 ? w[i + 1] : w[i];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    w[i] = static_cast<std::uint32_t>((std::uint64_t{w[i + 1]} << 32 | w[i]) >> (shift % 4 * 8));
  }
  return make_uint4(w[0], w[1], w[2], w[3]);
}

// Lines that keep their direction. Aligned pieces are read where all of them lies within the item, its gaps included;
// at its ends, and at the end of a line, elements one by one.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    matmul_pack_lines(const __grid_constant__ MatmulPack p, std::int64_t parts_line) {
  constexpr int kPerChunk = 16 / static_cast<int>(sizeof(T)), kEach = kLineEach;
  const std::int64_t parts = p.items * p.to_rows * parts_line, chunks = p.to_k / kPerChunk;
  for (std::int64_t part = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / kLanes; part < parts;
       part += std::int64_t{gridDim.x} * kWarps) {
    const std::int64_t line = Divide(part, parts_line), item = Divide(line, p.to_rows), row = line - item * p.to_rows;
    const std::int64_t first = (part - line * parts_line) * (kLanes * kEach) + threadIdx.x % kLanes;
    const T* const begin = static_cast<const T*>(p.from) + OffsetOf(p.batch, item);
    const T* const end = begin + (p.rows - 1) * p.ld + p.k;
    const T* const from = begin + row * p.ld;
    const auto shift = static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(from) % 16);
    const auto* const pieces = reinterpret_cast<const uint4*>(reinterpret_cast<std::uintptr_t>(from) - shift);
    const auto is_inside = [&](std::int64_t chunk) {
      return row < p.rows && (chunk + 1) * kPerChunk <= p.k && pieces + chunk >= static_cast<const void*>(begin) &&
             pieces + chunk + (shift == 0 ? 1 : 2) <= static_cast<const void*>(end);
    };
    uint4 read[kEach][2] = {};
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const std::int64_t chunk = first + i * kLanes;
      if (!is_inside(chunk)) continue;
      read[i][0] = pieces[chunk];
      if (shift != 0) read[i][1] = pieces[chunk + 1];
    }
    auto* const to = reinterpret_cast<uint4*>(static_cast<T*>(p.to) + line * p.to_k);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const std::int64_t chunk = first + i * kLanes;
      if (chunk >= chunks) break;
      if (is_inside(chunk)) {
        to[chunk] = ShiftedChunk(read[i], shift);
        continue;
      }
      T* const elements = reinterpret_cast<T*>(to + chunk);
#pragma unroll 1
      for (int e = 0; e < kPerChunk; ++e) {
        const std::int64_t k = chunk * kPerChunk + e;
        elements[e] = row < p.rows && k < p.k ? from[k] : T{0};
      }
    }
  }
}

// A warp does kLanes * kEach columns of a row at a time: calls `part(row, column)` with the row, counted through all
// batch items, and the lane's first column.
template <int kEach, typename Part>
__device__ void ForEachPart(const MatmulEpilogue& e, const Part& part) {
  const std::int64_t columns = (e.n + kLanes * kEach - 1) / (kLanes * kEach), parts = e.batch * e.m * columns;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / kLanes; i < parts;
       i += std::int64_t{gridDim.x} * kWarps) {
    const std::int64_t line = Divide(i, columns);
    part(line, (i - line * columns) * (kLanes * kEach) + threadIdx.x % kLanes);
  }
}

// The sum of element `at` over all parts: integers modulo 2^32, F32 one part after the other.
template <typename T>
__device__ T AllParts(const MatmulEpilogue& e, const MatmulSums& sums, std::int64_t at) {
  const std::int64_t next = e.batch * e.m * sums.ld;
  if (sums.type == DataType::kI32) {
    std::uint32_t sum = 0;
    for (std::int64_t i = 0; i < sums.parts; ++i) sum += static_cast<const std::uint32_t*>(sums.data)[at + i * next];
    return static_cast<T>(static_cast<std::int32_t>(sum));
  }
  float sum = static_cast<const float*>(sums.data)[at];
  for (std::int64_t i = 1; i < sums.parts; ++i) sum = Add(sum, static_cast<const float*>(sums.data)[at + i * next]);
  return static_cast<T>(sum);
}

// Finish() of matmul_epilogue.cuh, step by step for all columns of a lane, so that each branch is taken once for them
// and their loads are in flight together. T: what the epilogue computes in.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    matmul_finish(const __grid_constant__ MatmulEpilogue e, const __grid_constant__ MatmulSums sums) {
  constexpr int kEach = kFinishEach;
  ForEachPart<kEach>(e, [&](std::int64_t line, std::int64_t col0) {
    T x[kEach] = {};
    // `step(i, column)` for each column of the lane that exists.
    const auto each = [&](const auto& step) {
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const std::int64_t col = col0 + i * kLanes;
        if (col < e.n) step(i, col);
      }
    };
    if (sums.parts > 1) {
      each([&](int i, std::int64_t col) { x[i] = AllParts<T>(e, sums, line * sums.ld + col); });
    } else if (sums.type != DataType::kInvalid) {
      WithType(sums.type, [&](auto type) {
        each([&](int i, std::int64_t col) { x[i] = LoadElement<T>(type(), sums.data, line * sums.ld + col); });
      });
    }
    if (!e.plain) {
      const std::int64_t item = Divide(line, e.m), row = line - item * e.m;
      T factor = static_cast<T>(e.alpha);
      if (e.a_scale != nullptr) factor = Mul(factor, static_cast<T>(e.a_scale[row * e.a_scale_stride]));
      if (e.b_scale != nullptr) {
        each([&](int i, std::int64_t col) {
          x[i] = Mul(x[i], Mul(factor, static_cast<T>(e.b_scale[col * e.b_scale_stride])));
        });
      } else {
        each([&](int i, std::int64_t) { x[i] = Mul(x[i], factor); });
      }
      if (e.c != nullptr) {
        const std::int64_t c_row = OffsetOf(e.c_batch, item) + row * e.ldc;
        WithType(e.output, [&](auto type) {
          each([&](int i, std::int64_t col) {
            x[i] = fma(static_cast<T>(e.beta), LoadElement<T>(type(), e.c, c_row + col), x[i]);
          });
        });
      }
      if (e.bias != nullptr) {
        WithType(e.bias_type, [&](auto type) {
          each([&](int i, std::int64_t col) { x[i] = Add(x[i], LoadElement<T>(type(), e.bias, col)); });
        });
      }
    }
    ActivateAll(e.activation, x);
    WithType(e.output, [&](auto type) {
      each([&](int i, std::int64_t col) { StoreElement(type(), x[i], e.d, line * e.n + col); });
    });
  });
}

unsigned Blocks(std::int64_t wanted) {
  return static_cast<unsigned>(std::min<std::int64_t>(wanted, INT32_MAX));
}

template <typename From, typename To>
absl::Status LaunchPack(const MatmulPack& p, Stream stream) {
  if constexpr (std::is_same_v<From, To>) {
    constexpr std::int64_t kPerChunk = 16 / sizeof(To), kPart = kLanes * kLineEach * kPerChunk;
    if (p.k_contiguous && p.to_k % kPerChunk == 0) {
      const std::int64_t parts_line = (p.to_k + kPart - 1) / kPart;
      const std::int64_t blocks = (p.items * p.to_rows * parts_line + kWarps - 1) / kWarps;
      return LaunchKernel("matmul_pack_lines", matmul_pack_lines<To>, Blocks(blocks), kThreads, 0, stream, p,
                          parts_line);
    }
  }
  const std::int64_t tiles_row = (p.to_rows + kSide - 1) / kSide, tiles_k = (p.to_k + kSide - 1) / kSide;
  return LaunchKernel("matmul_pack", matmul_pack<From, To>, Blocks(p.items * tiles_row * tiles_k), kThreads, 0, stream,
                      p, tiles_row, tiles_k);
}

}  // namespace
}  // namespace gpu

absl::Status EnqueuePack(const MatmulPack& p, Stream stream) {
  if (p.items * p.to_rows * p.to_k == 0) return absl::OkStatus();
  if (p.type != p.to_type) return gpu::LaunchPack<std::uint8_t, std::uint16_t>(p, stream);
  switch (ElementBytes(p.type)) {
    case 1: return gpu::LaunchPack<std::uint8_t, std::uint8_t>(p, stream);
    case 2: return gpu::LaunchPack<std::uint16_t, std::uint16_t>(p, stream);
    default: return gpu::LaunchPack<std::uint32_t, std::uint32_t>(p, stream);
  }
}

absl::Status EnqueueFinish(const MatmulEpilogue& e, const MatmulSums& sums, Stream stream) {
  if (e.batch == 0 || e.m == 0 || e.n == 0) return absl::OkStatus();
  constexpr int kColumns = gpu::kLanes * gpu::kFinishEach;
  const std::int64_t parts = e.batch * e.m * (e.n / kColumns + (e.n % kColumns != 0));
  const unsigned blocks = gpu::Blocks((parts + gpu::kWarps - 1) / gpu::kWarps);
  const auto kernel = e.wide ? gpu::matmul_finish<double> : gpu::matmul_finish<float>;
  return gpu::LaunchKernel("matmul_finish", kernel, blocks, gpu::kThreads, 0, stream, e, sums);
}

absl::Status LoadMatmulPasses() {
  cudaFuncAttributes attributes;
  for (const auto pack :
       {gpu::matmul_pack<std::uint8_t, std::uint8_t>, gpu::matmul_pack<std::uint8_t, std::uint16_t>,
        gpu::matmul_pack<std::uint16_t, std::uint16_t>, gpu::matmul_pack<std::uint32_t, std::uint32_t>}) {
    KERND_CUDA(cudaFuncGetAttributes(&attributes, pack));
  }
  KERND_CUDA(cudaFuncGetAttributes(&attributes, gpu::matmul_pack_lines<std::uint8_t>));
  KERND_CUDA(cudaFuncGetAttributes(&attributes, gpu::matmul_pack_lines<std::uint16_t>));
  KERND_CUDA(cudaFuncGetAttributes(&attributes, gpu::matmul_pack_lines<std::uint32_t>));
  KERND_CUDA(cudaFuncGetAttributes(&attributes, gpu::matmul_finish<float>));
  KERND_CUDA(cudaFuncGetAttributes(&attributes, gpu::matmul_finish<double>));
  return absl::OkStatus();
}

}  // namespace kernd
