// wgmma.mma_async of SM 9.0a, by the PTX ISA ("Asynchronous Warpgroup Level Matrix Instructions"): D (+)= A B of
// 64 x 16 by 16 x N, 16-bit operands, sums in F32. With warp w of the warpgroup and lane = 4 g + t:
//
//   D             register i: row 16 w + g + 8 (i / 2 % 2), column 8 (i / 4) + 2 t + i % 2
//   A, registers  register r, half e: row 16 w + g + 8 (r % 2), column 2 t + e + 8 (r / 2)
//   A, B, shared  a descriptor: bits 0-13 address, 16-29 leading and 32-45 stride byte offset, each / 16; 49-51 base
//                 offset, 0 here; 62-63 swizzle: 0 none, 1 128 bytes, 2 64, 3 32
//
// Instructions are asynchronous here, too. Until the wait that ends them, accumulators and A in registers hold NaN, and
// what shared memory they read may not be written. What ends the process, beside all that: registers that somebody
// wrote meanwhile; no wgmma.fence since registers came back; an operand in shared memory that is not yet there for the
// async proxy; warps of a warpgroup whose instructions differ, or that leave before its work is waited for.
#pragma once

#include <cstdint>

#include "kernels/emulator/warp_ops.h"

namespace kernd::emulator {

// wgmma.fence.
void WgmmaFence();
// `a`: four registers, or null: `a_descriptor`. What is in shared memory is K-major, or MN-major (transposed).
// `accumulate`: D counts. D and A stay in their places until the wait.
void Wgmma(Half type, unsigned n, float* d, std::uint32_t* a, std::uint64_t a_descriptor, std::uint64_t b_descriptor,
           bool a_mn_major, bool b_mn_major, bool accumulate);
// wgmma.commit_group, wgmma.wait_group.
void WgmmaCommit();
void WgmmaWait(unsigned newest);

}  // namespace kernd::emulator
