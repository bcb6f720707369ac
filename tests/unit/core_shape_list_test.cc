// Declared shapes: what each text means, and that nothing else is taken.
#include "server/core/shape_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernd/kernels/error.h"

namespace kernd::core {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string ShapesOf(const std::string& text) {
  const absl::StatusOr<DeclaredShape> shape = ParseShape(text, "--prewarm");
  EXPECT_TRUE(shape.ok()) << shape.status();
  if (!shape.ok()) return "";
  EXPECT_EQ(shape->text, text);
  Program program;
  program.steps.push_back(shape->step);
  return DescribeShapes(program);
}

TEST(ShapeList, Matmul) {
  EXPECT_EQ(ShapesOf("matmul:bf16:2x3x5"), "a=BF16[2,5] b=BF16[5,3]");
  EXPECT_EQ(ShapesOf("matmul:f8e4m3:7x2x3x5:ta:tb:bias"), "a=F8E4M3[7,5,2] b=F8E4M3[7,3,5] bias=BF16[3]");
  EXPECT_EQ(ShapesOf("matmul:f64:0x3x5"), "a=F64[0,5] b=F64[5,3]");
  const auto shape = ParseShape("matmul:f32:2x3x5:silu:tf32:kernel=some_name", "x");
  ASSERT_TRUE(shape.ok()) << shape.status();
  const auto& step = std::get<MatmulStep>(shape->step);
  EXPECT_EQ(step.problem.activation, Activation::kSilu);
  EXPECT_EQ(step.problem.numerics, Numerics::kTf32);
  EXPECT_EQ(step.kernel.name, "some_name");
  EXPECT_EQ(std::get<MatmulStep>(ParseShape("matmul:f32:2x3x5:invariant", "x")->step).problem.numerics,
            Numerics::kBatchInvariant);
}

TEST(ShapeList, Attention) {
  EXPECT_EQ(ShapesOf("attention:f16:1x8x1024x64"), "q=F16[1,8,1024,64] k=F16[1,8,1024,64] v=F16[1,8,1024,64]");
  EXPECT_EQ(ShapesOf("attention:bf16:2x8/4x1/100x192/128:causal"),
            "q=BF16[2,8,1,192] k=BF16[2,4,100,192] v=BF16[2,4,100,128]");
  EXPECT_EQ(ShapesOf("attention:f32:2x4x6x8:blhd"), "q=F32[2,6,4,8] k=F32[2,6,4,8] v=F32[2,6,4,8]");
  const auto shape = ParseShape("attention:f16:1x8x3/9x64:causal:lse:window=5", "x");
  ASSERT_TRUE(shape.ok()) << shape.status();
  const AttentionProblem& p = std::get<AttentionStep>(shape->step).problem;
  EXPECT_TRUE(p.causal && p.want_lse);
  EXPECT_EQ(p.window_left, 5);
  EXPECT_EQ(p.alignment, MaskAlignment::kBottomRight);
}

TEST(ShapeList, RefusesWithFieldValueAndRule) {
  const std::pair<std::string, std::string> rows[] = {
      {"", "OPERATION:DTYPE:SIZES"},
      {"matmul", "OPERATION:DTYPE:SIZES"},
      {"conv:f16:1x2x3", "must begin with matmul: or attention:"},
      {"matmul:f17:1x2x3", "second part"},
      {"matmul:F16:1x2x3", "second part"},
      {"matmul:f16:1x2", "MxNxK"},
      {"matmul:f16:1x2x3x4x5", "MxNxK"},
      {"matmul:f16:1x-2x3", "\"-2\" must be a whole number"},
      {"matmul:f16:1x+2x3", "\"+2\" must be a whole number"},
      {"matmul:f16:1x 2x3", "\" 2\" must be a whole number"},
      {"matmul:f16:1x2x", "\"\" must be a whole number"},
      {"matmul:f16:1xx3", "\"\" must be a whole number"},
      {"matmul:f16:1x2x99999999999999999999", "must be a whole number from 0 to 2^40"},
      {"matmul:f16:1x2x1099511627777", "must be a whole number from 0 to 2^40"},
      {"matmul:f64:1099511627776x1099511627776x1099511627776", "2^63"},
      {"matmul:f16:1x2x3:", "\"\" is no word of matmul"},
      {"matmul:f16:1x2x3:causal", "\"causal\" is no word of matmul"},
      {"matmul:f16:1x2x3:ta:ta", "\"ta\" must not be given twice"},
      {"matmul:f16:1x2x3:ta=1", "\"ta\" must stand alone"},
      {"matmul:f16:1x2x3:relu:gelu", "one activation"},
      {"matmul:f32:1x2x3:tf32:invariant", "both"},
      {"matmul:f16:1x2x3:kernel", "\"kernel\" must have a value"},
      {"matmul:f16:1x2x3:kernel=", "\"kernel\" must have a value"},
      {"attention:f16:1x2x3", "BxH[/HKV]xL[/LKV]xD[/DV]"},
      {"attention:f16:1x2x3x4/5/6", "\"5/6\" must be a whole number"},
      {"attention:f16:1/2x2x3x4", "\"1/2\" must be a whole number"},
      {"attention:f16:1x3/2x4x8", "attention.k.shape"},
      {"attention:f64:1x2x4x8", "attention.q.dtype"},
      {"attention:f16:1x2x4x8:window=-1", "\"-1\" must be a whole number"},
      {"attention:f16:1x2x4x8:tb", "\"tb\" is no word of attention"},
      {"matmul:f16:1x2x3:" + std::string(100, 'z'), "zzz...\" is no word"},
      {"matmul:f16:1x2x3:kernel=" + std::string(300, 'z'), "at most 256 bytes"},
  };
  for (const auto& [text, rule] : rows) {
    const absl::Status status = ParseShape(text, "--prewarm").status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << text << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(rule)) << text;
    EXPECT_EQ(std::string(status.message()).rfind("--prewarm is " + text.substr(0, 200), 0), 0u) << status;
    EXPECT_LT(status.message().size(), 700u);
  }
}

TEST(ShapeList, ListsAreBounded) {
  EXPECT_EQ(ParseShapes({"matmul:f16:1x2x3", "attention:f16:1x2x3x4"}, "x")->size(), 2u);
  EXPECT_TRUE(ParseShapes(std::vector<std::string>(256, "matmul:f16:1x2x3"), "x").ok());
  const absl::Status many = ParseShapes(std::vector<std::string>(257, "matmul:f16:1x2x3"), "x").status();
  EXPECT_THAT(std::string(many.message()), HasSubstr("257 shapes"));
}

TEST(ShapeList, OperandsAreZerosOfTheRightSize) {
  const auto step = WithZeros(ParseShape("matmul:f32:3x5x7:bias", "x")->step);
  ASSERT_TRUE(step.ok()) << step.status();
  auto matmul = std::get<MatmulStep>(*step);
  std::vector<std::int64_t> bytes;
  for (const Operand* operand : matmul.operands()) {
    bytes.push_back(operand->bytes());
    for (const auto run : operand->runs) {
      for (const std::byte byte : run) ASSERT_EQ(byte, std::byte{0});
    }
  }
  EXPECT_THAT(bytes, ElementsAre(3 * 7 * 4, 7 * 5 * 4, 0, 5 * 4, 0, 0));
  const absl::Status huge = WithZeros(ParseShape("matmul:f16:1000000000x2x1000000000", "x")->step).status();
  EXPECT_TRUE(absl::IsResourceExhausted(huge)) << huge;
}

}  // namespace
}  // namespace kernd::core
