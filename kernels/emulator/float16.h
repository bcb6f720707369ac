// F16 and BF16 bits to F32 and back, rounding to nearest even, as the hardware's conversions do.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace kernd::emulator {

inline float FromBF16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

inline std::uint16_t ToBF16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  if (std::isnan(x)) return 0x7fff;
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline float FromF16(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000) << 16, exponent = bits >> 10 & 31,
                      mantissa = bits & 0x3ff;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000 | mantissa << 13);
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
  return std::copysign(static_cast<float>(mantissa) * 0x1p-24f, std::bit_cast<float>(sign | 0x3f800000));
}

inline std::uint16_t ToF16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000);
  const std::uint32_t size = bits & 0x7fffffff;
  if (size > 0x7f800000) return 0x7fff;
  if (size >= 0x477ff000) return sign | 0x7c00;  // 65520 and more
  if (size < 0x38800000) {
    // Subnormal: adding 2^-1, whose last place is 2^-24, rounds to it.
    return sign | static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(std::fabs(x) + 0.5f) - 0x3f000000);
  }
  return sign | static_cast<std::uint16_t>((size + 0xfff + (size >> 13 & 1) - 0x38000000) >> 13);
}

}  // namespace kernd::emulator
