#include "kernels/reference/tolerance.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/reference/convert.h"
#include "kernels/reference/matmul.h"

namespace kernd::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

Comparison CompareValues(DataType type, const std::vector<double>& actual, const std::vector<double>& expected,
                         double bound) {
  return Compare(type, StoreAll(type, actual).data(), expected, std::vector<double>(expected.size(), bound));
}

TEST(Compare, BoundOfZeroAsksForTheRoundedValue) {
  const std::vector<double> expected = {1.0 / 3, -2.0 / 7, 0.0, 1e5, 1e-8, -kInfinity, kNan};
  for (const DataType type : {DataType::kF16, DataType::kBF16, DataType::kF32, DataType::kF64}) {
    EXPECT_TRUE(CompareValues(type, expected, expected, 0).ok()) << Name(type);
    std::vector<double> off = expected;
    off[1] = std::nextafter(static_cast<float>(Round(type, off[1])), 0.0f) * (type == DataType::kF32 ? 1 : 1.01);
    const Comparison comparison = CompareValues(type, off, expected, 0);
    EXPECT_EQ(comparison.mismatches, 1) << Name(type);
    EXPECT_EQ(comparison.first_mismatch, 1) << Name(type);
  }
}

TEST(Compare, BoundIsAboutTheValueBeforeRounding) {
  EXPECT_TRUE(CompareValues(DataType::kF64, {1.25}, {1.0}, 0.25).ok());
  EXPECT_FALSE(CompareValues(DataType::kF64, {std::nextafter(1.25, 2)}, {1.0}, 0.25).ok());
  // 1 + 2^-8 lies between two BF16 values; a bound of 2^-10 reaches neither of the next ones.
  EXPECT_TRUE(CompareValues(DataType::kBF16, {1.0 + 0x1p-7}, {1.0 + 0x1p-8}, 0x1p-10).ok());
  EXPECT_FALSE(CompareValues(DataType::kBF16, {1.0 - 0x1p-8}, {1.0 + 0x1p-8}, 0x1p-10).ok());
}

TEST(Compare, OverflowIsJudgedLikeAnyValue) {
  EXPECT_TRUE(CompareValues(DataType::kF16, {kInfinity}, {70000}, 0).ok());
  EXPECT_TRUE(CompareValues(DataType::kF16, {kInfinity}, {65500}, 30).ok());
  EXPECT_FALSE(CompareValues(DataType::kF16, {kInfinity}, {65400}, 30).ok());
  EXPECT_FALSE(CompareValues(DataType::kF16, {-kInfinity}, {70000}, 1).ok());
  EXPECT_FALSE(CompareValues(DataType::kF16, {65504}, {70000}, 1).ok());
}

TEST(Compare, NanAndInfinityMustBeMet) {
  EXPECT_TRUE(CompareValues(DataType::kF32, {kNan}, {kNan}, 1).ok());
  EXPECT_FALSE(CompareValues(DataType::kF32, {kNan}, {0}, kInfinity).ok());
  EXPECT_FALSE(CompareValues(DataType::kF32, {0}, {kNan}, 1).ok());
  EXPECT_TRUE(CompareValues(DataType::kF32, {-kInfinity}, {-kInfinity}, 1).ok());
  EXPECT_TRUE(CompareValues(DataType::kF32, {-kInfinity}, {-kInfinity}, kInfinity).ok());
  EXPECT_FALSE(CompareValues(DataType::kF32, {kInfinity}, {-kInfinity}, 1).ok());
  EXPECT_FALSE(CompareValues(DataType::kF32, {-1e38}, {-kInfinity}, 1e38).ok());
}

TEST(Compare, ReportsWhatItSaw) {
  const Comparison c = CompareValues(DataType::kF64, {1, 2.5, 4, kNan}, {1, 2, 8, 0}, 0.5);
  EXPECT_EQ(c.count, 4);
  EXPECT_EQ(c.mismatches, 2);
  EXPECT_EQ(c.first_mismatch, 2);
  EXPECT_EQ(c.first_actual, 4);
  EXPECT_EQ(c.first_expected, 8);
  EXPECT_EQ(c.max_abs, 4);
  EXPECT_EQ(c.max_rel, 0.5);
  EXPECT_EQ(c.mean_abs, 1.5);
  EXPECT_EQ(c.ToString(), "2 of 4 differ, first [2]: 4, expected 8 +- 0.5; max 4 (0.5 relative), mean 1.5");
  EXPECT_TRUE(CompareValues(DataType::kF64, {}, {}, 0).ok());
}

// A matmul as an honest kernel makes it: F32 accumulation. `skip` leaves out that k.
std::vector<double> FloatMatmul(const std::vector<double>& a, const std::vector<double>& b, int m, int n, int k,
                                int skip) {
  std::vector<double> d(m * n);
  for (int i = 0; i < m; ++i) {
    for (int j = 0; j < n; ++j) {
      float sum = 0;
      for (int t = 0; t < k; ++t) {
        if (t != skip) sum += static_cast<float>(a[i * k + t]) * static_cast<float>(b[t * n + j]);
      }
      d[i * n + j] = sum;
    }
  }
  return d;
}

std::vector<double> Random(DataType type, std::size_t count, std::mt19937_64& random) {
  std::normal_distribution<double> normal;
  std::vector<double> values(count);
  for (double& x : values) x = Round(type, normal(random));
  return values;
}

TEST(MatmulBounds, AcceptHonestArithmeticAndRefuseALostTerm) {
  constexpr int kM = 9, kN = 11;
  for (const int k : {1, 7, 64, 1000, 5000}) {
    for (const DataType type : {DataType::kF16, DataType::kBF16, DataType::kF32}) {
      std::mt19937_64 random(k);
      const std::vector<double> a = Random(type, kM * k, random), b = Random(type, k * kN, random);
      const std::vector<std::byte> a_bytes = StoreAll(type, a), b_bytes = StoreAll(type, b);
      const MatmulProblem problem{.a = {.dtype = type, .shape = {kM, k}}, .b = {.dtype = type, .shape = {k, kN}}};
      const absl::StatusOr<Values> expected = MatmulValues(problem, {.a = a_bytes.data(), .b = b_bytes.data()});
      ASSERT_TRUE(expected.ok());
      const std::vector<double> bounds = MatmulBounds(problem, *expected);
      const auto compare = [&](int skip) {
        return Compare(type, StoreAll(type, FloatMatmul(a, b, kM, kN, k, skip)).data(), expected->value, bounds);
      };
      EXPECT_TRUE(compare(-1).ok()) << "K = " << k << " " << Name(type) << " seed " << k << ": "
                                    << compare(-1).ToString();
      EXPECT_GT(compare(k / 2).mismatches, kM * kN / 4) << "K = " << k << " " << Name(type) << " seed " << k;
    }
  }
}

TEST(MatmulBounds, WholeNumbersMustBeExact) {
  MatmulProblem problem{.a = {.dtype = DataType::kI8, .shape = {1, 4}}, .b = {.dtype = DataType::kI8, .shape = {4, 1}}};
  const Values d{.value = {100}, .magnitude = {100}};
  EXPECT_EQ(MatmulBounds(problem, d), std::vector<double>{0});
  problem.activation = Activation::kRelu;
  EXPECT_EQ(MatmulBounds(problem, d), std::vector<double>{0});
  problem.alpha = 0.5;
  EXPECT_GT(MatmulBounds(problem, d)[0], 0);
}

TEST(MatmulBounds, AreZeroWhereNothingCanBeSaid) {
  const TensorSpec spec{.dtype = DataType::kF32, .shape = {1, 1}};
  EXPECT_EQ(MatmulBounds({.a = spec, .b = spec}, {.value = {kNan, 0}, .magnitude = {kNan, kInfinity}}),
            (std::vector<double>{0, 0}));
}

// Attention as a tensor-core kernel makes it: F32 logits and sums, P rounded to `type`. `extra` more keys are seen.
std::vector<double> FloatAttention(DataType type, const std::vector<double>& q, const std::vector<double>& k,
                                   const std::vector<double>& v, int rows, int d, int extra) {
  std::vector<double> o(rows * d);
  for (int i = 0; i < rows; ++i) {
    std::vector<float> logits;
    float largest = -std::numeric_limits<float>::infinity();
    for (int j = 0; j < std::min(rows, i + 1 + extra); ++j) {
      float dot = 0;
      for (int c = 0; c < d; ++c) dot += static_cast<float>(q[i * d + c]) * static_cast<float>(k[j * d + c]);
      logits.push_back(dot / std::sqrt(static_cast<float>(d)));
      largest = std::max(largest, logits.back());
    }
    float sum = 0;
    std::vector<float> out(d, 0.0f);
    for (std::size_t j = 0; j < logits.size(); ++j) {
      const float p = std::exp(logits[j] - largest);
      sum += p;
      for (int c = 0; c < d; ++c) out[c] += static_cast<float>(Round(type, p)) * static_cast<float>(v[j * d + c]);
    }
    for (int c = 0; c < d; ++c) o[i * d + c] = out[c] / sum;
  }
  return o;
}

TEST(AttentionBounds, AcceptHonestArithmeticAndRefuseAKeyTooMany) {
  constexpr int kRows = 96, kD = 32;
  for (const AttentionLayout layout : {AttentionLayout::kBHLD, AttentionLayout::kBLHD}) {
    for (const DataType type : {DataType::kF16, DataType::kBF16, DataType::kF32}) {
      std::mt19937_64 random(5);
      const auto q = Random(type, kRows * kD, random), k = Random(type, kRows * kD, random),
                 v = Random(type, kRows * kD, random);
      const auto q_bytes = StoreAll(type, q), k_bytes = StoreAll(type, k), v_bytes = StoreAll(type, v);
      TensorSpec spec{.dtype = type, .shape = {1, 1, kRows, kD}};
      if (layout == AttentionLayout::kBLHD) spec.shape = {1, kRows, 1, kD};
      const AttentionProblem problem{.layout = layout, .q = spec, .k = spec, .v = spec, .causal = true};
      const absl::StatusOr<AttentionResult> expected =
          AttentionValues(problem, {.q = q_bytes.data(), .k = k_bytes.data(), .v = v_bytes.data()});
      ASSERT_TRUE(expected.ok());
      const std::vector<double> bounds = OutputBounds(problem, *expected);
      const auto compare = [&](int extra) {
        const std::vector<double> o = FloatAttention(type, q, k, v, kRows, kD, extra);
        return Compare(type, StoreAll(type, o).data(), expected->o.value, bounds);
      };
      EXPECT_TRUE(compare(0).ok()) << Name(type) << ": " << compare(0).ToString();
      EXPECT_GT(compare(1).mismatches, kRows * kD / 4) << Name(type);

      const std::vector<double> lse_bounds = LseBounds(problem, *expected);
      std::vector<double> lse = expected->lse.value;
      EXPECT_TRUE(Compare(DataType::kF32, StoreAll(DataType::kF32, lse).data(), expected->lse.value, lse_bounds).ok());
      for (double& x : lse) x += 1e-4;
      EXPECT_EQ(
          Compare(DataType::kF32, StoreAll(DataType::kF32, lse).data(), expected->lse.value, lse_bounds).mismatches,
          kRows);
    }
  }
}

// Biases near the end of F32. Row 0 has one key that is not lowest, row 1 one that is largest: nothing is in doubt, and
// the bounds are as tight as ever. In row 2 all are lowest, so that rounding alone decides: nothing is asked of O but
// that it be a number, and LSE must still be right.
TEST(AttentionBounds, FollowTheLogitsThatCount) {
  constexpr float kMost = std::numeric_limits<float>::max();
  const std::vector<float> q = {1, 1, 1}, k = {0, 1}, v = {1, 2}, bias = {0, -kMost, kMost, 0, -kMost, -kMost};
  const TensorSpec two{.dtype = DataType::kF32, .shape = {1, 1, 2, 1}};
  const AttentionProblem problem{.q = {.dtype = DataType::kF32, .shape = {1, 1, 3, 1}},
                                 .k = two,
                                 .v = two,
                                 .bias = TensorSpec{.dtype = DataType::kF32, .shape = {1, 1, 3, 2}}};
  const absl::StatusOr<AttentionResult> r =
      AttentionValues(problem, {.q = q.data(), .k = k.data(), .v = v.data(), .bias = bias.data()});
  ASSERT_TRUE(r.ok()) << r.status();
  const std::vector<double> o = OutputBounds(problem, *r), lse = LseBounds(problem, *r);
  for (const int row : {0, 1}) {
    EXPECT_EQ(r->o.value[row], 1);
    EXPECT_GT(o[row], 0);
    EXPECT_LT(o[row], 1e-5);
  }
  EXPECT_EQ(r->lse.value[0], 0);
  EXPECT_LT(lse[0], 1e-5);
  EXPECT_EQ(o[2], kInfinity);
  EXPECT_TRUE(Compare(DataType::kF32, StoreAll(DataType::kF32, {1, 1, 1.9}).data(), r->o.value, o).ok());
  EXPECT_EQ(Compare(DataType::kF32, StoreAll(DataType::kF32, {1, 1, kNan}).data(), r->o.value, o).mismatches, 1);
  EXPECT_LT(lse[2], 1e-5 * kMost);
  EXPECT_GT(lse[2], 0);
}

// A row's bound follows its own logits, wherever the layout puts its LSE.
TEST(AttentionBounds, FollowTheRowThroughTheLayouts) {
  for (const auto& [layout, shape, rows] :
       {std::tuple{AttentionLayout::kBHLD, Dims{1, 2, 3, 1}, std::vector<int>{0, 1, 2, 3, 4, 5}},
        std::tuple{AttentionLayout::kBLHD, Dims{1, 3, 2, 1}, std::vector<int>{0, 3, 1, 4, 2, 5}},
        std::tuple{AttentionLayout::kPacked, Dims{3, 2, 1}, std::vector<int>{0, 3, 1, 4, 2, 5}}}) {
    const TensorSpec spec{.dtype = DataType::kF32, .shape = shape};
    const AttentionProblem problem{.layout = layout, .q = spec, .k = spec, .v = spec};
    AttentionResult result{.o = {.value = std::vector<double>(6, 1.0), .magnitude = std::vector<double>(6, 1.0)},
                           .lse = {.value = std::vector<double>(6, 0.0), .magnitude = std::vector<double>(6, 6.0)},
                           .contest = {1, 2, 3, 4, 5, 6}};
    result.lse.value[4] = -kInfinity;
    const std::vector<double> bounds = OutputBounds(problem, result);
    for (int at = 0; at + 1 < 6; ++at) {
      for (int other = at + 1; other < 6; ++other) {
        const bool less = rows[at] == 4 ? true : rows[other] == 4 ? false : rows[at] < rows[other];
        EXPECT_EQ(bounds[at] < bounds[other], less) << Name(layout) << " " << at << " " << other;
      }
      // A row without keys is exact.
      EXPECT_EQ(bounds[at] == 0, rows[at] == 4) << Name(layout) << " " << at;
    }
  }
}

}  // namespace
}  // namespace kernd::reference
