// Bulk copies of a box of a tensor to shared memory, from SM 9.0 on (TMA): one thread starts them, an mbarrier gets the
// bytes. The map comes from kernels/gpu/tensor_map.h and stays in the kernel's parameters (__grid_constant__).
#pragma once

#include <cuda.h>

#include <cstdint>

#ifdef KERND_EMULATOR
#include "kernels/emulator/tensor_copy.h"
#endif

namespace kernd::gpu {

// prefetch.tensormap: the first copy by the map need not wait for it.
__device__ inline void PrefetchTensorMap([[maybe_unused]] const CUtensorMap& map) {
#ifndef KERND_EMULATOR
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
#endif
}

// cp.async.bulk.tensor.4d: the box whose first element is (x, y, z, w), innermost dimension first, goes to `to`, x
// fastest. Elements outside of the tensor are 0 and count as bytes. `to`: aligned to 1024 bytes with a swizzle of 128.
__device__ inline void TensorLoad(std::uint32_t to, const CUtensorMap& map, std::uint32_t mbarrier, int x, int y, int z,
                                  int w) {
#ifdef KERND_EMULATOR
  const std::int32_t at[4] = {x, y, z, w};
  emulator::TensorLoad(to, map, 4, at, mbarrier);
#else
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
      "[%2];" ::"r"(to),
      "l"(&map), "r"(mbarrier), "r"(x), "r"(y), "r"(z), "r"(w)
      : "memory");
#endif
}

// The same to the same places of all blocks of the cluster whose bits are set in `blocks`: each gets the bytes, and its
// mbarrier counts them.
__device__ inline void TensorLoadToAll(std::uint32_t to, const CUtensorMap& map, std::uint32_t mbarrier, int x, int y,
                                       int z, int w, std::uint16_t blocks) {
#ifdef KERND_EMULATOR
  const std::int32_t at[4] = {x, y, z, w};
  emulator::TensorLoadToAll(to, map, 4, at, mbarrier, blocks);
#else
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, "
      "{%3, %4, %5, %6}], [%2], %7;" ::"r"(to),
      "l"(&map), "r"(mbarrier), "r"(x), "r"(y), "r"(z), "r"(w), "h"(blocks)
      : "memory");
#endif
}

}  // namespace kernd::gpu
