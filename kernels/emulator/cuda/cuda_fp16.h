#pragma once

#include <cstdint>

#include "kernels/emulator/cuda/cuda_runtime.h"
#include "kernels/emulator/float16.h"

struct __half_raw {
  unsigned short x;
};
struct __half {
  unsigned short bits = 0;
  __half() = default;
  explicit __half(__half_raw raw) : bits(raw.x) {}
};
struct __half2_raw {
  unsigned short x, y;
};
struct __half2 {
  __half x, y;
  __half2() = default;
  explicit __half2(__half2_raw raw) : x(__half_raw{raw.x}), y(__half_raw{raw.y}) {}
};

inline float __half2float(__half x) {
  return ::kernd::emulator::FromF16(x.bits);
}
inline __half __float2half_rn(float x) {
  return __half(__half_raw{::kernd::emulator::ToF16(x)});
}
inline __half __ushort_as_half(unsigned short bits) {
  return __half(__half_raw{bits});
}
inline float2 __half22float2(__half2 x) {
  return {__half2float(x.x), __half2float(x.y)};
}
inline __half2 __floats2half2_rn(float low, float high) {
  return __half2(__half2_raw{::kernd::emulator::ToF16(low), ::kernd::emulator::ToF16(high)});
}
