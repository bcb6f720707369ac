// What no tolerance covers, through the client library and a real daemon: what the bits of a row may depend on, what
// may never reach it, and what a reply says of itself.
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/reference/convert.h"
#include "tests/support/problem_call.h"

namespace kernd::testing {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInfinity = std::numeric_limits<double>::infinity();
constexpr DataType kTypes[] = {DataType::kF32, DataType::kF16, DataType::kBF16, DataType::kF8E4M3, DataType::kF8E5M2};
constexpr AttentionLayout kLayouts[] = {AttentionLayout::kBHLD, AttentionLayout::kBLHD, AttentionLayout::kPacked};

// The kernel that keeps no matrix of scores, or the one that does.
std::string Kernel(DataType type, bool naive) {
  const std::string method = OnGpu() ? (naive ? "sm75_naive" : "sm75_simt") : naive ? "cpu_naive" : "cpu_online";
  return "attention_" + std::string(Token(type)) + "_" + method;
}

// Rewrites the elements for which `chosen(indices)`; the others keep their bits.
template <typename Chosen>
void Overwrite(Operand& operand, double value, const Chosen& chosen) {
  const TensorSpec spec = operand.spec();
  std::int64_t index = 0;
  operand.Fill([&](const Dims& at) {
    const double old = reference::Load(spec.dtype, operand.data(), index++);
    return chosen(at) ? value : old;
  });
}

// The position among rows of an element at `at`.
std::int64_t RowOf(AttentionLayout layout, const Dims& at) {
  return at[layout == AttentionLayout::kBHLD ? 2 : layout == AttentionLayout::kBLHD ? 1 : 0];
}

// Anything that the problem allows, small. Rows and keys of a packed one: of all its sequences.
AttentionCase RandomCase(std::uint64_t seed) {
  Random random(seed);
  const auto maybe = [&](int percent) { return Pick(random, 1, 100) <= percent; };
  const auto draw = [&](std::int64_t count, double low, double high) { return Draw(random, count, low, high); };
  const std::int64_t lengths[] = {0, 1, 2, 7, 17, 33, 64, 100, 129, 200};
  const std::int64_t kv_heads = Pick(random, 1, 3);
  const AttentionSizes n{.batch = Pick(random, 1, 3),
                         .q_heads = kv_heads * Pick(random, 1, 4),
                         .kv_heads = kv_heads,
                         .q_rows = lengths[Pick(random, 0, 9)],
                         .kv_rows = lengths[Pick(random, 0, 9)],
                         .d = Pick(random, 1, 70),
                         .dv = Pick(random, 1, 70)};
  const DataType type = kTypes[Pick(random, 0, 4)];
  const AttentionLayout layout = kLayouts[Pick(random, 0, 2)];
  AttentionCase c = MakeAttention(n, random(), type, layout);
  AttentionProblem& p = c.p;
  if (layout != AttentionLayout::kPacked) {
    for (std::int64_t b = 0, q = maybe(30), kv = maybe(30); b < n.batch; ++b) {
      if (q) p.q_lengths.push_back(Pick(random, 0, n.q_rows));
      if (kv) p.kv_lengths.push_back(Pick(random, 0, n.kv_rows));
    }
    const auto shape = [&] {
      return Dims{maybe(50) ? n.batch : 1, maybe(50) ? n.q_heads : 1, maybe(50) ? n.q_rows : 1, n.kv_rows};
    };
    if (maybe(30)) {
      p.mask = TensorSpec{.dtype = DataType::kBool, .shape = shape()};
      c.mask = Operand(*p.mask, 0);
      c.mask.Fill([&](const Dims&) { return maybe(60) ? 1.0 : 0.0; });
    }
    if (maybe(30)) SetNormal(p.bias.emplace(), c.bias, maybe(50) ? DataType::kF32 : type, shape(), random);
  }
  p.alignment = maybe(50) ? MaskAlignment::kTopLeft : MaskAlignment::kBottomRight;
  p.causal = maybe(35);
  if (maybe(25)) p.window_left = Pick(random, 0, 150);
  if (maybe(25) && !p.causal) p.window_right = Pick(random, 0, 150);
  if (maybe(25)) p.softcap = std::uniform_real_distribution<double>(0.5, 30)(random);
  if (maybe(25)) p.alibi_slopes = draw(n.q_heads, 0, 0.5);
  if (maybe(25)) p.sinks = draw(n.q_heads, -5, 5);
  if (maybe(30)) p.scale = std::uniform_real_distribution<double>(-1, 1)(random);
  if (IsFloat8(type)) {
    const std::int64_t counts[] = {0, 1, n.kv_heads, n.batch * n.kv_heads};
    p.q_scale = draw(counts[Pick(random, 0, 3)], 0.5, 2);
    p.k_scale = draw(counts[Pick(random, 0, 3)], 0.5, 2);
    p.v_scale = draw(counts[Pick(random, 0, 3)], 0.5, 2);
  } else if (maybe(30)) {
    p.output_dtype = DataType::kF32;
  }
  p.want_lse = maybe(70);
  return c;
}

TEST(AttentionContract, RandomProblemsMatchAndCostWhatPlanSaid) {
  CheckProblems(300, RandomCase);
}

TEST(AttentionContract, EveryKernelListedCanBeForced) {
  std::vector<std::string> listed, forced;
  for (const client::KernelInfo& kernel : SharedDaemon::kernels()) {
    if (kernel.operation != "attention") continue;
    listed.push_back(kernel.name);
    for (const DataType type : kTypes) {
      if (Name(type) != client::Name(kernel.dtypes.at(0))) continue;
      AttentionCase c = MakeAttention({}, 19, type);
      c.p.causal = true;
      c.p.alignment = MaskAlignment::kBottomRight;
      SCOPED_TRACE(kernel.name);
      AskAndCheck(c, kernel.name);
      forced.push_back(kernel.name);
    }
  }
  EXPECT_EQ(forced, listed);
  for (const DataType type : kTypes) {
    for (const bool naive : {false, true}) EXPECT_THAT(forced, ::testing::Contains(Kernel(type, naive)));
  }
}

// Everything that no row may see, replaced: rows past a length, keys that the mask or the window hides.
TEST(AttentionContract, HiddenBytesNeverMatter) {
  for (const DataType type : kTypes) {
    for (const AttentionLayout layout : {AttentionLayout::kBHLD, AttentionLayout::kBLHD}) {
      AttentionCase clean = MakeAttention({2, 4, 2, 50, 300, 16, 16}, 23, type, layout);
      clean.p.q_lengths = {50, 37};
      clean.p.kv_lengths = {290, 131};
      clean.p.window_right = 9;
      clean.p.alignment = MaskAlignment::kTopLeft;
      clean.p.mask = TensorSpec{.dtype = DataType::kBool, .shape = {1, 1, 1, 300}};
      clean.mask = Operand(*clean.p.mask, 0);
      clean.mask.Fill([](const Dims& at) { return at[3] % 3 == 1 ? 0.0 : 1.0; });
      for (const bool naive : {false, true}) {
        const AttentionBits expected = AskAndCheck(clean, Kernel(type, naive));
        for (const double poison : {kNan, kInfinity, -kInfinity}) {
          AttentionCase c = clean;
          const auto hidden = [&](const Dims& at) {
            const std::int64_t row = RowOf(layout, at);
            return row >= c.p.kv_lengths[at[0]] || row % 3 == 1 || row >= c.p.q_lengths[at[0]] + 9;
          };
          Overwrite(c.k, poison, hidden);
          Overwrite(c.v, poison, hidden);
          Overwrite(c.q, poison, [&](const Dims& at) { return RowOf(layout, at) >= c.p.q_lengths[at[0]]; });
          SCOPED_TRACE("seed 23 poison " + std::to_string(poison) + " " + Kernel(type, naive) + " " + c.ToString());
          EXPECT_TRUE(Ask(c, Kernel(type, naive)) == expected);
        }
      }
    }
  }
}

// Causality and isolation: what is written to one key reaches the rows that see it and leaves all others alone to the
// bit. A NaN spoils every row that it reaches.
TEST(AttentionContract, KeysReachOnlyTheRowsThatSeeThem) {
  constexpr std::int64_t kLength = 140, kRow = 8;
  for (const DataType type : {DataType::kF32, DataType::kBF16, DataType::kF16}) {
    const std::int64_t row_bytes = kRow * ElementBytes(type);
    AttentionCase clean = MakeAttention({1, 2, 1, kLength, kLength, kRow, kRow}, 29, type);
    clean.p.causal = true;
    for (const bool naive : {false, true}) {
      const AttentionBits before = AskAndCheck(clean, Kernel(type, naive));
      for (const std::int64_t at : {0, 1, 63, 64, 127, 128, 139}) {
        for (const double value : {kNan, 1e4}) {
          for (const bool in_values : {false, true}) {
            AttentionCase c = clean;
            Overwrite(in_values ? c.v : c.k, value, [&](const Dims& i) { return i[2] == at; });
            SCOPED_TRACE("seed 29 " + std::string(in_values ? "V[" : "K[") + std::to_string(at) +
                         "] = " + std::to_string(value) + " " + Kernel(type, naive) + " " + c.ToString());
            const AttentionBits after = AskAndCheck(c, Kernel(type, naive));
            for (std::int64_t row = 0; row < 2 * kLength; ++row) {
              const Bits o = Slice(after.o, row * row_bytes, row_bytes);
              if (row % kLength < at) {
                EXPECT_EQ(o, Slice(before.o, row * row_bytes, row_bytes)) << row;
                EXPECT_EQ(Slice(after.lse, row * 4, 4), Slice(before.lse, row * 4, 4)) << row;
              } else if (std::isnan(value) && !o.empty()) {
                EXPECT_TRUE(std::isnan(reference::Load(type, o.data(), 0))) << row;
              }
            }
            if (HasFailure()) return;
          }
        }
      }
    }
  }
}

// A sequence by itself, first, last, or in a packed call: the same bits.
TEST(AttentionContract, SequencesDoNotDependOnTheirCompany) {
  constexpr std::int64_t kBatch = 5, kQueries = 37, kKeys = 150;
  for (const DataType type : kTypes) {
    AttentionCase all = MakeAttention({kBatch, 4, 2, kQueries, kKeys, 24, 16}, 31, type);
    all.p.causal = true;
    all.p.alignment = MaskAlignment::kBottomRight;
    all.p.window_left = 70;
    const AttentionBits together = AskAndCheck(all);
    const auto pick = [&](const std::vector<std::int64_t>& which) {
      AttentionCase c = MakeAttention({std::ssize(which), 4, 2, kQueries, kKeys, 24, 16}, 1, type);
      const auto copy = [&](Operand& to, const Operand& from) {
        const std::int64_t bytes = from.spec().bytes() / kBatch;
        for (std::size_t i = 0; i < which.size(); ++i) {
          std::memcpy(static_cast<std::byte*>(to.data()) + static_cast<std::int64_t>(i) * bytes,
                      static_cast<const std::byte*>(from.data()) + which[i] * bytes, static_cast<std::size_t>(bytes));
        }
      };
      copy(c.q, all.q);
      copy(c.k, all.k);
      copy(c.v, all.v);
      c.p.causal = true;
      c.p.alignment = all.p.alignment;
      c.p.window_left = all.p.window_left;
      return c;
    };
    const std::vector<std::int64_t> orders[] = {{0}, {3}, {4}, {4, 3, 2, 1, 0}, {2, 0, 2, 4, 1, 3, 3}};
    for (const std::vector<std::int64_t>& order : orders) {
      const AttentionCase part = pick(order);
      SCOPED_TRACE("seed 31 first " + std::to_string(order[0]) + " " + part.ToString());
      const AttentionBits apart = Ask(part);
      const auto o_bytes = std::ssize(together.o) / kBatch, lse_bytes = std::ssize(together.lse) / kBatch;
      for (std::int64_t i = 0; i < std::ssize(order); ++i) {
        EXPECT_EQ(Slice(apart.o, i * o_bytes, o_bytes), Slice(together.o, order[i] * o_bytes, o_bytes)) << i;
        EXPECT_EQ(Slice(apart.lse, i * lse_bytes, lse_bytes), Slice(together.lse, order[i] * lse_bytes, lse_bytes))
            << i;
      }
    }
  }
}

// The same sequences as rows of a padded batch and on end: packed [rows, heads, D] is BLHD without its padding.
TEST(AttentionContract, PackedAndPaddedGiveTheSameBits) {
  const std::vector<std::int64_t> q_lengths = {17, 0, 33, 1}, kv_lengths = {129, 30, 0, 64};
  constexpr std::int64_t kQueries = 33, kKeys = 129;
  for (const DataType type : kTypes) {
    AttentionCase padded = MakeAttention({4, 4, 2, kQueries, kKeys, 16, 8}, 37, type, AttentionLayout::kBLHD);
    padded.p.q_lengths = q_lengths;
    padded.p.kv_lengths = kv_lengths;
    padded.p.causal = true;
    padded.p.alignment = MaskAlignment::kBottomRight;
    AttentionCase packed = MakeAttention({1, 4, 2, 51, 223, 16, 8}, 1, type, AttentionLayout::kPacked);
    packed.p.q_offsets = {0, 17, 17, 50, 51};
    packed.p.kv_offsets = {0, 129, 159, 159, 223};
    packed.p.causal = true;
    packed.p.alignment = MaskAlignment::kBottomRight;
    const auto pack = [&](Operand& to, const Operand& from, const std::vector<std::int64_t>& offsets) {
      const Dims& shape = from.spec().shape;
      const std::int64_t row = shape[2] * shape[3];
      to.Fill([&](const Dims& at) {
        std::int64_t b = 0;
        while (at[0] >= offsets[static_cast<std::size_t>(b) + 1]) ++b;
        return reference::Load(
            type, from.data(),
            (b * shape[1] + at[0] - offsets[static_cast<std::size_t>(b)]) * row + at[1] * shape[3] + at[2]);
      });
    };
    pack(packed.q, padded.q, packed.p.q_offsets);
    pack(packed.k, padded.k, packed.p.kv_offsets);
    pack(packed.v, padded.v, packed.p.kv_offsets);
    SCOPED_TRACE("seed 37 " + packed.ToString());
    const AttentionBits a = AskAndCheck(padded), b = AskAndCheck(packed);
    const std::int64_t row_bytes = std::ssize(b.o) / 51;
    for (std::int64_t s = 0; s < 4; ++s) {
      if (q_lengths[s] == 0) continue;
      EXPECT_EQ(Slice(a.o, s * kQueries * row_bytes, q_lengths[s] * row_bytes),
                Slice(b.o, packed.p.q_offsets[s] * row_bytes, q_lengths[s] * row_bytes))
          << "sequence " << s;
    }
  }
}

TEST(AttentionContract, RepetitionDoesNotShow) {
  for (const DataType type : kTypes) {
    for (const AttentionLayout layout : kLayouts) {
      const AttentionCase c = MakeAttention({2, 8, 2, 70, 260, 32, 32}, 41, type, layout);
      const AttentionBits first = AskAndCheck(c);
      for (int i = 0; i < 10; ++i) EXPECT_TRUE(first == Ask(c)) << "seed 41 " << c.ToString();
    }
  }
}

TEST(AttentionContract, BatchInvariantOnRequestIsEchoedAndChangesNothing) {
  for (const DataType type : kTypes) {
    const AttentionCase c = MakeAttention({}, 43, type);
    client::AttentionArgs args = c.ClientArgs();
    args.numerics = client::Numerics::kBatchInvariant;
    const auto invariant = SharedDaemon::client().Attention(args);
    ASSERT_TRUE(invariant.ok()) << invariant.status();
    EXPECT_EQ(invariant->kernel.numerics, "batch_invariant");
    const AttentionBits usual = AskAndCheck(c);
    EXPECT_EQ(usual.o, Bits(invariant->o.bytes().begin(), invariant->o.bytes().end()));
  }
}

TEST(AttentionContract, OnesGiveOnes) {
  for (const DataType type : kTypes) {
    for (const AttentionLayout layout : kLayouts) {
      AttentionCase c = MakeAttention({1, 4, 2, 40, 300, 16, 16}, 47, type, layout);
      c.v.Fill([](const Dims&) { return 1.0; });
      const AttentionBits bits = AskAndCheck(c);
      const double slack = c.OutputType() == DataType::kF32 ? 1e-6 : 0;
      ASSERT_EQ(std::ssize(bits.o), 40 * 4 * 16 * ElementBytes(c.OutputType()));
      for (std::int64_t i = 0; i < 40 * 4 * 16; ++i)
        ASSERT_NEAR(reference::Load(c.OutputType(), bits.o.data(), i), 1.0, slack) << c.ToString() << " " << i;
    }
  }
}

TEST(AttentionContract, ConcurrentCallersGetTheirOwnAnswers) {
  std::vector<AttentionCase> cases;
  for (std::uint64_t seed = 1000; cases.size() < 24; ++seed) {
    AttentionCase c = RandomCase(seed);
    if (c.p.q.elements() > 0 && c.p.k.elements() > 0) cases.push_back(std::move(c));
  }
  std::vector<AttentionBits> expected;
  for (const AttentionCase& c : cases) expected.push_back(AskAndCheck(c));
  ASSERT_FALSE(HasFailure());
  std::vector<int> wrong(8);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (std::size_t i = 0; i < 3 * cases.size(); ++i) {
        const std::size_t at = (5 * t + i) % cases.size();
        if (!(Ask(cases[at]) == expected[at])) ++wrong[t];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, ::testing::Each(0)) << "seeds 1000 and on";
}

}  // namespace
}  // namespace kernd::testing
