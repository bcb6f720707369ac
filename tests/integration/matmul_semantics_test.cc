// What matmul means, through the client library and a real daemon: every option of kernd/kernels/matmul.h in every
// dtype, against the fp64 reference. Sizes: matmul_sizes_test.cc. What a row may depend on: matmul_contract_test.cc.
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/reference/convert.h"
#include "kernels/reference/matmul.h"
#include "kernels/reference/tolerance.h"
#include "tests/support/problem_call.h"

namespace kernd::testing {
namespace {

const auto* const kDaemon = ::testing::AddGlobalTestEnvironment(new SharedDaemon);

constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInfinity = std::numeric_limits<double>::infinity();
constexpr DataType kTypes[] = {DataType::kF32, DataType::kBF16,   DataType::kF16,   DataType::kF64,
                               DataType::kI8,  DataType::kF8E4M3, DataType::kF8E5M2};
constexpr Activation kActivations[] = {Activation::kNone, Activation::kRelu, Activation::kGelu, Activation::kSilu};

std::vector<DataType> OutputsOf(DataType type) {
  if (type == DataType::kI8)
    return {DataType::kInvalid, DataType::kI32, DataType::kF32, DataType::kF16, DataType::kBF16};
  if (IsFloat8(type)) return {DataType::kInvalid, DataType::kF32, DataType::kF16, DataType::kBF16};
  if (type == DataType::kF64) return {DataType::kInvalid, DataType::kF64};
  return {DataType::kInvalid, type, DataType::kF32};
}

TEST(MatmulTypes, EveryPairAndOutput) {
  std::uint64_t seed = 400;
  for (const DataType a : kTypes) {
    for (const DataType b : kTypes) {
      if (a != b && !(IsFloat8(a) && IsFloat8(b))) continue;
      for (const DataType output : OutputsOf(a)) {
        for (const auto& [m, n, k] : {std::tuple{33, 47, 61}, {100, 200, 150}}) {
          MatmulCase c = MakeMatmul(a, m, n, k, ++seed);
          Random random(seed);
          SetNormal(c.p.b, c.b, b, {k, n}, random);
          c.p.output_dtype = output;
          SCOPED_TRACE("seed " + std::to_string(seed) + " " + c.ToString());
          AskAndCheck(c);
        }
      }
    }
  }
}

TEST(MatmulEpilogue, AlphaBetaBiasAndActivation) {
  std::uint64_t seed = 900;
  for (const DataType type : kTypes) {
    for (const DataType output : OutputsOf(type)) {
      for (const double alpha : {1.0, -0.75, 0.0}) {
        for (const double beta : {0.0, 1.0, -1.5}) {
          for (const Activation activation : kActivations) {
            for (int bias = 0; bias < 3; ++bias) {
              MatmulCase c = MakeMatmul(type, 13, 37, 29, ++seed);
              Random random(seed);
              c.p.output_dtype = output;
              c.p.alpha = alpha;
              c.p.activation = activation;
              if (beta != 0) SetC(c, beta, {13, 37}, random);
              if (bias == 1) SetBias(c, DataType::kF32, 37, random);
              if (bias == 2) SetBias(c, c.OutputType(), 37, random);
              SCOPED_TRACE("seed " + std::to_string(seed) + " " + c.ToString());
              AskAndCheck(c);
              if (HasFailure()) return;
            }
          }
        }
      }
    }
  }
}

// Absent is the default; a value, 0 too, is a value.
TEST(MatmulEpilogue, PresenceOfAlphaAndBeta) {
  MatmulCase c = MakeMatmul(DataType::kF32, 9, 20, 30);
  Random random(1);
  SetC(c, 0, {9, 20}, random);
  client::MatmulArgs args = c.ClientArgs();
  ASSERT_FALSE(args.alpha || args.beta);
  const auto call = [&] {
    const auto reply = SharedDaemon::client().Matmul(args);
    EXPECT_TRUE(reply.ok()) << reply.status();
    return reply.ok() ? Bits(reply->d.bytes().begin(), reply->d.bytes().end()) : Bits();
  };
  const Bits absent = call();
  EXPECT_EQ(absent, AskAndCheck(c));
  args.alpha = 1;
  args.beta = 0;
  EXPECT_EQ(call(), absent);
  args.alpha = 0;
  EXPECT_THAT(call(), ::testing::AllOf(::testing::SizeIs(720), ::testing::Each(std::byte{0})));
}

// beta = 0 does not read C; alpha = 0 reads neither A nor B: NaN and infinity in them change no bit.
TEST(MatmulEpilogue, OperandsThatDoNotCountAreNotRead) {
  for (const DataType type : kTypes) {
    if (type == DataType::kI8) continue;  // has no NaN
    for (const client::KernelInfo& kernel : SharedDaemon::kernels()) {
      if (!kernel.name.starts_with("matmul_" + std::string(Token(type)) + "_")) continue;
      MatmulCase c = MakeMatmul(type, 20, 40, 60, 5);
      Random random(5);
      SetBias(c, DataType::kF32, 40, random);
      const Bits without = AskAndCheck(c, kernel.name);
      SetC(c, 0, {20, 40}, random);
      c.c.Fill([](const Dims& at) { return at[1] % 2 ? kNan : kInfinity; });
      SCOPED_TRACE("seed 5 " + kernel.name + " " + c.ToString());
      EXPECT_EQ(Ask(c, kernel.name), without);

      SetC(c, 0.5, {20, 40}, random);
      c.p.alpha = 0;
      const Bits clean = AskAndCheck(c, kernel.name);
      c.a.Fill([](const Dims&) { return kNan; });
      c.b.Fill([](const Dims&) { return kInfinity; });
      EXPECT_EQ(Ask(c, kernel.name), clean);
    }
  }
}

TEST(MatmulEpilogue, NanAndInfinityStayInTheirRowsAndColumns) {
  for (const DataType type : {DataType::kF32, DataType::kBF16, DataType::kF16, DataType::kF64, DataType::kF8E5M2}) {
    for (const Activation activation : kActivations) {
      MatmulCase c = MakeMatmul(type, 40, 50, 33, 17);
      Random random(18);
      std::normal_distribution<double> normal;
      c.a.Fill([&](const Dims& at) { return at[0] == 7 && at[1] == 3 ? kNan : normal(random); });
      c.b.Fill([&](const Dims& at) { return at[1] == 11 && at[0] == 5 ? kInfinity : normal(random); });
      c.p.activation = activation;
      SCOPED_TRACE("seed 18 " + c.ToString());
      AskAndCheck(c);
    }
  }
}

// Every kind on either side; blocks that divide nothing, single rows and columns, and more than there is.
TEST(MatmulScales, EveryKindOnEitherSide) {
  using Kind = ScaleSpec::Kind;
  struct Form {
    Kind kind;
    std::int64_t block_rows, block_k;
  };
  const std::optional<Form> forms[] = {{},
                                       Form{Kind::kTensor, 0, 0},
                                       Form{Kind::kRow, 0, 0},
                                       Form{Kind::kBlock, 1, 128},
                                       Form{Kind::kBlock, 128, 128},
                                       Form{Kind::kBlock, 7, 13},
                                       Form{Kind::kBlock, 1000, 1},
                                       Form{Kind::kBlock, 1, 1000}};
  std::uint64_t seed = 2000;
  for (const DataType type : {DataType::kI8, DataType::kF8E4M3, DataType::kF8E5M2}) {
    for (const auto& a_form : forms) {
      for (const auto& b_form : forms) {
        const std::int64_t m = 33, n = 47, k = 150;
        MatmulCase c = MakeMatmul(type, m, n, k, ++seed);
        Random random(seed);
        Transpose(c, seed & 1, seed & 2, random);
        const auto set = [&](const std::optional<Form>& form, std::int64_t rows, std::optional<ScaleSpec>& spec,
                             Operand& operand) {
          if (!form) return;
          spec = ScaleSpec{.kind = form->kind, .block_rows = form->block_rows, .block_k = form->block_k};
          Dims shape = {rows};
          if (form->kind == Kind::kTensor) shape = seed % 2 ? Dims{1} : Dims{};
          if (form->kind == Kind::kBlock) {
            shape = {(rows + form->block_rows - 1) / form->block_rows, (k + form->block_k - 1) / form->block_k};
          }
          spec->spec = {.dtype = DataType::kF32, .shape = shape};
          operand = Operand(spec->spec, 0);
          operand.Fill([&](const Dims&) { return std::uniform_real_distribution<double>(0.1, 2)(random); });
        };
        set(a_form, m, c.p.a_scale, c.a_scale);
        set(b_form, n, c.p.b_scale, c.b_scale);
        const DataType outputs[] = {DataType::kF32, DataType::kBF16, DataType::kF16};
        c.p.output_dtype = outputs[type == DataType::kI8 ? seed % 2 : seed % 3];  // I8 products pass F16's range
        SCOPED_TRACE("seed " + std::to_string(seed) + " " + c.ToString());
        AskAndCheck(c);
        if (HasFailure()) return;
      }
    }
  }
}

TEST(MatmulI8, ExactAtItsExtremes) {
  for (const std::int64_t k : {1, 2, 127, 128, 255, 256, 257, 512, 999, 1000}) {
    for (const double a : {-128.0, 127.0}) {
      for (const double b : {-128.0, 127.0}) {
        MatmulCase c = MakeMatmul(DataType::kI8, 17, 35, k);
        c.a.Fill([&](const Dims&) { return a; });
        c.b.Fill([&](const Dims&) { return b; });
        SCOPED_TRACE(std::to_string(k) + " products of " + std::to_string(a) + " and " + std::to_string(b));
        for (const client::KernelInfo& kernel : SharedDaemon::kernels()) {
          if (!kernel.name.starts_with("matmul_i8_")) continue;
          const Bits d = Ask(c, kernel.name);
          std::vector<std::int32_t> values(d.size() / 4);
          if (!d.empty()) std::memcpy(values.data(), d.data(), d.size());
          EXPECT_THAT(values, ::testing::AllOf(::testing::SizeIs(17 * 35),
                                               ::testing::Each(static_cast<std::int32_t>(a * b) * k)))
              << kernel.name;
        }
      }
    }
  }
}

// Sums beyond 65504 are none of F16's business until they are stored.
TEST(MatmulF16, OverflowsOnlyInTheFinalStore) {
  MatmulCase c = MakeMatmul(DataType::kF16, 2, 3, 64);
  c.a.Fill([](const Dims&) { return 256.0; });
  // Columns: half of the products cancels the other; a sum of 2^21; the same below zero.
  c.b.Fill([](const Dims& at) { return at[1] == 0 ? (at[0] < 32 ? 256.0 : -256.0) : at[1] == 1 ? 128.0 : -128.0; });
  const auto expect = [](const MatmulCase& problem, std::vector<double> row) {
    const Bits d = AskAndCheck(problem);
    ASSERT_EQ(std::ssize(d), 6 * ElementBytes(problem.OutputType()));
    for (std::int64_t i = 0; i < 6; ++i)
      EXPECT_EQ(reference::Load(problem.OutputType(), d.data(), i), row[static_cast<std::size_t>(i % 3)]) << i;
  };
  expect(c, {0, kInfinity, -kInfinity});
  c.p.alpha = 0x1p-7;
  expect(c, {0, 16384, -16384});
  c.p.alpha = 1;
  c.p.bias = TensorSpec{.dtype = DataType::kF32, .shape = {3}};
  c.bias = Operand(*c.p.bias, 0);
  c.bias.Fill([](const Dims& at) { return at[0] == 0 ? 65519.0 : at[0] == 1 ? -2097152.0 + 5 : 2097152.0; });
  expect(c, {65504, 5, 0});
  c.p.output_dtype = DataType::kF32;
  expect(c, {65519, 5, 0});
}

TEST(MatmulRefusals, NameTheField) {
  const auto expect = [](const MatmulCase& c, absl::StatusCode code, const std::string& field) {
    const auto reply = SharedDaemon::client().Matmul(c.ClientArgs());
    EXPECT_EQ(reply.status().code(), code) << reply.status();
    EXPECT_EQ(client::DetailsOf(reply.status()).field, field) << reply.status();
  };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument, kUnsupported = absl::StatusCode::kUnimplemented;
  const MatmulCase plain = MakeMatmul(DataType::kF32, 3, 4, 5);
  MatmulCase c = plain;
  c.p.transpose_b = true;
  expect(c, kInvalid, "matmul.b.shape");
  c = plain;
  c.p.alpha = kNan;
  expect(c, kInvalid, "matmul.alpha");
  c = plain;
  c.p.beta = 1;
  expect(c, kInvalid, "matmul.c");
  c = plain;
  c.p.output_dtype = DataType::kF16;
  expect(c, kUnsupported, "matmul.output_dtype");
  c = MakeMatmul(DataType::kF16, 3, 4, 5);
  c.p.numerics = Numerics::kTf32;
  expect(c, kInvalid, "matmul.numerics");
  c = plain;
  c.p.a_scale = ScaleSpec{.spec = {.dtype = DataType::kF32}};
  c.a_scale = Operand(c.p.a_scale->spec, 0);
  expect(c, kInvalid, "matmul.a_scale");
}

}  // namespace
}  // namespace kernd::testing
