// The kernel of attention_wgmma.cu for one shape, and how the host sees it.
#pragma once

#include "kernels/gpu/attention_wgmma_consumer.cuh"
#include "kernels/gpu/attention_wgmma_producer.cuh"

namespace kernd::gpu {
namespace attention_wgmma {

template <typename S>
__device__ inline void InitBarriers(Shared<S>& shared) {
  constexpr unsigned kWarps = S::kComputing / 32;
  const auto init = [](std::uint64_t& full, std::uint64_t& empty) {
    MbarrierInit(SharedAddress(&full), 1);
    MbarrierInit(SharedAddress(&empty), kWarps);
  };
  for (unsigned i = 0; i < S::kQ; ++i) init(shared.q_full[i], shared.q_empty[i]);
  for (unsigned i = 0; i < S::kStages; ++i) {
    init(shared.k_full[i], shared.k_empty[i]);
    init(shared.v_full[i], shared.v_empty[i]);
  }
  for (unsigned i = 0; i < kJobs; ++i) init(shared.job_full[i], shared.job_empty[i]);
  FenceMbarrierInit();
}

template <typename S>
__global__ void __launch_bounds__(S::kThreads, 1) AttentionWgmma(const __grid_constant__ WgmmaLaunch launch) {
  auto& shared = *static_cast<Shared<S>*>(DynamicShared());
  if (threadIdx.x < kSuspectWords) shared.suspects[threadIdx.x] = 0;
  if (threadIdx.x == 0) InitBarriers(shared);
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    SetMaxRegisters<S::kProducerRegisters, false>();
    if (threadIdx.x < 32) {
      if (ElectOne()) Producer<S>(launch, shared).Run();
    } else if (threadIdx.x < 64) {
      if (ElectOne()) Scheduler<S>(launch, shared).Run();
    }
  } else {
    SetMaxRegisters<S::kComputingRegisters, true>();
    Consumer<S>(launch, shared).Run();
  }
}

template <typename S>
WgmmaKernel KernelOf() {
  constexpr std::size_t kBytes = sizeof(Shared<S>);
  static_assert(kBytes <= 227 * 1024);
  return {.rows = S::kRows,
          .keys = S::kKeys,
          .shared_bytes = kBytes,
          .sections = S::kGroups == 3,
          .load = [] { return AllowSharedMemory(AttentionWgmma<S>, kBytes); },
          .launch =
              [](const WgmmaLaunch& launch, unsigned blocks, Stream stream) {
                return LaunchKernel("AttentionWgmma", AttentionWgmma<S>, blocks, S::kThreads, kBytes, stream, launch);
              }};
}

// Measured by nobody yet: the shapes that public kernels for Hopper have settled on.
// tests/bench/attention_wgmma_tiles.cu compares others.
template <DataType kType, unsigned kD, unsigned kDv>
WgmmaKernel Choose([[maybe_unused]] bool positional) {
  if constexpr (kD == 64) return KernelOf<Shape<kType, 64, 64, 128, 3, true, true>>();
  if constexpr (kD == 96) return KernelOf<Shape<kType, 96, 96, 128, 2, true, true>>();
  if constexpr (kD == 128) return KernelOf<Shape<kType, 128, 128, 128, 2, true, true>>();
  if constexpr (kD == 192 && kDv == 128) return KernelOf<Shape<kType, 192, 128, 128, 2, true, false, 1>>();
  if constexpr (kD == 192 && kDv == 192) return KernelOf<Shape<kType, 192, 192, 96, 2, true, false, 1>>();
  if constexpr (kD == 256) return KernelOf<Shape<kType, 256, 256, 80, 2, true, false, 1>>();
}

}  // namespace attention_wgmma

template <unsigned kD, unsigned kDv>
WgmmaKernel WgmmaKernelOf(DataType type, bool positional) {
  return type == DataType::kF16 ? attention_wgmma::Choose<DataType::kF16, kD, kDv>(positional)
                                : attention_wgmma::Choose<DataType::kBF16, kD, kDv>(positional);
}

}  // namespace kernd::gpu
