// Every row of the table of matmul kernels against the fp64 reference.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/gpu/matmul_gpu_run.h"

namespace kernd::testing::matmul {
namespace {

// 50 seeds a block, so that a part of them can be chosen.
class MatmulGpuRandom : public MatmulGpu, public ::testing::WithParamInterface<int> {};

TEST_P(MatmulGpuRandom, ProblemsMatchTheReference) {
  const auto first = static_cast<std::uint64_t>(1 + 50 * GetParam());
  for (std::uint64_t seed = first; seed < first + 50 && !HasFailure(); ++seed) {
    Case c = RandomCase(seed);
    SCOPED_TRACE("seed " + std::to_string(seed) + " " + Describe(c));
    ExpectAllMatchReferenceAndTf32(c);
  }
}

INSTANTIATE_TEST_SUITE_P(Blocks, MatmulGpuRandom, ::testing::Range(0, 8));

class MatmulGpuLayouts : public MatmulGpu, public ::testing::WithParamInterface<std::tuple<DataType, int>> {
 protected:
  static DataType type() { return std::get<0>(GetParam()); }
  // Of the case's sizes, with the operands lying as the parameter says. Lines of whole chunks of `line_bytes`, those of
  // A and B; between the lines is poison.
  static Case Make(std::int64_t m, std::int64_t n, std::int64_t k, std::uint64_t seed, std::int64_t line_bytes = 1) {
    Random random(seed);
    Case c;
    c.p.transpose_a = std::get<1>(GetParam()) & 1;
    c.p.transpose_b = std::get<1>(GetParam()) & 2;
    const auto fill = [&](std::int64_t lines, std::int64_t length, TensorSpec& spec, Operand& operand) {
      const std::int64_t chunk = std::max<std::int64_t>(line_bytes / ElementBytes(type()), 1);
      spec = {.dtype = type(), .shape = {lines, length}, .strides = {(length + chunk - 1) / chunk * chunk, 1}};
      operand = Operand(spec, 0);
      operand.FillNormal(random);
    };
    fill(c.p.transpose_a ? k : m, c.p.transpose_a ? m : k, c.p.a, c.a);
    fill(c.p.transpose_b ? n : k, c.p.transpose_b ? k : n, c.p.b, c.b);
    return c;
  }
};

TEST_P(MatmulGpuLayouts, EdgeSizes) {
  const std::int64_t sizes[] = {1, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 257};
  constexpr int kCount = 17;
  for (int i = 0; i < kCount && !HasFailure(); ++i) {  // each size for each of M, N and K
    Case c = Make(sizes[i], sizes[(i + 5) % kCount], sizes[(i + 9) % kCount], static_cast<std::uint64_t>(7 + i));
    SCOPED_TRACE(Describe(c));
    ExpectAllMatchReferenceAndTf32(c, /*must_run=*/true);
  }
}

// Lines that begin at multiples of 16 bytes, and of 4, but end anywhere.
TEST_P(MatmulGpuLayouts, PaddedLines) {
  for (const std::int64_t line_bytes : {4, 16, 64}) {
    for (const Dims& sizes : {Dims{1, 1, 1}, Dims{33, 65, 5}, Dims{50, 70, 109}, Dims{130, 37, 101}}) {
      Case c = Make(sizes[0], sizes[1], sizes[2], 9, line_bytes);
      SCOPED_TRACE(Describe(c) + ", lines of " + std::to_string(line_bytes));
      ExpectAllMatchReferenceAndTf32(c, /*must_run=*/true);
      if (HasFailure()) return;
    }
  }
}

// Results of few tiles with a long K, which kernels may cut along it, and every epilogue that they can have after it.
TEST_P(MatmulGpuLayouts, FewResultsWithALongK) {
  const DataType output = DefaultMatmulOutput(type());
  for (int option = 0; option < 4 && !HasFailure(); ++option) {
    Case c = Make(20, 37, 2064 + 24 * option, 10, option % 2 == 0 ? 16 : 1);
    if (option == 1) c.p.output_dtype = type() == DataType::kF64 ? DataType::kF64 : DataType::kF32;
    if (option == 2) {
      c.p.alpha = 0.5;
      c.p.beta = -2;
      c.p.c = SpecOf(output, {20, 37});
      c.c = Operand(*c.p.c, 0);
      c.c.Fill([](const Dims& at) { return static_cast<double>(at[0] - at[1]); });
    }
    if (option == 3 && type() != DataType::kF64) {
      c.p.activation = Activation::kRelu;
      c.p.bias = SpecOf(DataType::kF32, {37});
      c.bias = Operand(*c.p.bias, 0);
      c.bias.Fill([](const Dims& at) { return static_cast<double>(at[0]); });
    }
    SCOPED_TRACE(Describe(c) + ", option " + std::to_string(option));
    ExpectAllMatchReferenceAndTf32(c, /*must_run=*/true);
  }
}

// "bf16_nt".
std::string LayoutName(const ::testing::TestParamInfo<std::tuple<DataType, int>>& info) {
  const char* const layouts[] = {"nn", "tn", "nt", "tt"};
  return std::string(Token(std::get<0>(info.param))) + "_" + layouts[std::get<1>(info.param)];
}

INSTANTIATE_TEST_SUITE_P(All, MatmulGpuLayouts, ::testing::Combine(::testing::ValuesIn(kTypes), ::testing::Range(0, 4)),
                         LayoutName);

// Both tiles of the SIMT kernel, several of each, and their edges; packed operands that are worth it.
TEST_F(MatmulGpu, LargerThanATile) {
  for (const DataType type : kTypes) {
    for (const bool odd : {false, true}) {
      const Case c = odd ? PlainCase(type, 401, 1035, 515, 11) : PlainCase(type, 1056, 1040, 256, 12);
      SCOPED_TRACE(Describe(c));
      ExpectAllMatchReference(c, /*must_run=*/true);
    }
  }
}

TEST_F(MatmulGpu, Tf32RoundsItsOperandsAtMost) {
  for (const std::int64_t n : {64, 65}) {
    Case c = PlainCase(DataType::kF32, 70, n, 300, 13);
    c.p.numerics = Numerics::kTf32;
    ExpectAllMatchReference(c, /*must_run=*/true);
  }
}

TEST_F(MatmulGpu, F32StaysF32) {
  // 1024.5 has 12 significant bits: TF32 would make it 1024 or 1025.
  Case c = PlainCase(DataType::kF32, 64, 64, 1);
  c.a.Fill([](const Dims&) { return 1024.5; });
  c.b.Fill([](const Dims&) { return 1.0; });
  ExpectAllMatchReference(c, /*must_run=*/true);
}

TEST_F(MatmulGpu, I8IsExactAtItsExtremes) {
  for (const Case& c : I8Extremes()) {
    SCOPED_TRACE(Describe(c));
    ExpectAllMatchReference(c, /*must_run=*/true);
  }
}

TEST_F(MatmulGpu, I8WrapsModulo32Bits) {
  ExpectAllMatchReference(I8Wraps(), /*must_run=*/true);
}

TEST_F(MatmulGpu, IntegerEpilogueRoundsHalfToEvenAndSaturates) {
  const Case c = I8Rounds();
  const DeviceCase operands(c);
  for (const MatmulVariant& row : MatmulVariants()) {
    if (!WhyNot(row, c.p, *Validate(c.p)).empty()) continue;
    const auto d = Compute(row, c, operands);
    std::vector<std::int32_t> values(8);
    std::memcpy(values.data(), d.data(), 32);
    EXPECT_THAT(values, ::testing::ElementsAreArray(kI8Rounded)) << row.info.name;
  }
}

TEST_F(MatmulGpu, NaNsAndInfinitiesStayInTheirRowsAndColumns) {
  for (const std::int64_t n : {48, 51}) {
    for (const Case& c : NanAndInfinity(n, 32)) {
      SCOPED_TRACE(Describe(c) + " " + std::string(Name(c.p.activation)));
      ExpectAllMatchReference(c);
    }
  }
}

// Factors that a float does not hold.
TEST_F(MatmulGpu, HugeAndTinyFactors) {
  for (const DataType type : {DataType::kF32, DataType::kF16, DataType::kI8}) {
    for (const double alpha : {1e-42, 1e39}) {
      Case c = PlainCase(type, 33, 48, 16, 19);
      const double unit = alpha < 1 ? 1e-3 : 1e3;
      c.p.output_dtype = DataType::kF32;
      c.p.alpha = alpha;
      c.p.activation = Activation::kRelu;
      if (type == DataType::kF32) {  // back into range
        c.a.Fill([&](const Dims& at) { return static_cast<double>(at[0] - 16) / unit; });
      }
      SCOPED_TRACE(std::string(Name(type)) + " alpha " + std::to_string(alpha));
      ExpectAllMatchReference(c);
    }
  }
}

// Row and batch strides that overlap or repeat: legal, and easily taken for a tall matrix.
TEST_F(MatmulGpu, BatchesOfRowsInEveryStride) {
  for (const DataType type : {DataType::kF32, DataType::kF16, DataType::kI8, DataType::kF8E4M3}) {
    for (const std::int64_t rows : {1, 3}) {
      for (const std::int64_t batch_stride : {0, 2, 16, 32, 37, 48}) {
        for (const std::int64_t row_stride : {0, 2, 10, 16, 17}) {
          Random random(19);
          Case c;
          c.p.a = {.dtype = type, .shape = {4, rows, 16}, .strides = {batch_stride, row_stride, 1}};
          c.p.b = SpecOf(type, {16, 32});
          c.a = Operand(c.p.a, 0);
          c.b = Operand(c.p.b, 0);
          c.a.FillNormal(random);
          c.b.FillNormal(random);
          SCOPED_TRACE(std::string(Name(type)) + " " + std::to_string(rows) + " rows, strides " +
                       std::to_string(batch_stride) + ", " + std::to_string(row_stride));
          ExpectAllMatchReference(c);
        }
      }
    }
  }
}

// All six dimensions that a batch can have, each operand repeated along others.
TEST_F(MatmulGpu, BatchOfSixDimensions) {
  for (const DataType type : kTypes) {
    Random random(21);
    Case c;
    c.p.a = SpecOf(type, {2, 1, 3, 1, 2, 1, 5, 16}, &random);
    c.p.b = SpecOf(type, {2, 2, 1, 2, 1, 3, 16, 16});
    c.a = Operand(c.p.a, 0);
    c.b = Operand(c.p.b, 0);
    c.a.FillNormal(random);
    c.b.FillNormal(random);
    const DataType output = DefaultMatmulOutput(type);
    c.p.beta = 0.5;
    c.p.c = SpecOf(output, {2, 1, 3, 2, 1, 3, 5, 16}, &random);
    c.c = Operand(*c.p.c, 0);
    c.c.FillNormal(random);
    SCOPED_TRACE(Describe(c));
    ExpectAllMatchReference(c);
  }
}

TEST_F(MatmulGpu, MoreItemsThanAGridHasRows) {
  for (const DataType type : {DataType::kF32, DataType::kF16}) {
    Random random(23);
    Case c;
    c.p.a = SpecOf(type, {70'000, 2, 8});
    c.p.b = SpecOf(type, {70'000, 8, 8});
    c.a = Operand(c.p.a, 0);
    c.b = Operand(c.p.b, 0);
    c.a.FillNormal(random);
    c.b.FillNormal(random);
    ExpectAllMatchReference(c);
  }
}

}  // namespace
}  // namespace kernd::testing::matmul
