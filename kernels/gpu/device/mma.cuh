// The warp's tensor-core instructions on fragments in registers, whose layouts are those of the PTX ISA:
// kernels/emulator/warp_ops.h has them.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "kernd/kernels/dtype.h"

namespace kernd::gpu {

// Lane 8 i + j has the address of row j, 16 bytes, of matrix i; register i gets the lane's two elements of it.
__device__ inline void LoadMatrices(std::uint32_t address, std::uint32_t (&r)[4]) {
#ifdef KERND_EMULATOR
  emulator::LoadMatrices(r, 4, false, address);
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
#endif
}

// The same of the transposed matrices.
__device__ inline void LoadTransposed(std::uint32_t address, std::uint32_t (&r)[4]) {
#ifdef KERND_EMULATOR
  emulator::LoadMatrices(r, 4, true, address);
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
#endif
}

// stmatrix, from SM 9.0 on: lane 8 i + j has the address of row j of matrix i; the lane's two elements of it are r[i].
__device__ inline void StoreMatrices(std::uint32_t address, const std::uint32_t (&r)[4]) {
#ifdef KERND_EMULATOR
  emulator::StoreMatrices(r, address);
#else
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r[0]), "r"(r[1]),
               "r"(r[2]), "r"(r[3])
               : "memory");
#endif
}

// D += A B of 16 x 16 by 16 x 8. kWide: one instruction, from SM 8.0 on; else, F16 only, two of 16 x 8 by 8 x 8.
template <DataType kType, bool kWide>
__device__ inline void Multiply(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  static_assert(kType == DataType::kF16 || (kType == DataType::kBF16 && kWide));
#ifdef KERND_EMULATOR
  if (kWide) {
    emulator::Mma16x8x16(kType == DataType::kF16 ? emulator::Half::kF16 : emulator::Half::kBF16, d, a, b0, b1);
  } else {
    emulator::Mma16x8x8(d, a[0], a[1], b0);
    emulator::Mma16x8x8(d, a[2], a[3], b1);
  }
#else
  if constexpr (!kWide) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(b0));
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[2]), "r"(a[3]), "r"(b1));
  } else if constexpr (kType == DataType::kF16) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
#endif
}

// D += A B of 16 x 8 by 8 x 8 TF32, SM 8.0: of each register the instruction looks at the upper 19 bits.
__device__ inline void MultiplyTf32(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
#ifdef KERND_EMULATOR
  emulator::MmaTf32(d, a, b0, b1);
#else
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

// The bits of an F32, rounded to the nearest TF32, ties away from zero: SM 8.0.
__device__ inline std::uint32_t RoundToTf32(std::uint32_t bits) {
#ifdef KERND_EMULATOR
  return emulator::RoundToTf32(bits);
#else
  std::uint32_t rounded;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(__uint_as_float(bits)));
  return rounded;
#endif
}

// D += A B of 16 x 32 by 32 x 8 I8, modulo 2^32. kWide: one instruction, from SM 8.0 on; else four of 8 x 16 by 16 x 8.
template <bool kWide>
__device__ inline void MultiplyI8(std::int32_t (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                  std::uint32_t b1) {
#ifdef KERND_EMULATOR
  if (kWide) {
    emulator::MmaI8(d, a, b0, b1);
  } else {
    emulator::MmaI8Half(d[0], d[1], a[0], b0);
    emulator::MmaI8Half(d[2], d[3], a[1], b0);
    emulator::MmaI8Half(d[0], d[1], a[2], b1);
    emulator::MmaI8Half(d[2], d[3], a[3], b1);
  }
#else
  if constexpr (kWide) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    const auto half = [](std::int32_t& d0, std::int32_t& d1, std::uint32_t x, std::uint32_t y) {
      asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
          : "+r"(d0), "+r"(d1)
          : "r"(x), "r"(y));
    };
    half(d[0], d[1], a[0], b0);
    half(d[2], d[3], a[1], b0);
    half(d[0], d[1], a[2], b1);
    half(d[2], d[3], a[3], b1);
  }
#endif
}

// Two numbers, rounded to nearest even, in a register as fragments have them: `low` first.
template <DataType kType>
__device__ inline std::uint32_t Pack(float low, float high) {
  std::uint32_t bits;
  if constexpr (kType == DataType::kF16) {
    const __half2 pair = __floats2half2_rn(low, high);
    memcpy(&bits, &pair, sizeof(bits));
  } else {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    memcpy(&bits, &pair, sizeof(bits));
  }
  return bits;
}

}  // namespace kernd::gpu
