#include "server/cpu/float8_table.h"

#include <array>
#include <bit>
#include <cstdint>
#include <limits>

namespace kernd::cpu {
namespace {

// 2^exponent * 1.mantissa for normals, by definition of the formats.
constexpr float Power(int exponent) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(exponent + 127) << 23);
}

constexpr std::array<float, 256> MakeTable(int mantissa_bits, int bias, bool ieee) {
  std::array<float, 256> table{};
  const int exponent_max = (1 << (7 - mantissa_bits)) - 1, mantissa_max = (1 << mantissa_bits) - 1;
  for (int code = 0; code < 256; ++code) {
    const int exponent = (code & 0x7f) >> mantissa_bits, mantissa = code & mantissa_max;
    const float fraction = static_cast<float>(mantissa) / static_cast<float>(1 << mantissa_bits);
    float value = exponent == 0 ? fraction * Power(1 - bias) : (1.0f + fraction) * Power(exponent - bias);
    if (exponent == exponent_max) {
      if (ieee)
        value = mantissa == 0 ? std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
      if (!ieee && mantissa == mantissa_max) value = std::numeric_limits<float>::quiet_NaN();
    }
    table[code] = code & 0x80 ? -value : value;
  }
  return table;
}

constexpr std::array<float, 256> kE4M3 = MakeTable(3, 7, false);
constexpr std::array<float, 256> kE5M2 = MakeTable(2, 15, true);

}  // namespace

constinit const float* const kE4M3Table = kE4M3.data();
constinit const float* const kE5M2Table = kE5M2.data();

}  // namespace kernd::cpu
