// The warpgroup's tensor-core instructions of SM 9.0a: D (+)= A B of 64 x 16 by 16 x kN, in F32. Registers of D and A,
// and the descriptors of operands in shared memory, are as kernels/emulator/wgmma.h lists them from the PTX ISA:
// D[n][i] of a lane is register 4 n + i.
//
// All four warps of a warpgroup call these together. Order: FenceRegisters and WgmmaFence, products, WgmmaCommit,
// WgmmaWait, FenceRegisters. Between the first product and the wait nobody touches D, A or what B and A have in shared
// memory.
#pragma once

#include <cstdint>

#include "kernd/kernels/dtype.h"

#ifdef KERND_EMULATOR
#include "kernels/emulator/wgmma.h"
#endif

namespace kernd::gpu {

// Of tiles of 128-byte rows, 8 rows one after the other making a pattern of 1024 bytes (device/shared.cuh: Slabs).
// K-major: rows are M or N. The instruction for channels 16 i to 16 i + 15 of a slab begins 32 i bytes further.
__device__ inline std::uint64_t KMajorDescriptor(std::uint32_t address) {
  return (address & 0x3ffff) >> 4 | std::uint64_t{1} << 16 | std::uint64_t{1024 >> 4} << 32 | std::uint64_t{1} << 62;
}
// MN-major: rows are K, columns M or N; `slab` bytes from one 64 columns to the next. 16 rows are 2048 bytes.
__device__ inline std::uint64_t MnMajorDescriptor(std::uint32_t address, std::uint32_t slab) {
  return (address & 0x3ffff) >> 4 | std::uint64_t{slab >> 4} << 16 | std::uint64_t{1024 >> 4} << 32 |
         std::uint64_t{1} << 62;
}
// The descriptor of a place some bytes further, a multiple of 16.
__device__ inline std::uint64_t Further(std::uint64_t descriptor, std::uint32_t bytes) {
  return descriptor + (bytes >> 4);
}

// Keeps the compiler from moving accesses of registers across.
template <unsigned kTiles>
__device__ inline void FenceRegisters([[maybe_unused]] float (&d)[kTiles][4]) {
#ifndef KERND_EMULATOR
#pragma unroll
  for (unsigned n = 0; n < kTiles; ++n) {
    asm volatile("" : "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])::"memory");
  }
#endif
}
template <unsigned kSteps>
__device__ inline void FenceRegisters([[maybe_unused]] std::uint32_t (&a)[kSteps][4]) {
#ifndef KERND_EMULATOR
#pragma unroll
  for (unsigned k = 0; k < kSteps; ++k) {
    asm volatile("" : "+r"(a[k][0]), "+r"(a[k][1]), "+r"(a[k][2]), "+r"(a[k][3])::"memory");
  }
#endif
}

// wgmma.fence: registers are as the thread left them.
__device__ inline void WgmmaFence() {
#ifdef KERND_EMULATOR
  emulator::WgmmaFence();
#else
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

// wgmma.commit_group: the products since the last call are a group.
__device__ inline void WgmmaCommit() {
#ifdef KERND_EMULATOR
  emulator::WgmmaCommit();
#else
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

// wgmma.wait_group: until all groups but the kNewest last ones are done.
template <unsigned kNewest>
__device__ inline void WgmmaWait() {
#ifdef KERND_EMULATOR
  emulator::WgmmaWait(kNewest);
#else
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kNewest) : "memory");
#endif
}

// What rows of an operand in shared memory run along: K, or M or N.
enum class Major : std::uint8_t { kK, kMn };

// Shared: wgmma.mma_async with A and B in shared memory. Registers: A in registers, B MN-major. `accumulate`: D counts;
// otherwise it is written.
template <DataType kType, unsigned kN>
struct Wgmma;

#ifdef KERND_EMULATOR

template <DataType kType, unsigned kN>
struct Wgmma {
  static constexpr emulator::Half kHalf = kType == DataType::kF16 ? emulator::Half::kF16 : emulator::Half::kBF16;

  template <Major kA = Major::kK, Major kB = Major::kK>
  static void Shared(float (&d)[kN / 8][4], std::uint64_t a, std::uint64_t b, bool accumulate) {
    emulator::Wgmma(kHalf, kN, &d[0][0], nullptr, a, b, kA == Major::kMn, kB == Major::kMn, accumulate);
  }
  static void Registers(float (&d)[kN / 8][4], std::uint32_t (&a)[4], std::uint64_t b, bool accumulate) {
    emulator::Wgmma(kHalf, kN, &d[0][0], a, 0, b, false, true, accumulate);
  }
};

#else

// clang-format off
#define KERND_D0 "%0, %1, %2, %3, %4, %5, %6, %7"
#define KERND_D1 "%8, %9, %10, %11, %12, %13, %14, %15"
#define KERND_D2 "%16, %17, %18, %19, %20, %21, %22, %23"
#define KERND_D3 "%24, %25, %26, %27, %28, %29, %30, %31"
#define KERND_D4 "%32, %33, %34, %35, %36, %37, %38, %39"
#define KERND_D5 "%40, %41, %42, %43, %44, %45, %46, %47"
#define KERND_D6 "%48, %49, %50, %51, %52, %53, %54, %55"
#define KERND_D7 "%56, %57, %58, %59, %60, %61, %62, %63"
#define KERND_D8 "%64, %65, %66, %67, %68, %69, %70, %71"
#define KERND_D9 "%72, %73, %74, %75, %76, %77, %78, %79"
#define KERND_D10 "%80, %81, %82, %83, %84, %85, %86, %87"
#define KERND_D11 "%88, %89, %90, %91, %92, %93, %94, %95"
#define KERND_D12 "%96, %97, %98, %99, %100, %101, %102, %103"
#define KERND_D13 "%104, %105, %106, %107, %108, %109, %110, %111"
#define KERND_D14 "%112, %113, %114, %115, %116, %117, %118, %119"
#define KERND_D15 "%120, %121, %122, %123, %124, %125, %126, %127"
#define KERND_R1(i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
#define KERND_R(g) KERND_R1(2 * g), KERND_R1(2 * g + 1)
#define KERND_DS64 KERND_D0 ", " KERND_D1 ", " KERND_D2 ", " KERND_D3
#define KERND_RS64 KERND_R(0), KERND_R(1), KERND_R(2), KERND_R(3)
#define KERND_DS80 KERND_D0 ", " KERND_D1 ", " KERND_D2 ", " KERND_D3 ", " KERND_D4
#define KERND_RS80 KERND_R(0), KERND_R(1), KERND_R(2), KERND_R(3), KERND_R(4)
#define KERND_DS96 KERND_D0 ", " KERND_D1 ", " KERND_D2 ", " KERND_D3 ", " KERND_D4 ", " KERND_D5
#define KERND_RS96 KERND_R(0), KERND_R(1), KERND_R(2), KERND_R(3), KERND_R(4), KERND_R(5)
#define KERND_DS112 KERND_D0 ", " KERND_D1 ", " KERND_D2 ", " KERND_D3 ", " KERND_D4 ", " KERND_D5 ", " KERND_D6
#define KERND_RS112 KERND_R(0), KERND_R(1), KERND_R(2), KERND_R(3), KERND_R(4), KERND_R(5), KERND_R(6)
#define KERND_DS128 KERND_D0 ", " KERND_D1 ", " KERND_D2 ", " KERND_D3 ", " KERND_D4 ", " KERND_D5 ", " KERND_D6 ", " KERND_D7
#define KERND_RS128 KERND_R(0), KERND_R(1), KERND_R(2), KERND_R(3), KERND_R(4), KERND_R(5), KERND_R(6), KERND_R(7)
#define KERND_DS160 KERND_D0 ", " KERND_D1 ", " KERND_D2 ", " KERND_D3 ", " KERND_D4 ", " KERND_D5 ", " KERND_D6 ", " KERND_D7 ", " KERND_D8 ", " KERND_D9
#define KERND_RS160 KERND_R(0), KERND_R(1), KERND_R(2), KERND_R(3), KERND_R(4), KERND_R(5), KERND_R(6), KERND_R(7), KERND_R(8), KERND_R(9)
#define KERND_DS176 KERND_D0 ", " KERND_D1 ", " KERND_D2 ", " KERND_D3 ", " KERND_D4 ", " KERND_D5 ", " KERND_D6 ", " KERND_D7 ", " KERND_D8 ", " KERND_D9 ", " KERND_D10
#define KERND_RS176 KERND_R(0), KERND_R(1), KERND_R(2), KERND_R(3), KERND_R(4), KERND_R(5), KERND_R(6), KERND_R(7), KERND_R(8), KERND_R(9), KERND_R(10)
#define KERND_DS192 KERND_D0 ", " KERND_D1 ", " KERND_D2 ", " KERND_D3 ", " KERND_D4 ", " KERND_D5 ", " KERND_D6 ", " KERND_D7 ", " KERND_D8 ", " KERND_D9 ", " KERND_D10 ", " KERND_D11
#define KERND_RS192 KERND_R(0), KERND_R(1), KERND_R(2), KERND_R(3), KERND_R(4), KERND_R(5), KERND_R(6), KERND_R(7), KERND_R(8), KERND_R(9), KERND_R(10), KERND_R(11)
#define KERND_DS256 KERND_D0 ", " KERND_D1 ", " KERND_D2 ", " KERND_D3 ", " KERND_D4 ", " KERND_D5 ", " KERND_D6 ", " KERND_D7 ", " KERND_D8 ", " KERND_D9 ", " KERND_D10 ", " KERND_D11 ", " KERND_D12 ", " KERND_D13 ", " KERND_D14 ", " KERND_D15
#define KERND_RS256 KERND_R(0), KERND_R(1), KERND_R(2), KERND_R(3), KERND_R(4), KERND_R(5), KERND_R(6), KERND_R(7), KERND_R(8), KERND_R(9), KERND_R(10), KERND_R(11), KERND_R(12), KERND_R(13), KERND_R(14), KERND_R(15)

#define KERND_WGMMA_SHARED(N, TYPE, A, B, C, MA, MB)                                                               \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #C ", 0;\n"                                                    \
               "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" KERND_DS##N "}, %" #A ", %" #B   \
               ", p, 1, 1, %" #MA ", %" #MB ";\n}\n"                                                               \
               : KERND_RS##N                                                                                       \
               : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(kA == Major::kMn), "n"(kB == Major::kMn))
#define KERND_WGMMA_REGISTERS(N, TYPE, A0, A1, A2, A3, B, C)                                                       \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #C ", 0;\n"                                                    \
               "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" KERND_DS##N "}, {%" #A0 ", %" #A1 \
               ", %" #A2 ", %" #A3 "}, %" #B ", p, 1, 1, 1;\n}\n"                                                  \
               : KERND_RS##N                                                                                       \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)))
// The numbers are those of the operands past D's kN / 2 registers.
#define KERND_WGMMA(N, I0, I1, I2, I3, I4, I5)                                                                     \
  template <DataType kType>                                                                                        \
  struct Wgmma<kType, N> {                                                                                         \
    template <Major kA = Major::kK, Major kB = Major::kK>                                                          \
    __device__ static void Shared(float (&d)[N / 8][4], std::uint64_t a, std::uint64_t b, bool accumulate) {       \
      if constexpr (kType == DataType::kF16) {                                                                     \
        KERND_WGMMA_SHARED(N, "f16", I0, I1, I2, I3, I4);                                                          \
      } else {                                                                                                     \
        KERND_WGMMA_SHARED(N, "bf16", I0, I1, I2, I3, I4);                                                         \
      }                                                                                                            \
    }                                                                                                              \
    __device__ static void Registers(float (&d)[N / 8][4], std::uint32_t (&a)[4], std::uint64_t b,                 \
                                     bool accumulate) {                                                            \
      if constexpr (kType == DataType::kF16) {                                                                     \
        KERND_WGMMA_REGISTERS(N, "f16", I0, I1, I2, I3, I4, I5);                                                   \
      } else {                                                                                                     \
        KERND_WGMMA_REGISTERS(N, "bf16", I0, I1, I2, I3, I4, I5);                                                  \
      }                                                                                                            \
    }                                                                                                              \
  };
KERND_WGMMA(64, 32, 33, 34, 35, 36, 37)
KERND_WGMMA(80, 40, 41, 42, 43, 44, 45)
KERND_WGMMA(96, 48, 49, 50, 51, 52, 53)
KERND_WGMMA(112, 56, 57, 58, 59, 60, 61)
KERND_WGMMA(128, 64, 65, 66, 67, 68, 69)
KERND_WGMMA(160, 80, 81, 82, 83, 84, 85)
KERND_WGMMA(176, 88, 89, 90, 91, 92, 93)
KERND_WGMMA(192, 96, 97, 98, 99, 100, 101)
KERND_WGMMA(256, 128, 129, 130, 131, 132, 133)
#undef KERND_WGMMA
#undef KERND_WGMMA_SHARED
#undef KERND_WGMMA_REGISTERS
#undef KERND_DS64
#undef KERND_RS64
#undef KERND_DS80
#undef KERND_RS80
#undef KERND_DS96
#undef KERND_RS96
#undef KERND_DS112
#undef KERND_RS112
#undef KERND_DS128
#undef KERND_RS128
#undef KERND_DS160
#undef KERND_RS160
#undef KERND_DS176
#undef KERND_RS176
#undef KERND_DS192
#undef KERND_RS192
#undef KERND_DS256
#undef KERND_RS256
#undef KERND_D0
#undef KERND_D1
#undef KERND_D2
#undef KERND_D3
#undef KERND_D4
#undef KERND_D5
#undef KERND_D6
#undef KERND_D7
#undef KERND_D8
#undef KERND_D9
#undef KERND_D10
#undef KERND_D11
#undef KERND_D12
#undef KERND_D13
#undef KERND_D14
#undef KERND_D15
#undef KERND_R
#undef KERND_R1
// clang-format on

#endif  // KERND_EMULATOR

}  // namespace kernd::gpu
