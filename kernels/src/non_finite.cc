#include "kernd/kernels/non_finite.h"

#include <cstring>

namespace kernd {
namespace {

// By their bits: an element is not finite where its exponent is all ones, and then infinite where nothing else is set.
// Memory may be unaligned.
template <typename Bits>
NonFinite Count(const std::byte* data, std::int64_t elements, Bits exponent, Bits mantissa) {
  NonFinite found;
  for (std::int64_t i = 0; i < elements; ++i) {
    Bits bits;
    std::memcpy(&bits, data + i * static_cast<std::int64_t>(sizeof(Bits)), sizeof(Bits));
    if ((bits & exponent) != exponent) continue;
    ++((bits & mantissa) == 0 ? found.inf : found.nan);
  }
  return found;
}

}  // namespace

NonFinite CountNonFinite(DataType type, const void* data, std::int64_t elements) {
  const auto* bytes = static_cast<const std::byte*>(data);
  const NonFiniteBits bits = NonFiniteBitsOf(type);
  switch (bits.exponent == 0 ? 0 : ElementBytes(type)) {
    case 1:
      return Count<std::uint8_t>(bytes, elements, static_cast<std::uint8_t>(bits.exponent),
                                 static_cast<std::uint8_t>(bits.mantissa));
    case 2:
      return Count<std::uint16_t>(bytes, elements, static_cast<std::uint16_t>(bits.exponent),
                                  static_cast<std::uint16_t>(bits.mantissa));
    case 4:
      return Count<std::uint32_t>(bytes, elements, static_cast<std::uint32_t>(bits.exponent),
                                  static_cast<std::uint32_t>(bits.mantissa));
    case 8: return Count<std::uint64_t>(bytes, elements, bits.exponent, bits.mantissa);
    default: return {};
  }
}

}  // namespace kernd
