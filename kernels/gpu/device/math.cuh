// Scalar functions that are one instruction.
#pragma once

namespace kernd::gpu {

// 2^x, to 2 units in the last place; 1 at 0; subnormal results are 0.
__device__ inline float Exp2(float x) {
#ifdef KERND_EMULATOR
  const float y = exp2f(x);
  return y < 0x1p-126f ? 0.0f : y;
#else
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

}  // namespace kernd::gpu
