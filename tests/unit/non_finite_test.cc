// Elements that are no numbers, in every type.
#include "kernd/kernels/non_finite.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace kernd {
namespace {

template <typename T>
std::vector<std::byte> BytesOf(const std::vector<T>& values, std::size_t offset = 0) {
  std::vector<std::byte> bytes(values.size() * sizeof(T) + offset);
  std::memcpy(bytes.data() + offset, values.data(), values.size() * sizeof(T));
  return bytes;
}

template <typename T>
NonFinite Count(DataType type, const std::vector<T>& values) {
  const NonFinite found = CountNonFinite(type, BytesOf(values).data(), static_cast<std::int64_t>(values.size()));
  const std::vector<std::byte> moved = BytesOf(values, 1);
  EXPECT_EQ(CountNonFinite(type, moved.data() + 1, static_cast<std::int64_t>(values.size())), found)
      << "at any address";
  return found;
}

// All values of the types of a byte, one by one: exactly these are no numbers.
TEST(NonFinite, EveryFloat8) {
  for (int bits = 0; bits < 256; ++bits) {
    const std::vector<std::uint8_t> one = {static_cast<std::uint8_t>(bits)};
    const int magnitude = bits & 0x7f;
    EXPECT_EQ(Count(DataType::kF8E4M3, one), (NonFinite{magnitude == 0x7f, 0})) << bits;
    EXPECT_EQ(Count(DataType::kF8E5M2, one), (NonFinite{magnitude > 0x7c, magnitude == 0x7c})) << bits;
    EXPECT_EQ(Count(DataType::kI8, one), NonFinite()) << bits;
    EXPECT_EQ(Count(DataType::kBool, one), NonFinite()) << bits;
  }
}

TEST(NonFinite, EveryHalf) {
  std::vector<std::uint16_t> all(65536);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  EXPECT_EQ(Count(DataType::kF16, all), (NonFinite{2 * 1023, 2}));
  EXPECT_EQ(Count(DataType::kBF16, all), (NonFinite{2 * 127, 2}));
}

TEST(NonFinite, Wide) {
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(Count<float>(DataType::kF32, {0, -0.0f, inf, std::nanf(""), -inf, 1e-45f, 3.4e38f, -std::nanf("1")}),
            (NonFinite{2, 2}));
  EXPECT_EQ(Count<double>(DataType::kF64, {0, 1e308, -std::nan("")}), (NonFinite{1, 0}));
  EXPECT_EQ(Count<std::int32_t>(DataType::kI32, {-1, 0x7fc00000}), NonFinite());
  EXPECT_EQ(CountNonFinite(DataType::kF32, nullptr, 0), NonFinite());
}

}  // namespace
}  // namespace kernd
