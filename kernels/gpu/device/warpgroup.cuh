// How warps and warpgroups of a block agree, on SM 9.0: named barriers, the proxy fence, registers, election.
#pragma once

#include <cstdint>

#ifdef KERND_EMULATOR
#include "kernels/emulator/barriers.h"
#endif

namespace kernd::gpu {

inline constexpr unsigned kWarpgroup = 128;

// bar.sync: until `threads` threads, whole warps, have come to barrier `id`, 1 to 15.
__device__ inline void NamedSync(unsigned id, unsigned threads) {
#ifdef KERND_EMULATOR
  emulator::NamedSync(id, threads);
#else
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
#endif
}

// bar.arrive: comes and goes on.
__device__ inline void NamedArrive(unsigned id, unsigned threads) {
#ifdef KERND_EMULATOR
  emulator::NamedArrive(id, threads);
#else
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
#endif
}

// fence.proxy.async: what the thread wrote to shared memory by ordinary instructions is there for wgmma and bulk copies
// that are ordered after it by a barrier.
__device__ inline void FenceProxyAsync() {
#ifdef KERND_EMULATOR
  emulator::FenceProxyAsync();
#else
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// setmaxnreg, by all warps of a warpgroup: gives registers back, or waits for more.
template <unsigned kCount, bool kIncrease>
__device__ inline void SetMaxRegisters() {
  static_assert(kCount % 8 == 0 && kCount >= 24 && kCount <= 256);
#ifdef KERND_EMULATOR
  emulator::SetMaxRegisters(kCount, kIncrease);
#else
  if constexpr (kIncrease) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
  } else {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
  }
#endif
}

// elect.sync: true in one lane of the warp.
__device__ inline bool ElectOne() {
#ifdef KERND_EMULATOR
  return emulator::ElectOne();
#else
  unsigned elected;
  asm volatile(
      "{\n"
      ".reg .pred one;\n"
      "elect.sync _|one, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, one;\n"
      "}\n"
      : "=r"(elected));
  return elected != 0;
#endif
}

}  // namespace kernd::gpu
