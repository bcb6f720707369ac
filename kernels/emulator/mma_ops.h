// mma.sync of more types than warp_ops.h has, by the same layouts of the PTX ISA. In bytes they are those of F16: a
// register holds one TF32 or four I8 in the place of two F16.
#pragma once

#include <cstdint>

namespace kernd::emulator {

// m16n8k8.tf32. The lower 13 bits of A and B are not looked at; products are exact and sums are in double, rounded
// once.
void MmaTf32(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1);

// cvt.rna.tf32.f32. A device may leave anything in the lower 13 bits; here they are zero.
std::uint32_t RoundToTf32(std::uint32_t bits);

// m16n8k32.s8, modulo 2^32.
void MmaI8(std::int32_t (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1);

// m8n8k16.s8: the lane has row g, columns 2 t and 2 t + 1 of D.
void MmaI8Half(std::int32_t& d0, std::int32_t& d1, std::uint32_t a, std::uint32_t b);

}  // namespace kernd::emulator
