// Copies from device memory to shared memory that run beside the thread: cp.async, from SM 8.0 on. Before that the same
// calls copy at once, through registers.
#pragma once

#include <cstdint>

namespace kernd::gpu {

// 16 bytes from the thread's registers; the place is aligned to 16.
__device__ inline void StoreShared(std::uint32_t to, const uint4& x) {
#ifdef KERND_EMULATOR
  *reinterpret_cast<uint4*>(emulator::WriteShared(to, 16, "st.shared")) = x;
#else
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
#endif
}

// 16 bytes beside the thread, both places aligned to 16: SM 8.0. Where not `there`: zeros, and `from` is not looked at.
// Never of a part of them: memcheck takes the whole for read, as the memory's sectors are.
__device__ inline void CopyAsync(std::uint32_t to, const void* from, bool there) {
#ifdef KERND_EMULATOR
  emulator::CopyAsync(to, from, there);
#else
  const int bytes = there ? 16 : 0;
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
#endif
}

// 16 bytes that are there, if `when`: without a branch, so that copies mix with what is around them.
__device__ inline void CopyAsyncIf(bool when, std::uint32_t to, const void* from) {
#ifdef KERND_EMULATOR
  if (when) emulator::CopyAsync(to, from, true);
#else
  asm volatile(
      "{\n.reg .pred when;\nsetp.ne.b32 when, %2, 0;\n"
      "@when cp.async.cg.shared.global.L2::128B [%0], [%1], 16;\n}\n" ::"r"(to),
      "l"(from), "r"(static_cast<int>(when))
      : "memory");
#endif
}

// The same as CopyAsync, before SM 8.0 through registers.
template <bool kAsync>
__device__ inline void Copy16(std::uint32_t to, const void* from, bool there) {
  if constexpr (kAsync) {
    CopyAsync(to, from, there);
  } else {
    StoreShared(to, there ? *static_cast<const uint4*>(from) : make_uint4(0, 0, 0, 0));
  }
}

// The thread's copies since the last call are a group.
template <bool kAsync>
__device__ inline void CommitCopies() {
  if constexpr (kAsync) {
#ifdef KERND_EMULATOR
    emulator::CommitCopies();
#else
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
  }
}

// Until all groups of the thread but the kNewest last ones are there, for the thread itself; for others: a barrier.
template <bool kAsync, unsigned kNewest>
__device__ inline void WaitCopies() {
  if constexpr (kAsync) {
#ifdef KERND_EMULATOR
    emulator::WaitCopies(kNewest);
#else
    asm volatile("cp.async.wait_group %0;" ::"n"(kNewest) : "memory");
#endif
  }
}

}  // namespace kernd::gpu
