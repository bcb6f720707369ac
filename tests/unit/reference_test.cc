// The fp64 reference against goldens that PyTorch computed in float64 (tests/data/make_goldens.py), and against itself
// where no golden reaches: wrapping sums, merging.
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/reference/attention.h"
#include "kernels/reference/convert.h"
#include "kernels/reference/matmul.h"
#include "kernels/reference/tolerance.h"
#include "tests/support/golden.h"

namespace kernd::reference {
namespace {

using ::kernd::testing::Golden;
using ::kernd::testing::GoldenNames;
using ::kernd::testing::ReadGolden;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

void ExpectSame(const std::vector<double>& actual, const std::vector<double>& expected, const std::vector<double>& size,
                const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    if (std::isnan(expected[i])) {
      EXPECT_TRUE(std::isnan(actual[i])) << what << "[" << i << "]: " << actual[i];
    } else if (std::isinf(expected[i])) {
      EXPECT_EQ(actual[i], expected[i]) << what << "[" << i << "]";
    } else {
      EXPECT_NEAR(actual[i], expected[i], 1e-13 * (1 + size[i])) << what << "[" << i << "]";
    }
  }
}

// No value is larger than its magnitude.
void ExpectMagnitudes(const Values& values) {
  ASSERT_EQ(values.value.size(), values.magnitude.size());
  for (std::size_t i = 0; i < values.value.size(); ++i) {
    if (!std::isfinite(values.value[i])) continue;
    EXPECT_LE(std::abs(values.value[i]), values.magnitude[i] * (1 + 1e-12)) << i;
  }
}

class MatmulGolden : public ::testing::TestWithParam<std::string> {};
class AttentionGolden : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Cases, MatmulGolden, ::testing::ValuesIn(GoldenNames("matmul_")),
                         [](const auto& test) { return test.param; });
INSTANTIATE_TEST_SUITE_P(Cases, AttentionGolden, ::testing::ValuesIn(GoldenNames("attention_")),
                         [](const auto& test) { return test.param; });

TEST_P(MatmulGolden, IsMet) {
  const Golden golden = ReadGolden(GetParam());
  MatmulArgs args;
  const MatmulProblem problem = golden.Matmul(&args);
  const absl::StatusOr<MatmulGeometry> geometry = Validate(problem);
  ASSERT_TRUE(geometry.ok()) << geometry.status();
  EXPECT_EQ(geometry->d.shape, golden.At("expected_d").spec.shape);
  const std::vector<double> expected = golden.Doubles("expected_d");

  const absl::StatusOr<Values> d = MatmulValues(problem, args);
  ASSERT_TRUE(d.ok()) << d.status();
  if (geometry->output_dtype != DataType::kI32) ExpectSame(d->value, expected, d->magnitude, "d");
  ExpectMagnitudes(*d);

  std::vector<std::byte> stored(geometry->d.bytes() + 1, std::byte{0xa5});
  args.d = stored.data();
  ASSERT_TRUE(Matmul(problem, args).ok());
  EXPECT_EQ(stored.back(), std::byte{0xa5});
  for (std::int64_t i = 0; i < geometry->d.elements(); ++i) {
    const double actual = Load(geometry->output_dtype, stored.data(), i);
    const double rounded = Round(geometry->output_dtype, expected[i]);
    if (std::isnan(rounded)) {
      EXPECT_TRUE(std::isnan(actual)) << i;
    } else if (geometry->output_dtype == DataType::kI32 || std::isinf(rounded)) {
      EXPECT_EQ(actual, rounded) << i;
    } else {
      EXPECT_NEAR(actual, expected[i], std::abs(rounded - expected[i]) + 1e-13 * (1 + d->magnitude[i])) << i;
    }
  }
}

TEST_P(AttentionGolden, IsMet) {
  const Golden golden = ReadGolden(GetParam());
  AttentionArgs args;
  const AttentionProblem problem = golden.Attention(&args);
  const absl::StatusOr<AttentionGeometry> geometry = Validate(problem);
  ASSERT_TRUE(geometry.ok()) << geometry.status();
  EXPECT_EQ(geometry->o_spec.shape, golden.At("expected_o").spec.shape);
  EXPECT_EQ(geometry->lse_spec->shape, golden.At("expected_lse").spec.shape);

  const absl::StatusOr<AttentionResult> result = AttentionValues(problem, args);
  ASSERT_TRUE(result.ok()) << result.status();
  ExpectSame(result->o.value, golden.Doubles("expected_o"), result->o.magnitude, "o");
  ExpectSame(result->lse.value, golden.Doubles("expected_lse"), result->lse.magnitude, "lse");
  ExpectMagnitudes(result->o);

  std::vector<std::byte> o(geometry->o_spec.bytes() + 1, std::byte{0xa5});
  std::vector<float> lse(result->lse.value.size() + 1, -1.25f);
  args.o = o.data();
  args.lse = lse.data();
  ASSERT_TRUE(Attention(problem, args).ok());
  EXPECT_EQ(o.back(), std::byte{0xa5});
  EXPECT_EQ(lse.back(), -1.25f);
  const std::vector<double> exact(result->o.value.size(), 0.0), exact_lse(result->lse.value.size(), 0.0);
  EXPECT_TRUE(Compare(geometry->output_dtype, o.data(), result->o.value, exact).ok());
  EXPECT_TRUE(Compare(DataType::kF32, lse.data(), result->lse.value, exact_lse).ok());
}

TEST(Goldens, AreAllThere) {
  EXPECT_GE(GoldenNames("matmul_").size(), 45u);
  EXPECT_GE(GoldenNames("attention_").size(), 55u);
}

TEST(MatmulReference, RefusesWhatValidateRefuses) {
  const MatmulProblem problem{.a = {.dtype = DataType::kF32, .shape = {2, 3}},
                              .b = {.dtype = DataType::kF32, .shape = {4, 5}}};
  EXPECT_EQ(MatmulValues(problem, {}).status(), Validate(problem).status());
  EXPECT_EQ(Matmul(problem, {}).code(), absl::StatusCode::kInvalidArgument);
}

// I8 sums wrap as int32 accumulation does; -128 * -128 = 2^14.
TEST(MatmulReference, IntegerSumsWrapPast32Bits) {
  for (const auto& [k, expected] : {std::pair{(1 << 17) - 1, 2147467264.0}, {1 << 17, -2147483648.0}, {1 << 18, 0.0}}) {
    const std::vector<std::int8_t> ones(k, -128);
    std::int32_t d = 7;
    MatmulProblem problem{.a = {.dtype = DataType::kI8, .shape = {1, k}},
                          .b = {.dtype = DataType::kI8, .shape = {k, 1}}};
    ASSERT_TRUE(Matmul(problem, {.a = ones.data(), .b = ones.data(), .d = &d}).ok());
    EXPECT_EQ(d, expected) << "K = " << k;
    problem.output_dtype = DataType::kF32;
    const absl::StatusOr<Values> values = MatmulValues(problem, {.a = ones.data(), .b = ones.data()});
    ASSERT_TRUE(values.ok());
    EXPECT_EQ(values->value[0], expected) << "K = " << k;
  }
}

TEST(AttentionReference, RefusesWhatValidateRefuses) {
  const TensorSpec spec{.dtype = DataType::kF32, .shape = {1, 1, 2, 3}};
  const AttentionProblem problem{.q = spec, .k = spec, .v = spec, .softcap = -1.0};
  EXPECT_EQ(AttentionValues(problem, {}).status(), Validate(problem).status());
  EXPECT_EQ(Attention(problem, {}).code(), absl::StatusCode::kInvalidArgument);
}

TEST(AttentionReference, LogitOfPlusInfinitySpoilsItsRow) {
  const std::vector<float> q = {1, -1}, k = {1, std::numeric_limits<float>::infinity()}, v = {3, 4};
  const TensorSpec spec{.dtype = DataType::kF32, .shape = {1, 1, 2, 1}};
  const AttentionProblem problem{.q = spec, .k = spec, .v = spec};
  const absl::StatusOr<AttentionResult> r = AttentionValues(problem, {.q = q.data(), .k = k.data(), .v = v.data()});
  ASSERT_TRUE(r.ok());
  EXPECT_TRUE(std::isnan(r->o.value[0]));
  EXPECT_TRUE(std::isnan(r->lse.value[0]));
  EXPECT_EQ(r->o.value[1], 3);  // a logit of minus infinity weighs nothing
  EXPECT_EQ(r->lse.value[1], -1);
}

// A bias of minus infinity hides key and value, whatever they hold; a row that it leaves without keys is empty.
TEST(AttentionReference, BiasOfMinusInfinityHidesItsKey) {
  constexpr float kNever = -std::numeric_limits<float>::infinity(), kBad = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> q = {1, 1, 1}, k = {1, kBad}, v = {3, kBad}, bias = {0, kNever, kNever, kNever, 0, 0};
  const TensorSpec two{.dtype = DataType::kF32, .shape = {1, 1, 2, 1}};
  const AttentionProblem problem{.q = {.dtype = DataType::kF32, .shape = {1, 1, 3, 1}},
                                 .k = two,
                                 .v = two,
                                 .bias = TensorSpec{.dtype = DataType::kF32, .shape = {1, 1, 3, 2}}};
  const absl::StatusOr<AttentionResult> r =
      AttentionValues(problem, {.q = q.data(), .k = k.data(), .v = v.data(), .bias = bias.data()});
  ASSERT_TRUE(r.ok()) << r.status();
  EXPECT_EQ(r->o.value[0], 3);
  EXPECT_EQ(r->lse.value[0], 1);
  EXPECT_EQ(r->o.value[1], 0);
  EXPECT_EQ(r->lse.value[1], -kInfinity);
  EXPECT_TRUE(std::isnan(r->o.value[2]));
  EXPECT_TRUE(std::isnan(r->lse.value[2]));
}

// A logit of minus infinity that no bias made weighs nothing either.
TEST(AttentionReference, LogitOfMinusInfinityWeighsNothing) {
  const std::vector<float> q = {1}, k = {1, -std::numeric_limits<float>::infinity()},
                           v = {3, std::numeric_limits<float>::infinity()};
  const TensorSpec two{.dtype = DataType::kF32, .shape = {1, 1, 2, 1}};
  const AttentionProblem problem{.q = {.dtype = DataType::kF32, .shape = {1, 1, 1, 1}}, .k = two, .v = two};
  const absl::StatusOr<AttentionResult> r = AttentionValues(problem, {.q = q.data(), .k = k.data(), .v = v.data()});
  ASSERT_TRUE(r.ok()) << r.status();
  EXPECT_EQ(r->o.value[0], 3);
  EXPECT_EQ(r->lse.value[0], 1);
}

// Keys in three parts, one empty, merge to the whole.
TEST(AttentionReference, MergesPartsOfTheKeys) {
  const Golden golden = ReadGolden("attention_bhld");
  AttentionArgs args;
  const AttentionProblem whole = golden.Attention(&args);
  const absl::StatusOr<AttentionResult> expected = AttentionValues(whole, args);
  ASSERT_TRUE(expected.ok());
  std::vector<AttentionPart> parts;
  for (const auto& [begin, end] : {std::pair<std::int64_t, std::int64_t>{0, 3}, {3, 3}, {3, 7}}) {
    AttentionProblem part = whole;
    AttentionArgs part_args = args;
    for (TensorSpec* spec : {&part.k, &part.v}) {
      spec->strides = spec->EffectiveStrides();
      spec->shape[2] = end - begin;
    }
    part_args.k = static_cast<const float*>(args.k) + begin * part.k.strides[2];
    part_args.v = static_cast<const float*>(args.v) + begin * part.v.strides[2];
    const absl::StatusOr<AttentionResult> result = AttentionValues(part, part_args);
    ASSERT_TRUE(result.ok());
    parts.push_back({.o = result->o.value, .lse = result->lse.value});
  }
  const AttentionPart merged = Merge(parts);
  ExpectSame(merged.o, expected->o.value, expected->o.magnitude, "o");
  ExpectSame(merged.lse, expected->lse.value, expected->lse.magnitude, "lse");
}

TEST(AttentionReference, MergeKeepsEmptyRowsAndNan) {
  const AttentionPart nothing{.o = {kNan, 0}, .lse = {-kInfinity}};
  const AttentionPart some{.o = {1, 2}, .lse = {700}};
  EXPECT_EQ(Merge({nothing, nothing}).o, (std::vector<double>{0, 0}));
  EXPECT_EQ(Merge({nothing, nothing}).lse, (std::vector<double>{-kInfinity}));
  EXPECT_EQ(Merge({nothing, some}).o, some.o);
  EXPECT_EQ(Merge({nothing, some}).lse, some.lse);
  EXPECT_NEAR(Merge({some, some}).lse[0], 700 + std::log(2.0), 1e-12);
  EXPECT_TRUE(std::isnan(Merge({some, {.o = {kNan, kNan}, .lse = {kNan}}}).lse[0]));
  EXPECT_TRUE(Merge({}).lse.empty());
}

// One layer of a real model over real text; the expected context is torch's, in float64, rounded to F32.
TEST(AttentionReference, MeetsARealLayer) {
  const auto q = kernd::testing::ReadNpy("minilm/q.npy"), k = kernd::testing::ReadNpy("minilm/k.npy"),
             v = kernd::testing::ReadNpy("minilm/v.npy"), o = kernd::testing::ReadNpy("minilm/expected_o.npy");
  const AttentionProblem problem{.q = q.spec, .k = k.spec, .v = v.spec};
  const absl::StatusOr<AttentionResult> result =
      AttentionValues(problem, {.q = q.bytes.data(), .k = k.bytes.data(), .v = v.bytes.data()});
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_EQ(o.spec.shape, q.spec.shape);
  const std::vector<double> bounds(result->o.value.size(), 1e-12);
  const Comparison comparison = Compare(DataType::kF32, o.bytes.data(), result->o.value, bounds);
  EXPECT_TRUE(comparison.ok()) << comparison.ToString();
}

}  // namespace
}  // namespace kernd::reference
