// What the warp's tensor-core instructions do, by the fragment layouts of the PTX ISA ("Matrix fragments for mma.*",
// "ldmatrix"). With lane = 4 g + t:
//
//   D, C  16 x 8    register i: row g + 8 (i / 2), column 2 t + i % 2
//   A     16 x 16   register r, half e: row g + 8 (r % 2), column 2 t + e + 8 (r / 2);  16 x 8: registers 0 and 1 of it
//   B     16 x 8    register r, half e: row 2 t + e + 8 r, column g;  8 x 8: register 0 of it
#pragma once

#include <cstdint>

namespace kernd::emulator {

enum class Half : std::uint8_t { kF16, kBF16 };

// All 65536 values of the type as F32.
const float* ValuesOf(Half type);

// mma.sync.aligned.m16n8k16.row.col.f32.T.T.f32 and, for F16, m16n8k8. Products are exact and sums are in double,
// rounded once: no device is more exact.
void Mma16x8x16(Half type, float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1);
void Mma16x8x8(float (&d)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t b);

// ldmatrix.sync.aligned.m8n8.x{1,2,4}[.trans].shared.b16: lane 8 i + j has the place of row j of matrix i. Register i
// of a lane gets row g, columns 2 t and 2 t + 1 of it; .trans: rows 2 t and 2 t + 1 of column g.
void LoadMatrices(std::uint32_t* registers, int matrices, bool transposed, std::uint32_t place);

// stmatrix.sync.aligned.m8n8.x4.shared.b16, from SM 9.0 on: the same the other way, not transposed.
void StoreMatrices(const std::uint32_t (&registers)[4], std::uint32_t place);

// Shuffles of whole warps.
std::uint32_t ShuffleXor(std::uint32_t value, unsigned mask);
std::uint32_t ShuffleFrom(std::uint32_t value, unsigned lane);
void WarpBarrier();
bool WarpAny(bool value);

}  // namespace kernd::emulator
