// Every row of the table of matmul kernels against the fp64 reference.
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/gpu/matmul_gpu_run.h"

namespace kernd::testing::matmul {
namespace {

TEST_F(MatmulGpu, RandomProblemsMatchTheReference) {
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    const Case c = RandomCase(seed);
    SCOPED_TRACE("seed " + std::to_string(seed) + " " + Describe(c));
    ExpectAllMatchReference(c);
    if (HasFailure()) return;
  }
}

TEST_F(MatmulGpu, EdgeSizes) {
  const std::int64_t sizes[] = {1, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 257};
  constexpr int kCount = 17;
  Random random(7);
  for (const DataType type : kTypes) {
    for (int i = 0; i < kCount; ++i) {  // each size for each of M, N and K
      for (int transposes = 0; transposes < 4; ++transposes) {
        const std::int64_t m = sizes[i], n = sizes[(i + 5) % kCount], k = sizes[(i + 9) % kCount];
        Case c = PlainCase(type, m, n, k, random());
        if (transposes & 1) {
          c.p.transpose_a = true;
          c.p.a = SpecOf(type, {k, m});
          c.a = Operand(c.p.a, 0);
          c.a.FillNormal(random);
        }
        if (transposes & 2) {
          c.p.transpose_b = true;
          c.p.b = SpecOf(type, {n, k});
          c.b = Operand(c.p.b, 0);
          c.b.FillNormal(random);
        }
        SCOPED_TRACE(Describe(c));
        ExpectAllMatchReference(c, /*must_run=*/true);
        if (HasFailure()) return;
      }
    }
  }
}

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
  for (const char* method : {"simt", "lt_heuristic"}) {
    const auto d = Compute(Row(DataType::kI8, method), c, operands);
    std::vector<std::int32_t> values(8);
    std::memcpy(values.data(), d.data(), 32);
    EXPECT_THAT(values, ::testing::ElementsAreArray(kI8Rounded)) << method;
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
