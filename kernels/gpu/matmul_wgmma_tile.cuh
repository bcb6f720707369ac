// matmul_{f16,bf16}_sm90_wgmma_<M>x<N>x<K>: on Hopper's tensor cores (wgmma), for the sources that instantiate it
// (matmul_wgmma_<dtype>.cu).
//   tile     128 x 256 x 64 or 128 x 128 x 64; a block of 384 threads goes from tile to tile
//   roles    a warpgroup of which one thread copies boxes of A and B (TMA), 56 registers a thread; two that compute 64
//            rows each, 224 registers: sums of 64 x 256 in F32 take 128
//   memory   a ring of 4 stages of 48 KiB (6 of 32) as copies with a swizzle of 128 bytes leave them, either operand
//            along K or across it; 32 KiB through which results leave, so that copies for the next tile go on meanwhile
//   results  16-bit ones that are but rounded by stmatrix and whole chunks of 16 bytes, others from F32 by pairs; or as
//            sums to memory, for matmul_finish
//   narrow   none in the variants: tiles of 64 columns at most can have smaller products, after all others
//   clusters none in the variants; two blocks can do tiles below one another and share their columns of B
//   limits   16-bit operands whose lines are whole chunks of 16 bytes: matmul_wgmma.cc packs others; code for SM 9.0
//   time     for 128 x 256 x 64, products take 1024 clocks of an SM, while 48 KiB come from L2: 48 bytes a clock, near
//            what L2 gives. Results take about 1500 clocks a tile, 1.5 % of 8192^3. Ends of waves: 3 % there and at
//            4096^3. Expected 640 to 700 TFLOP/s of the 808 that products alone sustain; an H200 had 760.
#pragma once

#include "kernels/gpu/launch.cuh"
#include "kernels/gpu/matmul_wgmma_consumer.cuh"
#include "kernels/gpu/matmul_wgmma_producer.cuh"

namespace kernd::gpu {
namespace matmul_wgmma {

template <typename S>
__device__ inline void InitBarriers(Shared<S>& shared) {
  for (unsigned i = 0; i < S::kStages; ++i) {
    MbarrierInit(SharedAddress(&shared.full[i]), 1);
    MbarrierInit(SharedAddress(&shared.empty[i]), S::kWarps * S::kCluster);
  }
  FenceMbarrierInit();
}

// Until all of the block, and of its cluster, are here. Before a block leaves: nobody reaches into it any more.
template <typename S>
__device__ inline void SyncCluster() {
  if constexpr (S::kCluster > 1) ClusterSync();
}

template <typename S>
__global__ void __launch_bounds__(S::kThreads, 1) MatmulWgmma(const __grid_constant__ WgmmaMatmul p) {
  auto& shared = *static_cast<Shared<S>*>(DynamicShared());
  if (threadIdx.x == 0) InitBarriers(shared);
  __syncthreads();
  SyncCluster<S>();
  if (threadIdx.x < kWarpgroup) {
    SetMaxRegisters<S::kProducerRegisters, false>();
    if (threadIdx.x < 32 && ElectOne()) Producer<S>(p, shared).Run();
    SyncCluster<S>();
  } else {
    SetMaxRegisters<S::kComputingRegisters, true>();
    Consumer<S>(p, shared).Run();
    SyncCluster<S>();
  }
}

template <typename S>
WgmmaMatmulKernel KernelOf() {
  constexpr std::size_t kBytes = sizeof(Shared<S>);
  static_assert(kBytes <= 227 * 1024);
  return {
      .tile =
          {.m = S::kM, .n = S::kN, .k = S::kK, .warps_m = S::kWarps, .warps_n = 1, .stages = S::kStages, .blocks = 1},
      .cluster = S::kCluster,
      .narrow = S::kNarrow,
      .shared_bytes = kBytes,
      .load = [] { return AllowSharedMemory(MatmulWgmma<S>, kBytes); },
      .launch =
          [](const WgmmaMatmul& p, unsigned blocks, Stream stream) {
            return LaunchClusters("MatmulWgmma", MatmulWgmma<S>, S::kCluster, blocks, S::kThreads, kBytes, stream, p);
          }};
}

// For each way in which operands may lie.
template <DataType kType, unsigned kN, unsigned kStages, unsigned kCluster = 1, bool kNarrow = false>
WgmmaMatmulKernel KernelFor(const WgmmaLayout& layout) {
  constexpr Major kK = Major::kK, kMn = Major::kMn;
  if (layout.a_along_k) {
    return layout.b_along_k ? KernelOf<Shape<kType, kN, kStages, kK, kK, kCluster, kNarrow>>()
                            : KernelOf<Shape<kType, kN, kStages, kK, kMn, kCluster, kNarrow>>();
  }
  return layout.b_along_k ? KernelOf<Shape<kType, kN, kStages, kMn, kK, kCluster, kNarrow>>()
                          : KernelOf<Shape<kType, kN, kStages, kMn, kMn, kCluster, kNarrow>>();
}

}  // namespace matmul_wgmma

template <DataType kType, int kIndex>
WgmmaMatmulKernel WgmmaMatmulKernelOf(const WgmmaLayout& layout) {
  constexpr MmaTile kTile = kWgmmaTile[kIndex];
  // Products of their own for narrow tiles: of 128 columns, a narrow one saves half at most.
  return matmul_wgmma::KernelFor<kType, kTile.n, kTile.stages, 1, kTile.n == 256>(layout);
}

}  // namespace kernd::gpu
