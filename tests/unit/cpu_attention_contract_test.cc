// The promises of kernd/kernels/attention.h that no tolerance covers, of the CPU's kernels on every instruction set of
// this machine: what a row may depend on, bit for bit, and what may never reach it.
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/unit/cpu_attention_case.h"

namespace kernd::cpu {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInfinity = std::numeric_limits<double>::infinity();

class CpuAttentionContract : public ::testing::TestWithParam<Isa> {};
INSTANTIATE_TEST_SUITE_P(Isas, CpuAttentionContract, ::testing::ValuesIn(AvailableIsas()),
                         [](const auto& test) { return std::string(Name(test.param)); });

// Everything that no row may see, replaced by NaN and by infinity: padding rows, masked and windowed keys.
TEST_P(CpuAttentionContract, InvisibleBytesNeverMatter) {
  for (const DataType type : {DataType::kF32, DataType::kBF16, DataType::kF16, DataType::kF8E5M2}) {
    for (const double poison : {kNan, kInfinity, -kInfinity}) {
      const auto make = [&](double value) {
        Case c = PlainCase({.batch = 2, .q_heads = 4, .kv_heads = 2, .q_rows = 150, .kv_rows = 300}, 9, type);
        c.p.q_lengths = {150, 37};
        c.p.kv_lengths = {290, 131};
        c.p.window_left = 40;
        c.p.window_right = 9;
        c.p.alignment = MaskAlignment::kTopLeft;
        c.p.mask = SpecOf(DataType::kBool, {2, 1, 1, 300});
        c.mask = Operand(*c.p.mask, 0);
        c.mask.Fill([](const Dims& at) { return at[3] % 3 == 1 ? 0.0 : 1.0; });
        Random random(4);
        std::normal_distribution<double> normal;
        const auto hidden = [&](const Dims& at) {
          return at[2] >= c.p.kv_lengths[at[0]] || at[2] % 3 == 1 || at[2] >= c.p.q_lengths[at[0]] + 9;
        };
        c.k.Fill([&](const Dims& at) {
          const double x = normal(random);
          return hidden(at) ? value : x;
        });
        c.v.Fill([&](const Dims& at) {
          const double x = normal(random);
          return hidden(at) ? value : x;
        });
        c.q.Fill([&](const Dims& at) {
          const double x = normal(random);
          return at[2] >= c.p.q_lengths[at[0]] ? value : x;
        });
        return c;
      };
      SCOPED_TRACE(std::string(Name(type)) + " " + std::to_string(poison));
      const Case clean = make(0.0);
      const Result result = Compute(clean, {.isa = GetParam()});
      ExpectMatchesReference(clean, result);
      EXPECT_TRUE(result == Compute(make(poison), {.isa = GetParam()}));
    }
  }
}

// A bias of minus infinity is a mask: the same bits, and nothing of the key or its value shows, be it NaN, in rows that
// see other keys and in rows that see none. Where another row sees the key, only that row is spoiled.
TEST_P(CpuAttentionContract, BiasOfMinusInfinityHidesAsAMask) {
  constexpr std::int64_t kQueries = 30, kKeys = 200;
  const auto hidden = [](const Dims& at) { return at[2] % 7 == 3 || at[3] % 5 == 1 || (at[2] % 3 == 1 && at[3] == 9); };
  for (const DataType type : {DataType::kF32, DataType::kBF16, DataType::kF16}) {
    for (const double poison : {0.0, kNan, kInfinity, -kInfinity}) {
      Case masked = PlainCase({.q_heads = 2, .q_rows = kQueries, .kv_rows = kKeys}, 11, type);
      const auto overwrite = [&](Operand& operand, bool every) {
        Random random(every ? 12 : 13);
        std::normal_distribution<double> normal;
        operand.Fill([&](const Dims& at) {
          const double x = normal(random);
          return at[2] % 5 == 1 || (every && at[2] == 9) ? poison : x;
        });
      };
      overwrite(masked.k, false);
      overwrite(masked.v, true);
      Case biased = masked;
      masked.p.mask = SpecOf(DataType::kBool, {1, 1, kQueries, kKeys});
      masked.mask = Operand(*masked.p.mask, 0);
      masked.mask.Fill([&](const Dims& at) { return hidden(at) ? 0.0 : 1.0; });
      biased.p.bias = SpecOf(DataType::kF32, {1, 1, kQueries, kKeys});
      biased.bias = Operand(*biased.p.bias, 0);
      biased.bias.Fill([&](const Dims& at) { return hidden(at) ? -kInfinity : 0.0; });
      SCOPED_TRACE(std::string(Name(type)) + " " + std::to_string(poison));
      const Result result = Compute(biased, {.isa = GetParam()});
      EXPECT_TRUE(result == Compute(masked, {.isa = GetParam()}));
      ExpectMatchesReference(biased, result);
      ExpectMatchesReference(biased,
                             Compute(biased, {.kernel = "attention_" + std::string(Token(type)) + "_cpu_naive"}));
      for (std::int64_t row = 0; row < 2 * kQueries; ++row) {
        const std::int64_t i = row % kQueries;
        const double o = reference::Load(type, result.o.data(), row * 16),
                     lse = reference::Load(DataType::kF32, result.lse.data(), row);
        EXPECT_EQ(std::isfinite(o), poison == 0 || i % 7 == 3 || i % 3 == 1) << row;
        EXPECT_EQ(lse == -kInfinity, i % 7 == 3) << row;
        if (i % 7 == 3) {
          EXPECT_EQ(o, 0) << row;
        }
      }
    }
  }
}

// A logit that comes out as minus infinity weighs nothing, whoever else is in the tile: its value never shows.
TEST_P(CpuAttentionContract, KeysThatWeighNothingDoNotShow) {
  for (const bool causal : {false, true}) {
    for (const double poison : {kNan, kInfinity}) {
      Case c = PlainCase({.q_rows = 150, .kv_rows = 150}, 14);
      c.p.causal = causal;
      c.q.Fill([](const Dims& at) { return 0.1 + static_cast<double>(at[3]); });
      Random random(15);
      std::normal_distribution<double> normal;
      c.k.Fill([&](const Dims& at) {
        const double x = normal(random);
        return at[2] % 40 == 3 ? -kInfinity : x;
      });
      c.v.Fill([&](const Dims& at) {
        const double x = normal(random);
        return at[2] % 40 == 3 ? poison : x;
      });
      SCOPED_TRACE((causal ? "causal " : "") + std::to_string(poison));
      const Result result = Compute(c, {.isa = GetParam()});
      ExpectMatchesReference(c, result);
      ExpectMatchesReference(c, Compute(c, {.kernel = "attention_f32_cpu_naive"}));
      for (std::int64_t i = 0; i < 150 * 16; ++i) {
        EXPECT_TRUE(std::isfinite(reference::Load(DataType::kF32, result.o.data(), i))) << i;
      }
    }
  }
}

// A change at key `at` leaves the rows that do not see it alone to the bit, and reaches all others.
TEST_P(CpuAttentionContract, KeysReachOnlyTheRowsThatSeeThem) {
  constexpr std::int64_t kLength = 270;
  for (const std::int64_t at : {0, 1, 77, 127, 128, 200, 269}) {
    for (const double value : {kNan, 1e6}) {
      for (const bool in_values : {false, true}) {
        const auto make = [&](bool changed) {
          Case c = PlainCase({.q_rows = kLength, .kv_rows = kLength}, 21);
          c.p.causal = true;
          Random random(6);
          std::normal_distribution<double> normal;
          Operand& operand = in_values ? c.v : c.k;
          operand.Fill([&](const Dims& index) {
            const double x = normal(random);
            return changed && index[2] == at ? value : x;
          });
          return c;
        };
        SCOPED_TRACE(std::string(in_values ? "V" : "K") + "[" + std::to_string(at) + "] = " + std::to_string(value));
        const Result before = Compute(make(false), {.isa = GetParam()}),
                     after = Compute(make(true), {.isa = GetParam()});
        for (std::int64_t row = 0; row < kLength; ++row) {
          const bool same = std::memcmp(before.o.data() + row * 64, after.o.data() + row * 64, 64) == 0;
          if (row < at) {
            EXPECT_TRUE(same) << row;
          }
          if (row >= at && std::isnan(value)) {
            EXPECT_TRUE(std::isnan(reference::Load(DataType::kF32, after.o.data(), row * 16))) << row;
          }
        }
      }
    }
  }
}

// A row computed alone, with others of its sequence, and with other sequences.
TEST_P(CpuAttentionContract, RowsDoNotDependOnTheirCompany) {
  constexpr std::int64_t kQueries = 60, kKeys = 333, kD = 24;
  for (const bool causal : {false, true}) {
    Case all = PlainCase(
        {.batch = 3, .q_heads = 6, .kv_heads = 2, .q_rows = kQueries, .kv_rows = kKeys, .d = kD, .dv = kD}, 31);
    all.p.causal = causal;
    all.p.alignment = MaskAlignment::kBottomRight;
    const Result together = Compute(all, {.isa = GetParam(), .threads = 3});
    for (const std::int64_t count : {1, 2, 5, 13}) {  // the last queries of one sequence
      for (std::int64_t b = 0; b < 3; ++b) {
        Case part = all;
        part.p.q.shape = {1, 6, count, kD};
        part.p.q.strides = all.p.q.EffectiveStrides();
        part.p.k.shape[0] = part.p.v.shape[0] = 1;
        const auto g = Validate(part.p);
        ASSERT_TRUE(g.ok()) << g.status();
        const auto choice = ChooseAttention(part.p, *g, {}, 1, GetParam());
        std::vector<float> o(static_cast<std::size_t>(6 * count * kD)), lse(static_cast<std::size_t>(6 * count));
        Guarded workspace(choice->workspace_bytes, std::byte{0xff});
        const auto at = [](const Operand& operand, std::int64_t elements) {
          return static_cast<const float*>(operand.data()) + elements;
        };
        RunAttention(*choice, part.p, *g,
                     {.q = at(all.q, b * 6 * kQueries * kD + (kQueries - count) * kD),
                      .k = at(all.k, b * 2 * kKeys * kD),
                      .v = at(all.v, b * 2 * kKeys * kD),
                      .o = o.data(),
                      .lse = lse.data()},
                     workspace.data());
        for (std::int64_t h = 0; h < 6; ++h) {
          const std::int64_t row = (b * 6 + h) * kQueries + kQueries - count;
          EXPECT_EQ(std::memcmp(o.data() + h * count * kD, together.o.data() + row * kD * 4,
                                static_cast<std::size_t>(count * kD * 4)),
                    0)
              << "sequence " << b << " head " << h << ", the last " << count;
          EXPECT_EQ(
              std::memcmp(lse.data() + h * count, together.lse.data() + row * 4, static_cast<std::size_t>(count * 4)),
              0);
        }
      }
    }
  }
}

TEST_P(CpuAttentionContract, ThreadsAndRepetitionDoNotShow) {
  const Case c =
      PlainCase({.batch = 2, .q_heads = 4, .kv_heads = 2, .q_rows = 200, .kv_rows = 260, .d = 32, .dv = 48}, 41);
  const Result first = Compute(c, {.isa = GetParam()});
  ExpectMatchesReference(c, first);
  for (int threads = 1; threads <= 4; ++threads) {
    EXPECT_TRUE(first == Compute(c, {.isa = GetParam(), .threads = threads})) << threads;
  }
}

TEST_P(CpuAttentionContract, OnesGiveOnes) {
  Case c = PlainCase({.q_rows = 30, .kv_rows = 500}, 51);
  c.v.Fill([](const Dims&) { return 1.0; });
  const Result result = Compute(c, {.isa = GetParam()});
  for (std::int64_t i = 0; i < 30 * 16; ++i)
    EXPECT_NEAR(reference::Load(DataType::kF32, result.o.data(), i), 1.0, 1e-6) << i;
}
}  // namespace
}  // namespace kernd::cpu
