// Attention of every size and type, and of magnitudes at the ends of the formats, through the client library and a real
// daemon, against the fp64 reference.
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/problem_call.h"

namespace kernd::testing {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr DataType kTypes[] = {DataType::kF32, DataType::kF16, DataType::kBF16, DataType::kF8E4M3, DataType::kF8E5M2};
constexpr AttentionLayout kLayouts[] = {AttentionLayout::kBHLD, AttentionLayout::kBLHD, AttentionLayout::kPacked};
constexpr MaskAlignment kTopLeft = MaskAlignment::kTopLeft, kBottomRight = MaskAlignment::kBottomRight;

TEST(AttentionSizes, LengthPairs) {
  const std::int64_t lengths[] = {0, 1, 2, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129};
  int index = 0;
  for (const std::int64_t q_rows : lengths) {
    for (const std::int64_t kv_rows : lengths) {
      for (int mode = 0; mode < 5; ++mode) {
        const DataType type = kTypes[++index % 3];
        AttentionCase c = MakeAttention({1, 2, 1, q_rows, kv_rows, 8, 8}, static_cast<std::uint64_t>(index), type,
                                        kLayouts[index % 2]);
        if (mode > 0) SetWindow(c, mode % 2 ? kTopLeft : kBottomRight, mode < 3, {}, {});
        if (mode >= 3) c.p.window_left = c.p.window_right = 16;
        SCOPED_TRACE("seed " + std::to_string(index) + " " + c.ToString());
        AskAndCheck(c);
        if (HasFailure()) return;
      }
    }
  }
}

// The lengths that FlashAttention's own tests use.
TEST(AttentionSizes, FlashAttentionLengths) {
  const std::pair<std::int64_t, std::int64_t> pairs[] = {
      {1, 1},     {64, 128},    {128, 192},   {256, 256},   {239, 1},     {799, 3},    {113, 203},
      {113, 128}, {128, 217},   {113, 211},   {108, 256},   {256, 512},   {384, 256},  {640, 128},
      {512, 256}, {1024, 1024}, {1023, 1024}, {1024, 1023}, {4096, 4096}, {4224, 4224}};
  std::uint64_t seed = 300;
  for (const auto& [q_rows, kv_rows] : pairs) {
    const bool large = q_rows * kv_rows > 4 << 20;
    for (int mode = large ? 2 : 0; mode < 3; ++mode) {
      ++seed;
      AttentionCase c =
          MakeAttention({1, large ? 1 : 2, 1, q_rows, kv_rows, 16, 16}, seed, kTypes[seed % std::size(kTypes)]);
      if (mode > 0) SetWindow(c, mode == 1 ? kTopLeft : kBottomRight, true, {}, {});
      if (mode == 2 && q_rows % 128 == 0) c.p.window_left = q_rows / 2;
      SCOPED_TRACE("seed " + std::to_string(seed) + " " + c.ToString());
      AskAndCheck(c);
      if (HasFailure()) return;
    }
  }
}

TEST(AttentionSizes, EveryHeadDimUpTo256) {
  for (std::int64_t d = 1; d <= 256; ++d) {
    for (const std::int64_t dv : {d, 257 - d}) {
      const auto seed = static_cast<std::uint64_t>(d);
      AttentionCase c = MakeAttention({1, 2, 2, 5, 37, d, dv}, seed, kTypes[d % 5], kLayouts[d % 3]);
      SCOPED_TRACE("seed " + std::to_string(seed) + " " + c.ToString());
      AskAndCheck(c);
      if (HasFailure()) return;
    }
  }
}

TEST(AttentionSizes, HeadCounts) {
  for (const auto& [q_heads, kv_heads] :
       {std::pair{1, 1}, {3, 1}, {3, 3}, {6, 2}, {8, 8}, {8, 1}, {12, 4}, {40, 8}, {7, 7}, {71, 1}}) {
    for (const AttentionLayout layout : kLayouts) {
      const AttentionCase c = MakeAttention({2, q_heads, kv_heads, 9, 21, 8, 12}, 7, DataType::kF32, layout);
      SCOPED_TRACE("seed 7 " + c.ToString());
      AskAndCheck(c);
    }
  }
}

TEST(AttentionSizes, Zero) {
  for (const DataType type : {DataType::kF32, DataType::kF16, DataType::kF8E5M2}) {
    for (const AttentionLayout layout : kLayouts) {
      for (int which = 0; which < 7; ++which) {
        AttentionSizes n{2, 4, 2, 9, 21, 8, 8};
        if (which == 0) n.batch = 0;
        if (which == 1) n.q_heads = 0;
        if (which == 2) n.q_heads = n.kv_heads = 0;
        if (which == 3) n.q_rows = 0;
        if (which == 4) n.kv_rows = 0;
        if (which == 5) n.d = 0;
        if (which == 6) n.dv = 0;
        AttentionCase c = MakeAttention(n, 8, type, layout);
        if (n.d == 0) c.p.scale = 1;
        SCOPED_TRACE("seed 8 " + c.ToString());
        const AttentionBits bits = AskAndCheck(c);
        if (n.kv_rows != 0) continue;
        EXPECT_FALSE(bits.o.empty());
        EXPECT_THAT(bits.o, ::testing::Each(std::byte{0}));
        std::vector<float> lse(72, 0.0f);
        ASSERT_EQ(bits.lse.size(), lse.size() * sizeof(float));
        std::memcpy(lse.data(), bits.lse.data(), bits.lse.size());
        EXPECT_THAT(lse, ::testing::Each(kMinusInfinity));
      }
    }
  }
}

TEST(AttentionTypes, EveryOutputType) {
  for (const DataType type : kTypes) {
    std::vector<DataType> outputs = {DataType::kInvalid, DataType::kF32};
    if (IsFloat8(type)) outputs.insert(outputs.end(), {DataType::kF16, DataType::kBF16});
    if (!IsFloat8(type)) outputs.push_back(type);
    for (const DataType output : outputs) {
      for (const AttentionLayout layout : kLayouts) {
        for (const bool want_lse : {false, true}) {
          AttentionCase c = MakeAttention({}, 11, type, layout);
          c.p.output_dtype = output;
          c.p.want_lse = want_lse;
          SCOPED_TRACE("seed 11 " + c.ToString());
          AskAndCheck(c);
        }
      }
    }
  }
}

// Of each operand: none, one, one for each key/value head, one for each of each sequence; all different.
TEST(AttentionTypes, EveryFormOfScales) {
  std::uint64_t seed = 500;
  for (const DataType type : {DataType::kF8E4M3, DataType::kF8E5M2}) {
    for (const AttentionLayout layout : kLayouts) {
      for (int form = 0; form < 64; ++form) {
        AttentionCase c = MakeAttention({3, 4, 2, 7, 15, 8, 8}, ++seed, type, layout);
        Random random(seed);
        const std::int64_t counts[] = {0, 1, 2, 6};
        c.p.q_scale = Draw(random, counts[form % 4], 0.5, 2);
        c.p.k_scale = Draw(random, counts[form / 4 % 4], 0.5, 2);
        c.p.v_scale = Draw(random, counts[form / 16], -2, 2);
        SCOPED_TRACE("seed " + std::to_string(seed) + " " + c.ToString());
        AskAndCheck(c);
        if (HasFailure()) return;
      }
    }
  }
}

// The lowest finite bias is a number like others: a row of nothing else weighs its keys alike, and one with some zeros
// beside it sees only those.
TEST(AttentionTypes, LowestBiasIsNoMask) {
  for (const DataType type : kTypes) {
    AttentionCase c = MakeAttention({}, 12, type);
    c.p.scale = 0;
    c.p.want_lse = false;
    AttentionCase masked = c;
    c.p.bias = TensorSpec{.dtype = DataType::kF32, .shape = {1, 1, 33, 65}};
    c.bias = Operand(*c.p.bias, 0);
    c.bias.Fill([](const Dims& at) {
      return at[2] % 2 == 0 || at[3] % 2 == 0 ? static_cast<double>(std::numeric_limits<float>::lowest()) : 0.0;
    });
    masked.p.mask = TensorSpec{.dtype = DataType::kBool, .shape = {1, 1, 33, 65}};
    masked.mask = Operand(*masked.p.mask, 0);
    masked.mask.Fill([](const Dims& at) { return at[2] % 2 == 0 || at[3] % 2 == 1 ? 1.0 : 0.0; });
    const auto expected = reference::AttentionValues(masked.p, masked.Args());
    ASSERT_TRUE(expected.ok()) << expected.status();
    SCOPED_TRACE("seed 12 " + c.ToString());
    ExpectMatches(masked, Ask(c), *expected);
  }
}

// Products that F16 cannot hold, and logits whose exponentials nothing can.
TEST(AttentionTypes, LargeLogits) {
  for (const DataType type : {DataType::kF16, DataType::kBF16, DataType::kF32}) {
    for (const std::optional<double> softcap : {std::optional<double>(), std::optional<double>(30.0)}) {
      AttentionCase c = MakeAttention({1, 2, 1, 20, 40, 8, 8}, 13, type);
      Random random(13);
      c.q.FillNormal(random, 300);
      c.k.FillNormal(random, 300);
      c.p.scale = 0.001;
      c.p.softcap = softcap;
      SCOPED_TRACE("seed 13 " + c.ToString());
      AskAndCheck(c);
    }
  }
}

TEST(AttentionPacked, EmptySequencesBetweenOthers) {
  for (const DataType type : kTypes) {
    for (const MaskAlignment alignment : {kTopLeft, kBottomRight}) {
      AttentionCase c = MakeAttention({1, 4, 2, 40, 60, 16, 16}, 17, type, AttentionLayout::kPacked);
      c.p.q_offsets = {0, 0, 12, 12, 20, 39, 39, 40, 40};
      c.p.kv_offsets = {0, 5, 5, 30, 31, 31, 50, 60, 60};
      c.p.alignment = alignment;
      for (const bool causal : {false, true}) {
        c.p.causal = causal;
        SCOPED_TRACE("seed 17 " + c.ToString());
        AskAndCheck(c);
      }
    }
  }
}

}  // namespace
}  // namespace kernd::testing
