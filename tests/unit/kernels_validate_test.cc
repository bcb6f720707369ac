// Every rule of kernd/kernels/tensor.h and matmul.h: what is refused, with which code and naming which field, and
// what is said of what is accepted.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernd/kernels/matmul.h"
#include "kernd/kernels/tensor.h"
#include "tests/support/refusal.h"

namespace kernd {
namespace {

using ::kernd::testing::ExpectRefused;
using ::kernd::testing::kCaseName;
using ::kernd::testing::kInvalid;
using ::kernd::testing::kUnsupported;
using ::kernd::testing::Refusal;
using ::testing::ElementsAre;

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TensorSpec F32(Dims shape) {
  return {.dtype = DataType::kF32, .shape = std::move(shape)};
}

// ------------------------------------------------------------------------------------------------ tensor.h

TEST(CheckedArithmetic, StopsAtTheEndOfInt64) {
  EXPECT_EQ(CheckedMul(kMax, 1), kMax);
  EXPECT_EQ(CheckedMul(kMax / 2 + 1, 2), std::nullopt);
  EXPECT_EQ(CheckedMul(-1, 0), std::nullopt);
  EXPECT_EQ(CheckedAdd(kMax - 1, 1), kMax);
  EXPECT_EQ(CheckedAdd(kMax, 1), std::nullopt);
  EXPECT_EQ(CheckedAdd(1, -1), std::nullopt);
  EXPECT_EQ(CheckedProduct({}), 1);
  EXPECT_EQ(CheckedProduct({3, 5, 7}), 105);
  EXPECT_EQ(CheckedProduct({std::int64_t{1} << 40, std::int64_t{1} << 40}), std::nullopt);
  EXPECT_EQ(CheckedProduct({std::int64_t{1} << 40, std::int64_t{1} << 40, 0}), 0) << "zero wins over overflow";
  EXPECT_EQ(CheckedProduct({0, -1}), std::nullopt);
}

TEST(TensorSpecTest, SizesAndStrides) {
  const TensorSpec spec{.dtype = DataType::kF16, .shape = {2, 3, 4}};
  EXPECT_EQ(spec.rank(), 3);
  EXPECT_EQ(spec.elements(), 24);
  EXPECT_EQ(spec.bytes(), 48);
  EXPECT_THAT(spec.EffectiveStrides(), ElementsAre(12, 4, 1));
  EXPECT_EQ(spec.ToString(), "F16[2,3,4]");
  EXPECT_EQ(F32({}).elements(), 1) << "a scalar";
  EXPECT_TRUE(F32({}).EffectiveStrides().empty());
  EXPECT_THAT(F32({2, 0, 4}).EffectiveStrides(), ElementsAre(4, 4, 1));
  const TensorSpec view{.dtype = DataType::kF32, .shape = {2, 3}, .strides = {9, 1}};
  EXPECT_THAT(view.EffectiveStrides(), ElementsAre(9, 1));
  EXPECT_EQ(view.bytes(), 24);
}

class CheckSpecRefusal : public ::testing::TestWithParam<Refusal<TensorSpec>> {};

TEST_P(CheckSpecRefusal, NamesTheField) {
  TensorSpec spec = F32({2, 3});
  ASSERT_TRUE(CheckSpec("x", spec).ok());
  GetParam().breaks(spec);
  ExpectRefused(CheckSpec("x", spec), GetParam().code, GetParam().field);
}

INSTANTIATE_TEST_SUITE_P(Rules, CheckSpecRefusal,
                         ::testing::ValuesIn(std::vector<Refusal<TensorSpec>>{
                             {"dtype_unset", kInvalid, "x.dtype", [](TensorSpec& s) { s.dtype = DataType::kInvalid; }},
                             {"nine_dimensions", kInvalid, "x.shape", [](TensorSpec& s) { s.shape = Dims(9, 1); }},
                             {"negative_dimension", kInvalid, "x.shape",
                              [](TensorSpec& s) {
                                s.shape = {2, -1};
                              }},
                             {"negative_beside_zero", kInvalid, "x.shape",
                              [](TensorSpec& s) {
                                s.shape = {0, -1};
                              }},
                             {"elements_overflow", kInvalid, "x.shape",
                              [](TensorSpec& s) {
                                s.shape = {kMax, 2};
                              }},
                             {"bytes_overflow", kInvalid, "x.shape", [](TensorSpec& s) { s.shape = {kMax / 4 + 1}; }},
                             {"too_few_strides", kInvalid, "x.strides", [](TensorSpec& s) { s.strides = {1}; }},
                             {"too_many_strides", kInvalid, "x.strides",
                              [](TensorSpec& s) {
                                s.strides = {6, 3, 1};
                              }},
                             {"negative_stride", kInvalid, "x.strides",
                              [](TensorSpec& s) {
                                s.strides = {-3, 1};
                              }},
                             {"last_stride", kInvalid, "x.strides",
                              [](TensorSpec& s) {
                                s.strides = {6, 2};
                              }},
                             {"last_stride_zero", kInvalid, "x.strides",
                              [](TensorSpec& s) {
                                s.strides = {3, 0};
                              }},
                             {"span_overflow", kInvalid, "x.strides",
                              [](TensorSpec& s) {
                                s.strides = {kMax / 4, 1};
                              }},
                             {"span_product_overflow", kInvalid, "x.strides",
                              [](TensorSpec& s) {
                                s.shape = {9, 3}, s.strides = {kMax / 4, 1};
                              }},
                         }),
                         kCaseName);

TEST(CheckSpecTest, AcceptsTheEdges) {
  EXPECT_TRUE(CheckSpec("x", F32({})).ok());
  EXPECT_TRUE(CheckSpec("x", F32(Dims(8, 1))).ok());
  EXPECT_TRUE(CheckSpec("x", F32({kMax / 4})).ok());
  EXPECT_TRUE(CheckSpec("x", F32({kMax, kMax, 0})).ok());
  EXPECT_TRUE(CheckSpec("x", {.dtype = DataType::kF32, .shape = {5, 3}, .strides = {0, 1}}).ok()) << "broadcast rows";
  EXPECT_TRUE(CheckSpec("x", {.dtype = DataType::kF32, .shape = {1, 3}, .strides = {kMax, 1}}).ok()) << "never stepped";
}

// ------------------------------------------------------------------------------------------------ matmul.h

MatmulProblem GoodMatmul() {
  return {.a = F32({2, 1, 5, 7}), .b = F32({3, 7, 6}), .c = F32({3, 5, 6}), .bias = F32({6}), .beta = 0.5};
}

// 8-bit operands, [5, 7] x [7, 6].
MatmulProblem GoodScaled() {
  return {.a = {.dtype = DataType::kF8E4M3, .shape = {5, 7}},
          .b = {.dtype = DataType::kF8E5M2, .shape = {7, 6}},
          .a_scale = ScaleSpec{.kind = ScaleSpec::Kind::kBlock, .spec = F32({3, 2}), .block_rows = 2, .block_k = 4},
          .b_scale = ScaleSpec{.kind = ScaleSpec::Kind::kRow, .spec = F32({6})}};
}

class MatmulRefusal : public ::testing::TestWithParam<Refusal<MatmulProblem>> {};
class ScaledMatmulRefusal : public ::testing::TestWithParam<Refusal<MatmulProblem>> {};

TEST_P(MatmulRefusal, NamesTheField) {
  MatmulProblem problem = GoodMatmul();
  ASSERT_TRUE(Validate(problem).ok()) << Validate(problem).status();
  GetParam().breaks(problem);
  ExpectRefused(Validate(problem).status(), GetParam().code, GetParam().field);
}

TEST_P(ScaledMatmulRefusal, NamesTheField) {
  MatmulProblem problem = GoodScaled();
  ASSERT_TRUE(Validate(problem).ok()) << Validate(problem).status();
  GetParam().breaks(problem);
  ExpectRefused(Validate(problem).status(), GetParam().code, GetParam().field);
}

using M = MatmulProblem;

INSTANTIATE_TEST_SUITE_P(
    Rules, MatmulRefusal,
    ::testing::ValuesIn(std::vector<Refusal<M>>{
        {"a_unset", kInvalid, "matmul.a.dtype", [](M& p) { p.a = {}; }},
        {"b_negative", kInvalid, "matmul.b.shape", [](M& p) { p.b.shape[0] = -3; }},
        {"a_vector", kInvalid, "matmul.a.shape", [](M& p) { p.a.shape = {7}; }},
        {"b_vector", kInvalid, "matmul.b.shape", [](M& p) { p.b.shape = {7}; }},
        {"a_i32", kUnsupported, "matmul.a.dtype", [](M& p) { p.a.dtype = DataType::kI32; }},
        {"b_bool", kUnsupported, "matmul.b.dtype", [](M& p) { p.b.dtype = DataType::kBool; }},
        {"mixed_types", kInvalid, "matmul.b.dtype", [](M& p) { p.b.dtype = DataType::kF16; }},
        {"f8_with_i8", kInvalid, "matmul.b.dtype",
         [](M& p) { p.a.dtype = DataType::kF8E4M3, p.b.dtype = DataType::kI8; }},
        {"k_differs", kInvalid, "matmul.b.shape",
         [](M& p) {
           p.b.shape = {3, 8, 6};
         }},
        {"k_differs_transposed", kInvalid, "matmul.b.shape", [](M& p) { p.transpose_b = true; }},
        {"k_differs_transposed_a", kInvalid, "matmul.b.shape", [](M& p) { p.transpose_a = true; }},
        {"batch_differs", kInvalid, "matmul.b.shape",
         [](M& p) {
           p.a.shape = {2, 2, 5, 7};
         }},
        {"output_f64_of_f32", kUnsupported, "matmul.output_dtype", [](M& p) { p.output_dtype = DataType::kF64; }},
        {"output_f16_of_f32", kUnsupported, "matmul.output_dtype", [](M& p) { p.output_dtype = DataType::kF16; }},
        {"output_too_large", kInvalid, "matmul.d.shape",
         [](M& p) {
           p = {.a = F32({std::int64_t{1} << 40, 0}), .b = F32({0, std::int64_t{1} << 40})};
         }},
        {"batch_too_large", kInvalid, "matmul.d.shape",
         [](M& p) {
           p = {.a = F32({std::int64_t{1} << 40, 1, 5, 0}), .b = F32({std::int64_t{1} << 40, 0, 6})};
         }},
        {"output_rank", kInvalid, "matmul.a.shape", [](M& p) { p.a.shape = Dims(9, 7); }},
        {"alpha_infinite", kInvalid, "matmul.alpha", [](M& p) { p.alpha = kInfinity; }},
        {"alpha_nan", kInvalid, "matmul.alpha", [](M& p) { p.alpha = kNan; }},
        {"beta_nan", kInvalid, "matmul.beta", [](M& p) { p.beta = kNan; }},
        {"beta_infinite", kInvalid, "matmul.beta", [](M& p) { p.beta = -kInfinity; }},
        {"tf32_of_f16", kInvalid, "matmul.numerics",
         [](M& p) {
           p = {.a = F32({5, 7}), .b = F32({7, 6}), .numerics = Numerics::kTf32};
           p.a.dtype = p.b.dtype = DataType::kF16;
         }},
        {"c_absent", kInvalid, "matmul.c", [](M& p) { p.c.reset(); }},
        {"c_bad_spec", kInvalid, "matmul.c.strides", [](M& p) { p.c->strides = {1}; }},
        {"c_dtype", kInvalid, "matmul.c.dtype", [](M& p) { p.c->dtype = DataType::kF16; }},
        {"c_vector", kInvalid, "matmul.c.shape", [](M& p) { p.c->shape = {6}; }},
        {"c_rows", kInvalid, "matmul.c.shape", [](M& p) { p.c->shape = {3, 1, 6}; }},
        {"c_cols", kInvalid, "matmul.c.shape", [](M& p) { p.c->shape = {3, 5, 1}; }},
        {"c_batch", kInvalid, "matmul.c.shape", [](M& p) { p.c->shape = {2, 5, 6}; }},
        {"c_more_batch_than_d", kInvalid, "matmul.c.shape", [](M& p) { p.c->shape = {1, 2, 3, 5, 6}; }},
        {"c_checked_though_not_read", kInvalid, "matmul.c.shape", [](M& p) { p.beta = 0, p.c->shape = {4, 6}; }},
        {"bias_bad_spec", kInvalid, "matmul.bias.shape", [](M& p) { p.bias->shape = {-6}; }},
        {"bias_dtype", kInvalid, "matmul.bias.dtype", [](M& p) { p.bias->dtype = DataType::kBF16; }},
        {"bias_length", kInvalid, "matmul.bias.shape", [](M& p) { p.bias->shape = {5}; }},
        {"bias_matrix", kInvalid, "matmul.bias.shape", [](M& p) { p.bias->shape = {1, 6}; }},
        {"scale_of_f32", kInvalid, "matmul.a_scale", [](M& p) { p.a_scale = ScaleSpec{.spec = F32({})}; }},
    }),
    kCaseName);

INSTANTIATE_TEST_SUITE_P(
    Rules, ScaledMatmulRefusal,
    ::testing::ValuesIn(std::vector<Refusal<M>>{
        {"spec", kInvalid, "matmul.a_scale.shape",
         [](M& p) {
           p.a_scale->spec.shape = {-1, 2};
         }},
        {"dtype", kInvalid, "matmul.b_scale.dtype", [](M& p) { p.b_scale->spec.dtype = DataType::kF16; }},
        {"tensor_of_two", kInvalid, "matmul.a_scale.shape", [](M& p) { p.a_scale = ScaleSpec{.spec = F32({2})}; }},
        {"tensor_of_matrix", kInvalid, "matmul.a_scale.shape",
         [](M& p) {
           p.a_scale = ScaleSpec{.spec = F32({1, 1})};
         }},
        {"row_length", kInvalid, "matmul.b_scale.shape", [](M& p) { p.b_scale->spec.shape = {5}; }},
        {"row_matrix", kInvalid, "matmul.b_scale.shape",
         [](M& p) {
           p.b_scale->spec.shape = {6, 1};
         }},
        {"block_rows_zero", kInvalid, "matmul.a_scale.block", [](M& p) { p.a_scale->block_rows = 0; }},
        {"block_k_negative", kInvalid, "matmul.a_scale.block", [](M& p) { p.a_scale->block_k = -4; }},
        {"block_shape", kInvalid, "matmul.a_scale.shape",
         [](M& p) {
           p.a_scale->spec.shape = {3, 3};
         }},
        {"block_rank", kInvalid, "matmul.a_scale.shape", [](M& p) { p.a_scale->spec.shape = {6}; }},
        // As many blocks as a sum that wraps would ask for.
        {"block_huge", kInvalid, "matmul.a_scale.shape", [](M& p) { p.a_scale->block_rows = kMax; }},
        {"i32_with_scales", kInvalid, "matmul.output_dtype", [](M& p) { p.a.dtype = p.b.dtype = DataType::kI8; }},
        {"output_f8", kUnsupported, "matmul.output_dtype", [](M& p) { p.output_dtype = DataType::kF8E4M3; }},
        {"output_i32_of_f8", kUnsupported, "matmul.output_dtype", [](M& p) { p.output_dtype = DataType::kI32; }},
    }),
    kCaseName);

TEST(MatmulValidate, BroadcastsBatchesAsNumpy) {
  const absl::StatusOr<MatmulGeometry> g = Validate(GoodMatmul());
  ASSERT_TRUE(g.ok()) << g.status();
  EXPECT_EQ((std::vector<std::int64_t>{g->m, g->n, g->k, g->batch}), (std::vector<std::int64_t>{5, 6, 7, 6}));
  EXPECT_THAT(g->batch_shape, ElementsAre(2, 3));
  EXPECT_EQ(g->d, F32({2, 3, 5, 6}));
  EXPECT_THAT(g->a_batch_strides, ElementsAre(35, 0));
  EXPECT_THAT(g->b_batch_strides, ElementsAre(0, 42));
  EXPECT_THAT(g->c_batch_strides, ElementsAre(0, 30));
  EXPECT_EQ(g->AOffset(4), 35);  // item 4 is [1, 1]
  EXPECT_EQ(g->BOffset(4), 42);
  EXPECT_EQ(g->COffset(5), 60);  // [1, 2]

  MatmulProblem repeats_c = GoodMatmul();
  repeats_c.c->shape = {2, 1, 5, 6};
  const absl::StatusOr<MatmulGeometry> r = Validate(repeats_c);
  ASSERT_TRUE(r.ok()) << r.status();
  EXPECT_THAT(r->c_batch_strides, ElementsAre(30, 0));
}

TEST(MatmulValidate, TakesViewsAndTransposes) {
  MatmulProblem p{
      .a = F32({7, 5}), .b = F32({6, 7}), .c = F32({5, 6}), .transpose_a = true, .transpose_b = true, .beta = 1};
  p.a.strides = {11, 1};
  p.b.strides = {13, 1};
  p.c->strides = {0, 1};
  const absl::StatusOr<MatmulGeometry> g = Validate(p);
  ASSERT_TRUE(g.ok()) << g.status();
  EXPECT_EQ((std::vector<std::int64_t>{g->m, g->n, g->k, g->lda, g->ldb, g->ldc}),
            (std::vector<std::int64_t>{5, 6, 7, 11, 13, 0}));
}

TEST(MatmulValidate, ChoosesAndOffersOutputs) {
  using enum DataType;
  struct Row {
    DataType operand, fallback;
    std::vector<DataType> offered;
  };
  for (const Row& row : {Row{kF16, kF16, {kF16, kF32}}, Row{kBF16, kBF16, {kBF16, kF32}}, Row{kF32, kF32, {kF32}},
                         Row{kF64, kF64, {kF64}}, Row{kI8, kI32, {kI32, kF32, kF16, kBF16}},
                         Row{kF8E4M3, kBF16, {kBF16, kF16, kF32}}, Row{kF8E5M2, kBF16, {kBF16, kF16, kF32}}}) {
    EXPECT_EQ(DefaultMatmulOutput(row.operand), row.fallback);
    MatmulProblem p{.a = {.dtype = row.operand, .shape = {2, 2}}, .b = {.dtype = row.operand, .shape = {2, 2}}};
    ASSERT_TRUE(Validate(p).ok()) << Name(row.operand);
    EXPECT_EQ(Validate(p)->output_dtype, row.fallback) << Name(row.operand);
    for (int t = static_cast<int>(kBool); t <= static_cast<int>(kF8E5M2); ++t) {
      p.output_dtype = static_cast<DataType>(t);
      const bool offered = std::find(row.offered.begin(), row.offered.end(), p.output_dtype) != row.offered.end();
      EXPECT_EQ(Validate(p).ok(), offered) << Name(row.operand) << " -> " << Name(p.output_dtype);
      if (!offered) ExpectRefused(Validate(p).status(), kUnsupported, "matmul.output_dtype");
    }
  }
}

TEST(MatmulValidate, TakesZeroSizesAndUnreadOperands) {
  for (const auto& [a, b] : {std::pair{Dims{0, 7}, Dims{7, 6}},
                             {Dims{5, 0}, Dims{0, 6}},
                             {Dims{5, 7}, Dims{7, 0}},
                             {Dims{0, 5, 7}, Dims{7, 6}},
                             {Dims{0, 5, 7}, Dims{1, 7, 6}}}) {
    EXPECT_TRUE(Validate(MatmulProblem{.a = F32(a), .b = F32(b)}).ok()) << ToString(a) << ToString(b);
  }
  EXPECT_TRUE(Validate(MatmulProblem{.a = F32({5, 7}), .b = F32({7, 6}), .c = F32({5, 6})}).ok()) << "beta = 0";
  MatmulProblem f32_bias{.a = F32({5, 7}), .b = F32({7, 6}), .bias = F32({6})};
  f32_bias.a.dtype = f32_bias.b.dtype = DataType::kF16;
  EXPECT_TRUE(Validate(f32_bias).ok());
  EXPECT_TRUE(Validate(MatmulProblem{.a = F32({5, 7}), .b = F32({7, 6}), .numerics = Numerics::kTf32}).ok());
}

}  // namespace
}  // namespace kernd
