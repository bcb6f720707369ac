#include "kernels/reference/convert.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/golden.h"

namespace kernd::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

std::uint32_t BitsOf(DataType type, double value) {
  std::uint32_t bits = 0;
  Store(type, value, &bits, 0);
  return bits;
}

double ValueOf(DataType type, std::uint32_t bits) {
  return Load(type, &bits, 0);
}

struct SmallFloat {
  DataType type;
  std::uint32_t end;  // number of bit patterns
};

class SmallFloatTest : public ::testing::TestWithParam<SmallFloat> {};

INSTANTIATE_TEST_SUITE_P(Formats, SmallFloatTest,
                         ::testing::Values(SmallFloat{DataType::kF16, 1u << 16}, SmallFloat{DataType::kBF16, 1u << 16},
                                           SmallFloat{DataType::kF8E4M3, 1u << 8},
                                           SmallFloat{DataType::kF8E5M2, 1u << 8}),
                         [](const auto& test) { return std::string(Name(test.param.type)); });

TEST_P(SmallFloatTest, EveryValueSurvivesTheRoundTrip) {
  const auto [type, end] = GetParam();
  for (std::uint32_t bits = 0; bits < end; ++bits) {
    const double value = ValueOf(type, bits);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(Round(type, value))) << "bits " << bits;
      EXPECT_EQ(std::signbit(Round(type, value)), bits >= end / 2) << "bits " << bits;
    } else {
      EXPECT_EQ(BitsOf(type, value), bits) << value;
    }
  }
}

// Between two neighbours: below the middle goes down, above it up, the middle to the even one. Together with the round
// trip this fixes the encoding of every finite number.
TEST_P(SmallFloatTest, RoundsToTheNearestAndTiesToEven) {
  const auto [type, end] = GetParam();
  for (std::uint32_t bits = 0; bits + 1 < end / 2; ++bits) {
    const double low = ValueOf(type, bits), high = ValueOf(type, bits + 1);
    if (!std::isfinite(low) || !std::isfinite(high)) continue;
    ASSERT_LT(low, high) << "bits " << bits;
    const double middle = low + (high - low) / 2;  // exact: one bit more than the format has
    for (const double sign : {1.0, -1.0}) {
      const std::uint32_t sign_bit = sign < 0 ? end / 2 : 0;
      EXPECT_EQ(BitsOf(type, sign * middle), sign_bit | (bits % 2 == 0 ? bits : bits + 1)) << middle;
      EXPECT_EQ(BitsOf(type, sign * std::nextafter(middle, 0)), sign_bit | bits) << middle;
      EXPECT_EQ(BitsOf(type, sign * std::nextafter(middle, kInfinity)), sign_bit | (bits + 1)) << middle;
    }
  }
}

TEST_P(SmallFloatTest, KeepsZeroInfinityAndNan) {
  const auto [type, end] = GetParam();
  EXPECT_EQ(BitsOf(type, 0.0), 0u);
  EXPECT_EQ(BitsOf(type, -0.0), end / 2);
  EXPECT_EQ(BitsOf(type, 5e-324), 0u);
  EXPECT_TRUE(std::isnan(Round(type, kNan)));
  if (type == DataType::kF8E4M3) {
    EXPECT_TRUE(std::isnan(Round(type, kInfinity)));
    EXPECT_TRUE(std::isnan(Round(type, -1e300)));
  } else {
    EXPECT_EQ(Round(type, kInfinity), kInfinity);
    EXPECT_EQ(Round(type, -1e300), -kInfinity);
  }
}

TEST(Convert, LargestValues) {
  EXPECT_EQ(Round(DataType::kF16, 65519.999), 65504);
  EXPECT_EQ(Round(DataType::kF16, 65520), kInfinity);
  EXPECT_EQ(Round(DataType::kF8E5M2, 61439.999), 57344);
  EXPECT_EQ(Round(DataType::kF8E5M2, -61440), -kInfinity);
  EXPECT_EQ(Round(DataType::kF8E4M3, 464), 448);
  EXPECT_TRUE(std::isnan(Round(DataType::kF8E4M3, 464.001)));
  const double largest_float = std::numeric_limits<float>::max();
  EXPECT_EQ(Round(DataType::kF32, largest_float), largest_float);
  EXPECT_EQ(Round(DataType::kF32, std::nextafter(0x1.ffffffp127, 0)), largest_float);
  EXPECT_EQ(Round(DataType::kF32, -0x1.ffffffp127), -kInfinity);
  EXPECT_EQ(Round(DataType::kF64, 1e300), 1e300);
}

TEST(Convert, BrainFloatsAreTheUpperHalvesOfFloats) {
  for (std::uint32_t bits = 0; bits < (1u << 16); ++bits) {
    const std::uint32_t wide = bits << 16;
    float value;
    std::memcpy(&value, &wide, sizeof(value));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(ValueOf(DataType::kBF16, bits)));
    } else {
      EXPECT_EQ(ValueOf(DataType::kBF16, bits), value);
    }
  }
}

TEST(Convert, IntegersRoundHalfToEvenAndSaturate) {
  for (const auto& [value, rounded] :
       {std::pair{0.5, 0.0}, {1.5, 2.0}, {2.5, 2.0}, {-0.5, 0.0}, {-1.5, -2.0}, {3.49, 3.0}}) {
    EXPECT_EQ(Round(DataType::kI8, value), rounded) << value;
    EXPECT_EQ(Round(DataType::kI32, value), rounded) << value;
    EXPECT_EQ(Round(DataType::kI64, value), rounded) << value;
  }
  EXPECT_EQ(Round(DataType::kI8, 127.5), 127);
  EXPECT_EQ(Round(DataType::kI8, -1e9), -128);
  EXPECT_EQ(Round(DataType::kU8, 254.5), 254);
  EXPECT_EQ(Round(DataType::kU8, 255.5), 255);
  EXPECT_EQ(Round(DataType::kU8, -3), 0);
  EXPECT_EQ(Round(DataType::kI32, kInfinity), 2147483647.0);
  EXPECT_EQ(Round(DataType::kI32, -2147483648.6), -2147483648.0);
  EXPECT_EQ(Round(DataType::kI32, kNan), 0);
  std::int64_t wide = 0;
  Store(DataType::kI64, 0x1p63, &wide, 0);
  EXPECT_EQ(wide, std::numeric_limits<std::int64_t>::max());
  Store(DataType::kI64, -0x1p70, &wide, 0);
  EXPECT_EQ(wide, std::numeric_limits<std::int64_t>::min());
}

TEST(Convert, AnyNonZeroByteIsTrue) {
  const std::uint8_t bytes[] = {0, 1, 2, 255};
  EXPECT_EQ(LoadAll(DataType::kBool, bytes, 4), (std::vector<double>{0, 1, 1, 1}));
  EXPECT_EQ(BitsOf(DataType::kBool, -0.0), 0u);
  EXPECT_EQ(BitsOf(DataType::kBool, 0.25), 1u);
}

TEST(Convert, BuffersNeedNoAlignmentAndNeighboursStay) {
  for (int t = static_cast<int>(DataType::kBool); t <= static_cast<int>(DataType::kF8E5M2); ++t) {
    const DataType type = static_cast<DataType>(t);
    const std::int64_t size = ElementBytes(type);
    std::vector<std::byte> buffer(1 + 3 * size, std::byte{0xa5});
    Store(type, 1.0, buffer.data() + 1, 1);
    EXPECT_EQ(Load(type, buffer.data() + 1, 1), 1.0) << Name(type);
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(buffer.size()); ++i) {
      if (i >= 1 + size && i < 1 + 2 * size) continue;
      EXPECT_EQ(buffer[i], std::byte{0xa5}) << Name(type) << " byte " << i;
    }
    const std::vector<std::byte> all = StoreAll(type, {0.0, 1.0});
    ASSERT_EQ(static_cast<std::int64_t>(all.size()), 2 * size);
    EXPECT_EQ(LoadAll(type, all.data(), 2), (std::vector<double>{0, 1})) << Name(type);
  }
}

TEST(Convert, AgreesWithOtherImplementations) {
  const kernd::testing::Golden golden = kernd::testing::ReadGolden("conversion");
  const std::vector<double> samples = golden.Doubles("samples");
  ASSERT_GT(samples.size(), 100u);
  const auto expect_encoding = [&](DataType type, const std::vector<double>& values, const std::string& table) {
    const std::vector<double> expected = golden.Doubles(table);
    ASSERT_EQ(values.size(), expected.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (std::isnan(values[i])) continue;  // which NaN is left to the implementation
      const std::uint32_t bits = BitsOf(type, values[i]);
      const std::uint32_t table_bits = static_cast<std::uint32_t>(expected[i]);
      const bool both_nan = std::isnan(ValueOf(type, bits)) && std::isnan(ValueOf(type, table_bits));
      EXPECT_TRUE(bits == table_bits || both_nan)
          << Name(type) << " of " << values[i] << ": " << bits << ", " << table_bits;
    }
  };
  for (const DataType type : {DataType::kF16, DataType::kBF16, DataType::kF8E4M3, DataType::kF8E5M2}) {
    expect_encoding(type, samples, "encoded_" + std::string(Name(type)));
  }
  expect_encoding(DataType::kF16, golden.Doubles("samples_f64"), "encoded_F16_from_f64");
  for (const DataType type : {DataType::kF8E4M3, DataType::kF8E5M2}) {
    const std::vector<double> decoded = golden.Doubles("decoded_" + std::string(Name(type)));
    ASSERT_EQ(decoded.size(), 256u);
    for (std::uint32_t bits = 0; bits < 256; ++bits) {
      const double value = ValueOf(type, bits);
      EXPECT_TRUE(value == decoded[bits] || (std::isnan(value) && std::isnan(decoded[bits])))
          << Name(type) << " " << bits;
    }
  }
}

}  // namespace
}  // namespace kernd::reference
