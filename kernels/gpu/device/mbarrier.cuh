// Barriers in shared memory that count arrivals of threads and bytes of bulk copies, from SM 9.0 on: mbarrier objects.
// `at` is an address in shared memory, of 8 bytes. A phase is over when all have arrived and all announced bytes are
// there; its parity is 0 for the first, then 1, 0, ...
#pragma once

#include <cstdint>

#ifdef KERND_EMULATOR
#include "kernels/emulator/barriers.h"
#endif

namespace kernd::gpu {

// mbarrier.init: for so many arrivals a phase. Others may use it past FenceMbarrierInit and a barrier of the block.
__device__ inline void MbarrierInit(std::uint32_t at, unsigned arrivals) {
#ifdef KERND_EMULATOR
  emulator::MbarrierInit(at, arrivals);
#else
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(arrivals) : "memory");
#endif
}

// fence.mbarrier_init: bulk copies see what the thread initialised.
__device__ inline void FenceMbarrierInit() {
#ifdef KERND_EMULATOR
  emulator::FenceMbarrierInit();
#else
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

// mbarrier.arrive: what the thread did before is done for those who wait.
__device__ inline void MbarrierArrive(std::uint32_t at) {
#ifdef KERND_EMULATOR
  emulator::MbarrierArrive(at);
#else
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
#endif
}

// mbarrier.arrive.expect_tx: also announces bytes that copies bring within this phase.
__device__ inline void MbarrierArriveExpect(std::uint32_t at, std::uint32_t bytes) {
#ifdef KERND_EMULATOR
  emulator::MbarrierArriveExpect(at, bytes);
#else
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
#endif
}

// mbarrier.try_wait.parity until it holds: the phase of that parity, the one that goes on or the one before it, is
// over.
__device__ inline void MbarrierWait(std::uint32_t at, unsigned parity) {
#ifdef KERND_EMULATOR
  emulator::MbarrierWait(at, parity);
#else
  unsigned done = 0;
  while (done == 0) {
    asm volatile(
        "{\n"
        ".reg .pred over;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 over, [%1], %2;\n"
        "selp.u32 %0, 1, 0, over;\n"
        "}\n"
        : "=r"(done)
        : "r"(at), "r"(parity)
        : "memory");
  }
#endif
}

// Where a thread is in a ring of kCount buffers, each with a barrier of its own: the buffer, and the parity of the
// phase in which it is used now.
template <unsigned kCount>
struct RingPlace {
  unsigned index = 0, parity = 0;

  __device__ void Next() {
    if (++index == kCount) {
      index = 0;
      parity ^= 1;
    }
  }
};

}  // namespace kernd::gpu
