// The CPU's attention kernels against the fp64 reference, on every instruction set of this machine. What a row may
// depend on, bit for bit: cpu_attention_contract_test.cc.
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernd/kernels/error.h"
#include "tests/unit/cpu_attention_case.h"

namespace kernd::cpu {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

class CpuAttention : public ::testing::TestWithParam<Isa> {};
INSTANTIATE_TEST_SUITE_P(Isas, CpuAttention, ::testing::ValuesIn(AvailableIsas()),
                         [](const auto& test) { return std::string(Name(test.param)); });

TEST(CpuAttentionRandom, ProblemsMatchTheReference) {
  for (std::uint64_t seed = 1; seed <= 250; ++seed) {
    const Case c = RandomCase(seed);
    SCOPED_TRACE("seed " + std::to_string(seed) + " " + Describe(c));
    const auto expected = reference::AttentionValues(c.p, c.Args());
    ASSERT_TRUE(expected.ok()) << expected.status();
    for (const Isa isa : AvailableIsas()) {
      SCOPED_TRACE(Name(isa));
      const Result one = Compute(c, {.isa = isa});
      ExpectMatches(c, one, *expected);
      EXPECT_TRUE(one == Compute(c, {.isa = isa, .threads = 2})) << "threads show in the bits";
    }
    const std::string naive = "attention_" + std::string(Token(c.p.q.dtype)) + "_cpu_naive";
    if (seed % 2 == 0) ExpectMatches(c, Compute(c, {.kernel = naive, .threads = 2}), *expected);
    if (HasFailure()) return;
  }
}

TEST_P(CpuAttention, Lengths) {
  const std::int64_t lengths[] = {0, 1, 11, 12, 13, 17, 33, 127, 128, 129, 257};
  for (const std::int64_t q_rows : lengths) {
    for (const std::int64_t kv_rows : lengths) {
      for (const MaskAlignment alignment :
           {MaskAlignment::kUnset, MaskAlignment::kTopLeft, MaskAlignment::kBottomRight}) {
        Case c = PlainCase({.q_rows = q_rows, .kv_rows = kv_rows, .d = 8, .dv = 8});
        c.p.alignment = alignment;
        c.p.causal = alignment != MaskAlignment::kUnset;
        SCOPED_TRACE(Describe(c) + " " + std::string(Name(alignment)));
        ExpectMatchesReference(c, Compute(c, {.isa = GetParam()}));
      }
    }
  }
}

TEST_P(CpuAttention, HeadDims) {
  for (const DataType type : {DataType::kF32, DataType::kF16}) {
    for (const std::int64_t d : {0, 1, 2, 5, 15, 16, 17, 31, 32, 33, 63, 64, 72, 100, 128, 192, 255, 256, 300}) {
      Case c = PlainCase({.q_heads = 2, .kv_heads = 2, .q_rows = 29, .kv_rows = 150, .d = d, .dv = d}, 3, type);
      c.p.scale = 0.1;
      SCOPED_TRACE(Describe(c));
      ExpectMatchesReference(c, Compute(c, {.isa = GetParam()}));
    }
  }
}

// Magnitudes at which naive formulas overflow, saturate or lose the answer.
TEST_P(CpuAttention, ExtremeLogits) {
  for (const double scale : {50.0, -50.0, 1e4, 1e30}) {
    Case c = PlainCase({.q_rows = 20, .kv_rows = 140, .d = 4, .dv = 4}, 5);
    c.p.scale = scale;
    for (const bool capped : {false, true}) {
      if (capped) c.p.softcap = 20;
      SCOPED_TRACE(std::to_string(scale) + (capped ? " capped" : ""));
      const Result result = Compute(c, {.isa = GetParam()});
      for (std::size_t i = 0; i < result.o.size() / 4; ++i) {
        EXPECT_TRUE(std::isfinite(reference::Load(DataType::kF32, result.o.data(), static_cast<std::int64_t>(i)))) << i;
      }
      if (scale < 1e4 || (capped && scale < 1e30)) ExpectMatchesReference(c, result);
    }
  }
}

TEST_P(CpuAttention, SinkFarAboveOrBelowTheLogits) {
  for (const float sink : {-1000.0f, -100.0f, 0.0f, 100.0f, 1000.0f}) {
    Case c = PlainCase({.q_rows = 5, .kv_rows = 140});
    c.p.sinks = {sink};
    SCOPED_TRACE(sink);
    ExpectMatchesReference(c, Compute(c, {.isa = GetParam()}));
  }
}

// Rows of every kind that see no key, each of them zero and minus infinity to the bit.
TEST_P(CpuAttention, EmptyRows) {
  Case c = PlainCase({.batch = 2, .q_heads = 2, .kv_heads = 1, .q_rows = 40, .kv_rows = 20});
  c.p.causal = true;
  c.p.alignment = MaskAlignment::kBottomRight;  // the first rows see nothing
  c.p.q_lengths = {40, 30};
  c.p.kv_lengths = {20, 0};
  c.p.sinks = {1, -std::numeric_limits<float>::infinity()};
  const Result result = Compute(c, {.isa = GetParam()});
  ExpectMatchesReference(c, result);
  for (std::int64_t row = 0; row < 160; ++row) {
    if (row < 80 && row % 40 >= 20) continue;
    EXPECT_EQ(reference::Load(DataType::kF32, result.lse.data(), row), -kInfinity) << row;
    for (std::int64_t i = row * 16; i < row * 16 + 16; ++i) {
      float o;
      std::memcpy(&o, result.o.data() + 4 * i, 4);
      EXPECT_TRUE(o == 0 && !std::signbit(o)) << "row " << row << ": " << o;
    }
  }
}
TEST(CpuAttentionChoice, HoldsNoMatrixUnlessNaive) {
  const AttentionProblem p =
      PlainCase({.q_heads = 2, .kv_heads = 2, .q_rows = 4096, .kv_rows = 4096, .d = 4, .dv = 4}).p;
  const AttentionGeometry g = *Validate(p);
  EXPECT_LT(ChooseAttention(p, g, {}, 2)->workspace_bytes, 1 << 20);
  EXPECT_EQ(ChooseAttention(p, g, {.name = "attention_f32_cpu_naive"}, 2)->workspace_bytes,
            std::int64_t{4} * 2 * 4096 * 4096);
}

TEST(CpuAttentionChoice, NamesAndReasons) {
  const AttentionProblem p = PlainCase({}).p;
  const AttentionGeometry g = *Validate(p);
  const auto rule = ChooseAttention(p, g, {}, 2);
  EXPECT_EQ(rule->name, "attention_f32_cpu_online");
  EXPECT_EQ(rule->reason, ChoiceReason::kRule);
  EXPECT_EQ(ChooseAttention(p, g, {.name = rule->name}, 2)->reason, ChoiceReason::kForced);
  const auto expect_refused = [&](const KernelRequest& request, const std::string& field, const std::string& part) {
    const absl::Status status = ChooseAttention(p, g, request, 2).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_EQ(DetailOf(status).field, field);
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(part));
  };
  expect_refused({.name = "attention_f32_cpu_magic"}, "attention.kernel.name", "no such kernel");
  expect_refused({.name = "attention_f16_cpu_online"}, "attention.kernel.name", "cannot run operands of F32");
  expect_refused({.tile = Tile{64, 64, 32}}, "attention.kernel.tile", "[64,64,32]");
  for (const VariantInfo& variant : AttentionVariants()) {
    AttentionProblem own = p;
    own.q.dtype = own.k.dtype = own.v.dtype = variant.dtypes[0];
    EXPECT_TRUE(ChooseAttention(own, *Validate(own), {.name = variant.name}, 1).ok()) << variant.name;
  }
}

}  // namespace
}  // namespace kernd::cpu