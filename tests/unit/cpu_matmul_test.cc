// The CPU's matmul variants against the fp64 reference, the packed one on every instruction set of this machine. What
// bits may depend on, and which variant runs: cpu_matmul_contract_test.cc.
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/cpu_matmul_case.h"

namespace kernd::cpu {
namespace {

TEST(CpuMatmul, RandomProblemsMatchTheReference) {
  for (std::uint64_t seed = 1; seed <= 250; ++seed) {
    const Case c = RandomCase(seed);
    SCOPED_TRACE("seed " + std::to_string(seed) + " " + Describe(c));
    ExpectAllMatchReference(c);
    if (HasFailure()) return;
  }
}

TEST(CpuMatmul, EdgeSizes) {
  const std::int64_t sizes[] = {1, 7, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 257};
  Random random(7);
  for (const DataType type : kTypes) {
    for (int i = 0; i < 13; ++i) {  // each size for each of M, N and K
      const std::int64_t m = sizes[i], n = sizes[(i + 5) % 13], k = sizes[(i + 9) % 13];
      const Case c = PlainCase(type, m, n, k, random());
      SCOPED_TRACE(Describe(c));
      ExpectAllMatchReference(c);
    }
  }
}

// Tiles, blocks of K and threads that really share the work.
TEST(CpuMatmul, LargerThanATile) {
  for (const DataType type : {DataType::kF32, DataType::kBF16, DataType::kI8}) {
    const Case c = PlainCase(type, 401, 1030, 515, 11);
    SCOPED_TRACE(Describe(c));
    ExpectAllMatchReference(c);
  }
}

TEST(CpuMatmul, I8IsExactAtItsExtremes) {
  for (const Case& c : I8Extremes()) {
    SCOPED_TRACE(Describe(c));
    ExpectAllMatchReference(c);
  }
}

TEST(CpuMatmul, I8WrapsModulo32Bits) {
  ExpectAllMatchReference(I8Wraps());
}

// Times one, in F32: every code as the formats define it, NaNs, infinities and subnormals among them.
TEST(CpuMatmul, EveryFloat8Code) {
  for (const DataType type : {DataType::kF8E4M3, DataType::kF8E5M2}) {
    Case c = PlainCase(type, 256, 1, 1);
    for (int code = 0; code < 256; ++code)
      static_cast<unsigned char*>(c.a.data())[code] = static_cast<unsigned char>(code);
    c.b.Fill([](const Dims&) { return 1.0; });
    c.p.output_dtype = DataType::kF32;
    for (const Isa isa : AvailableIsas()) {
      const auto d = Compute(c, {.isa = isa});
      ASSERT_EQ(d.size(), 1024u);
      for (int code = 0; code < 256; ++code) {
        const double value = reference::Load(DataType::kF32, d.data(), code),
                     expected = reference::Load(type, c.a.data(), code);
        EXPECT_TRUE(std::isnan(expected) ? std::isnan(value) : value == expected)
            << Name(type) << " " << Name(isa) << " code " << code << ": " << value << ", expected " << expected;
      }
    }
  }
}

TEST(CpuMatmul, IntegerEpilogueRoundsHalfToEvenAndSaturates) {
  const Case c = I8Rounds();
  for (const Isa isa : AvailableIsas()) {
    for (const std::string& kernel : {std::string(), Packed(DataType::kI8)}) {
      const auto d = Compute(c, {.kernel = kernel, .isa = isa});
      std::vector<std::int32_t> values(8);
      std::memcpy(values.data(), d.data(), 32);
      EXPECT_THAT(values, ::testing::ElementsAreArray(kI8Rounded)) << kernel;
    }
  }
}

TEST(CpuMatmul, NaNsAndInfinitiesStayInTheirRowsAndColumns) {
  for (const Case& c : NanAndInfinity(50, 33)) {
    SCOPED_TRACE(Describe(c) + " " + std::string(Name(c.p.activation)));
    ExpectAllMatchReference(c);
  }
}

// Row and batch strides that overlap or repeat: legal, and easily taken for a tall matrix.
TEST(CpuMatmul, BatchesOfRowsInEveryStride) {
  for (const DataType type : {DataType::kF32, DataType::kI8}) {
    for (const std::int64_t rows : {1, 3}) {
      for (const std::int64_t batch_stride : {0, 2, 10, 30, 37}) {
        for (const std::int64_t row_stride : {0, 2, 10, 12}) {
          Random random(19);
          Case c;
          c.p.a = {.dtype = type, .shape = {4, rows, 10}, .strides = {batch_stride, row_stride, 1}};
          c.p.b = SpecOf(type, {10, 20});
          c.a = Operand(c.p.a, 0);
          c.b = Operand(c.p.b, 0);
          c.a.FillNormal(random);
          c.b.FillNormal(random);
          SCOPED_TRACE(std::to_string(rows) + " rows, strides " + std::to_string(batch_stride) + ", " +
                       std::to_string(row_stride));
          ExpectAllMatchReference(c);
        }
      }
    }
  }
}
}  // namespace
}  // namespace kernd::cpu
