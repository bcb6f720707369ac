// How a matmul is put to cuBLASLt.
#include <string>

#include "absl/hash/hash.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/gpu/matmul_lt_recipe.h"
#include "tests/unit/gpu_choose_case.h"

namespace kernd {
namespace {

using ::testing::HasSubstr;

LtRecipe RecipeOf(const MatmulProblem& p, bool fuse_bias = true) {
  const auto g = Validate(p);
  EXPECT_TRUE(g.ok()) << g.status();
  return LtRecipeOf(p, *g, kDevice, fuse_bias);
}

TEST(LtRecipe, PlainProblemsGoStraightIn) {
  const LtRecipe r = RecipeOf(Plain(DataType::kBF16, 64, 128, 256));
  ASSERT_EQ(r.refusal, "");
  EXPECT_FALSE(r.a.packed || r.b.packed || r.finish);
  EXPECT_TRUE(r.applied && r.sums_in_d);
  EXPECT_EQ(r.call.m, 128);  // columns first
  EXPECT_EQ(r.call.n, 64);
  EXPECT_EQ(r.call.k, 256);
  EXPECT_EQ(r.call.ldx, 128);
  EXPECT_EQ(r.call.ldy, 256);
  EXPECT_FALSE(r.call.x_transposed || r.call.y_transposed);
  EXPECT_EQ(r.call.x_align, kDeviceAlignment);
  EXPECT_EQ(r.starts.size(), 1);
}

TEST(LtRecipe, TheSameProblemHasTheSameKey) {
  const LtCall one = RecipeOf(Plain(DataType::kF16, 64, 128, 256)).call;
  EXPECT_EQ(one, RecipeOf(Plain(DataType::kF16, 64, 128, 256)).call);
  EXPECT_EQ(absl::Hash<LtCall>()(one), absl::Hash<LtCall>()(RecipeOf(Plain(DataType::kF16, 64, 128, 256)).call));
  MatmulProblem other = Plain(DataType::kF16, 64, 128, 256);
  other.transpose_b = true;
  other.b = Spec(DataType::kF16, {128, 256});
  EXPECT_FALSE(one == RecipeOf(other).call);
}

TEST(LtRecipe, CrookedRowsArePackedWhenThatPays) {
  const LtRecipe large = RecipeOf(Plain(DataType::kBF16, 4096, 4097, 4095));
  ASSERT_EQ(large.refusal, "");
  EXPECT_TRUE(large.a.packed && large.b.packed && large.finish && !large.sums_in_d);
  EXPECT_EQ(large.call.k, 4096);
  EXPECT_EQ(large.call.ldd, 4112);
  EXPECT_EQ(large.sums_bytes, std::int64_t{4096} * 4112 * 2) << "rounded once, and only moved after";
  // K in whole chunks only if both are packed, B too though it is aligned; where K lies across both, it may be crooked.
  const LtRecipe crooked_k = RecipeOf(Plain(DataType::kBF16, 300, 7000, 500));
  EXPECT_TRUE(crooked_k.a.packed && crooked_k.b.packed && !crooked_k.finish);
  EXPECT_EQ(crooked_k.call.k, 512);
  MatmulProblem across = Plain(DataType::kBF16, 304, 7000, 500);
  across.transpose_a = true, across.a = Spec(DataType::kBF16, {500, 304});
  EXPECT_FALSE(RecipeOf(across).a.packed || RecipeOf(across).b.packed);
  const LtRecipe small = RecipeOf(Plain(DataType::kBF16, 17, 19, 15));
  EXPECT_FALSE(small.a.packed || small.b.packed);
}

TEST(LtRecipe, EightBitOperandsRunAlongK) {
  for (const DataType type : {DataType::kI8, DataType::kF8E4M3}) {
    MatmulProblem p = Plain(type, 32, 48, 64);
    const LtRecipe crossed = RecipeOf(p);
    EXPECT_TRUE(!crossed.a.packed && crossed.b.packed) << Name(type);
    p.transpose_b = true;
    p.b = Spec(type, {48, 64});
    const LtRecipe along = RecipeOf(p);
    EXPECT_FALSE(along.a.packed || along.b.packed || along.finish) << Name(type);
    EXPECT_TRUE(along.call.x_transposed && !along.call.y_transposed) << Name(type);
  }
}

TEST(LtRecipe, WhatTheLibraryDoesNotRoundExactlyIsDoneAfter) {
  MatmulProblem p = Plain(DataType::kF16, 64, 128, 256);
  p.activation = Activation::kGelu;
  LtRecipe r = RecipeOf(p);
  EXPECT_TRUE(!r.applied && r.finish && !r.sums_in_d);
  EXPECT_EQ(r.call.d_type, DataType::kF32);
  p.activation = Activation::kRelu;  // commutes with rounding
  r = RecipeOf(p);
  EXPECT_TRUE(r.applied && r.finish && r.sums_in_d);
  p.activation = Activation::kNone;
  for (const DataType bias : {DataType::kF16, DataType::kF32}) {
    p.bias = Spec(bias, {128});
    r = RecipeOf(p);
    EXPECT_TRUE(!r.applied && !r.call.adds_bias) << "it may round to F16 before it adds";
  }
  p.output_dtype = DataType::kF32;
  EXPECT_TRUE(RecipeOf(p).call.adds_bias);
  EXPECT_FALSE(RecipeOf(p, /*fuse_bias=*/false).call.adds_bias);
  p.output_dtype = DataType::kInvalid;
  p.bias.reset();
  MatmulProblem i8 = Plain(DataType::kI8, 64, 128, 256);
  EXPECT_TRUE(RecipeOf(i8).applied);
  i8.output_dtype = DataType::kF32;
  r = RecipeOf(i8);
  EXPECT_TRUE(!r.applied && r.sums_in_d) << "of the same size: in place";
  EXPECT_EQ(r.call.d_type, DataType::kI32);
}

TEST(LtRecipe, BatchesBecomeOneMatrixOrOneLoop) {
  // The same B for every item: rows of one tall matrix.
  const LtRecipe tall = RecipeOf({.a = Spec(DataType::kF16, {3, 5, 7, 64}), .b = Spec(DataType::kF16, {64, 32})});
  EXPECT_EQ(tall.call.n, 105);
  EXPECT_EQ(tall.call.batch, 1);
  const LtRecipe loop = RecipeOf({.a = Spec(DataType::kF16, {3, 5, 7, 64}), .b = Spec(DataType::kF16, {3, 5, 64, 32})});
  EXPECT_EQ(loop.call.batch, 15);
  EXPECT_EQ(loop.call.d_stride, 7 * 32);
  // A repeats along the second dimension, B along the first: one call for each of the three.
  const LtRecipe mixed = RecipeOf({.a = Spec(DataType::kF16, {3, 1, 7, 64}), .b = Spec(DataType::kF16, {5, 64, 32})});
  EXPECT_EQ(mixed.call.batch, 5);
  ASSERT_EQ(mixed.starts.size(), 3);
  EXPECT_EQ(mixed.starts[2].a, 2 * 7 * 64);
  EXPECT_EQ(mixed.starts[2].b, 0);
  EXPECT_EQ(mixed.starts[2].d, 2 * 5 * 7 * 32);
}

TEST(LtRecipe, Refusals) {
  MatmulProblem p = Plain(DataType::kF32, 64, 64, 64);
  p.numerics = Numerics::kBatchInvariant;
  EXPECT_THAT(RecipeOf(p).refusal, HasSubstr("BATCH_INVARIANT"));
  EXPECT_THAT(RecipeOf({.a = Spec(DataType::kF32, {4, 64}, {2, 1}), .b = Spec(DataType::kF32, {64, 8})}).refusal,
              HasSubstr("overlap"));
  EXPECT_THAT(RecipeOf(Plain(DataType::kF16, 65'536, 32'768, 8)).refusal, HasSubstr("2^31"));
  EXPECT_THAT(RecipeOf({.a = Spec(DataType::kF32, {70'000, 2, 8}), .b = Spec(DataType::kF32, {70'000, 8, 8})}).refusal,
              HasSubstr("70000"));
  EXPECT_EQ(RecipeOf(Plain(DataType::kF16, 8, 8, 0)).refusal, "") << "K = 0 needs no library";
}

}  // namespace
}  // namespace kernd
