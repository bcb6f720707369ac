// Blocks of a cluster, from SM 9.0 on: who they are, how they wait for one another, and barriers of each other's shared
// memory. Shared memory of all has the same places.
#pragma once

#include <cstdint>

#include "kernels/gpu/device/mbarrier.cuh"

namespace kernd::gpu {

// The block's number in its cluster.
__device__ inline unsigned ClusterRank() {
#ifdef KERND_EMULATOR
  return emulator::ClusterRank();
#else
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
#endif
}

// barrier.cluster: until all threads of the cluster that have not left are here.
__device__ inline void ClusterSync() {
#ifdef KERND_EMULATOR
  emulator::ClusterSync();
#else
  asm volatile(
      "barrier.cluster.arrive.release;\n"
      "barrier.cluster.wait.acquire;" ::
          : "memory");
#endif
}

// MbarrierArrive on the barrier at the same place of block `rank`, which learns that the thread has read what it had to
// read. Of what it wrote it learns nothing: a release for the cluster would wait for all memory, in every stage.
__device__ inline void MbarrierArriveAt(std::uint32_t at, unsigned rank) {
#ifdef KERND_EMULATOR
  emulator::MbarrierArriveAt(at, rank);
#else
  asm volatile(
      "{\n"
      ".reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
      "}" ::"r"(at),
      "r"(rank)
      : "memory");
#endif
}

}  // namespace kernd::gpu
