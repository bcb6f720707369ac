// Elements that are no numbers: what --debug-checks looks for.
#pragma once

#include <cstdint>

#include "kernd/kernels/dtype.h"

namespace kernd {

struct NonFinite {
  std::int64_t nan = 0, inf = 0;  // elements

  bool operator==(const NonFinite&) const = default;
};

// An element is not finite where all bits of `exponent` are set, and then infinite where none of `mantissa` is. Both 0
// for types whose elements are all numbers.
struct NonFiniteBits {
  std::uint64_t exponent = 0, mantissa = 0;
};

constexpr NonFiniteBits NonFiniteBitsOf(DataType type) {
  switch (type) {
    case DataType::kF16: return {0x7c00, 0x03ff};
    case DataType::kBF16: return {0x7f80, 0x007f};
    case DataType::kF32: return {0x7f800000, 0x007fffff};
    case DataType::kF64: return {0x7ff0000000000000, 0x000fffffffffffff};
    case DataType::kF8E4M3: return {0x7f, 0x01};  // no infinity: its only NaN has all bits set
    case DataType::kF8E5M2: return {0x7c, 0x03};
    default: return {};
  }
}

// On the host, at any address.
NonFinite CountNonFinite(DataType type, const void* data, std::int64_t elements);

}  // namespace kernd
