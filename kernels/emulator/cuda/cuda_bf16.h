#pragma once

#include "kernels/emulator/cuda/cuda_runtime.h"
#include "kernels/emulator/float16.h"

struct __nv_bfloat16 {
  unsigned short bits = 0;
};
struct __nv_bfloat162 {
  __nv_bfloat16 x, y;
};

inline __nv_bfloat16 __float2bfloat16_rn(float x) {
  return {::kernd::emulator::ToBF16(x)};
}
inline __nv_bfloat162 __floats2bfloat162_rn(float low, float high) {
  return {__float2bfloat16_rn(low), __float2bfloat16_rn(high)};
}
inline float __bfloat162float(__nv_bfloat16 x) {
  return ::kernd::emulator::FromBF16(x.bits);
}
