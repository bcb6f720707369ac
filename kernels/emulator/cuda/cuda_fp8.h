#pragma once

#include "kernels/emulator/cuda/cuda_fp16.h"

enum __nv_fp8_interpretation_t { __NV_E4M3, __NV_E5M2 };
using __nv_fp8x2_storage_t = unsigned short;

// E5M2 is the upper half of an F16; E4M3 has one value of 7 bits that is not a number, and no infinity.
inline __half_raw __nv_cvt_fp8_to_halfraw(unsigned char bits, __nv_fp8_interpretation_t format) {
  if (format == __NV_E5M2) return {static_cast<unsigned short>(bits << 8)};
  const unsigned sign = bits & 0x80, size = bits & 0x7f;
  if (size == 0x7f) return {static_cast<unsigned short>(sign << 8 | 0x7fff)};
  // The bits of an F16 that is 2^8 times too small, subnormals included.
  const float small = ::kernd::emulator::FromF16(static_cast<std::uint16_t>(size << 7));
  return {static_cast<unsigned short>(sign << 8 | ::kernd::emulator::ToF16(small * 256.0f))};
}
inline __half2_raw __nv_cvt_fp8x2_to_halfraw2(__nv_fp8x2_storage_t bits, __nv_fp8_interpretation_t format) {
  return {__nv_cvt_fp8_to_halfraw(static_cast<unsigned char>(bits & 0xff), format).x,
          __nv_cvt_fp8_to_halfraw(static_cast<unsigned char>(bits >> 8), format).x};
}
