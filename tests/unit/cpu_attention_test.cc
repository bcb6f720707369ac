// The CPU's attention kernels against the fp64 reference, on every instruction set of this machine, and the promises of
// kernd/kernels/attention.h that no tolerance covers: what a row may depend on, bit for bit.
#include "server/cpu/attention.h"

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernd/kernels/error.h"
#include "kernels/reference/attention.h"
#include "kernels/reference/tolerance.h"
#include "tests/support/operand.h"

namespace kernd::cpu {
namespace {

using testing::Guarded;
using testing::Operand;
using testing::Pick;
using testing::Random;
using testing::SpecOf;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInfinity = std::numeric_limits<double>::infinity();

// A problem with its operands.
struct Case {
  AttentionProblem p;
  Operand q, k, v, mask, bias;

  AttentionArgs Args() const {
    return {.q = q.data(),
            .k = k.data(),
            .v = v.data(),
            .mask = p.mask ? mask.data() : nullptr,
            .bias = p.bias ? bias.data() : nullptr};
  }
};

struct Run {
  std::string kernel;  // empty: the rule's
  Isa isa = BestIsa();
  int threads = 1;
};

struct Result {
  std::vector<std::byte> o, lse;
  bool operator==(const Result&) const = default;
};

// Outputs start out as garbage; they, and the workspace of exactly the promised size, lie between guards.
Result Compute(const Case& c, const Run& run) {
  const auto g = Validate(c.p);
  EXPECT_TRUE(g.ok()) << g.status();
  if (!g.ok()) return {};
  const auto choice = ChooseAttention(c.p, *g, {.name = run.kernel}, run.threads, run.isa);
  EXPECT_TRUE(choice.ok()) << choice.status();
  if (!choice.ok()) return {};
  Guarded o(g->o_spec.bytes(), std::byte{0xff}, ElementBytes(g->output_dtype)),
      lse(g->lse_spec ? g->lse_spec->bytes() : 0, std::byte{0xff});
  Guarded workspace(choice->workspace_bytes, std::byte{0xff});
  AttentionArgs args = c.Args();
  args.o = o.data();
  args.lse = c.p.want_lse ? reinterpret_cast<float*>(lse.data()) : nullptr;
  RunAttention(*choice, c.p, *g, args, workspace.data());
  o.ExpectGuardsIntact();
  lse.ExpectGuardsIntact();
  workspace.ExpectGuardsIntact();
  return {o.Copy(), lse.Copy()};
}

void ExpectMatches(const Case& c, const Result& result, const reference::AttentionResult& expected) {
  const DataType type = c.p.output_dtype == DataType::kInvalid ? DefaultAttentionOutput(c.p.q.dtype) : c.p.output_dtype;
  const auto o = reference::Compare(type, result.o.data(), expected.o.value, reference::OutputBounds(c.p, expected));
  EXPECT_TRUE(o.ok()) << "O: " << o.ToString();
  if (!c.p.want_lse) return;
  const auto lse =
      reference::Compare(DataType::kF32, result.lse.data(), expected.lse.value, reference::LseBounds(c.p, expected));
  EXPECT_TRUE(lse.ok()) << "LSE: " << lse.ToString();
}

void ExpectMatchesReference(const Case& c, const Result& result) {
  const auto expected = reference::AttentionValues(c.p, c.Args());
  ASSERT_TRUE(expected.ok()) << expected.status();
  ExpectMatches(c, result, *expected);
}

// Sizes of a plain problem.
struct Sizes {
  std::int64_t batch = 1, q_heads = 1, kv_heads = 1, q_rows = 1, kv_rows = 1, d = 16, dv = 16;
};

void SetTensors(Case& c, DataType type, AttentionLayout layout, const Sizes& n, Random& random, bool gaps) {
  const auto shape = [&](std::int64_t heads, std::int64_t rows, std::int64_t channels) {
    if (layout == AttentionLayout::kPacked) return Dims{rows, heads, channels};
    return layout == AttentionLayout::kBHLD ? Dims{n.batch, heads, rows, channels}
                                            : Dims{n.batch, rows, heads, channels};
  };
  const auto make = [&](TensorSpec& spec, Operand& operand, Dims dims) {
    spec = SpecOf(type, std::move(dims), gaps ? &random : nullptr);
    operand = Operand(spec, gaps ? ElementBytes(type) * Pick(random, 0, 3) : 0);
    operand.FillNormal(random);
  };
  c.p.layout = layout;
  make(c.p.q, c.q, shape(n.q_heads, n.q_rows, n.d));
  make(c.p.k, c.k, shape(n.kv_heads, n.kv_rows, n.d));
  make(c.p.v, c.v, shape(n.kv_heads, n.kv_rows, n.dv));
  c.p.want_lse = true;
}

Case PlainCase(const Sizes& n, std::uint64_t seed = 1, DataType type = DataType::kF32) {
  Random random(seed);
  Case c;
  SetTensors(c, type, AttentionLayout::kBHLD, n, random, false);
  return c;
}

// Anything that the problem allows, small.
Case RandomCase(std::uint64_t seed) {
  Random random(seed);
  const auto maybe = [&](int percent) { return Pick(random, 1, 100) <= percent; };
  const DataType types[] = {DataType::kF32, DataType::kF32,    DataType::kBF16,
                            DataType::kF16, DataType::kF8E4M3, DataType::kF8E5M2};
  const std::int64_t lengths[] = {0, 1, 2, 7, 16, 17, 31, 33, 64, 100, 127, 128, 129, 200, 260};
  const std::int64_t dims[] = {1, 3, 8, 15, 16, 17, 32, 40, 64, 65, 80, 96, 128};
  const DataType type = types[Pick(random, 0, 5)];
  const AttentionLayout layout = static_cast<AttentionLayout>(Pick(random, 0, 2));
  const bool packed = layout == AttentionLayout::kPacked;
  Sizes n{.batch = Pick(random, 1, 3),
          .kv_heads = Pick(random, 1, 3),
          .q_rows = lengths[Pick(random, 0, 14)],
          .kv_rows = lengths[Pick(random, 0, 14)],
          .d = dims[Pick(random, 0, 12)],
          .dv = dims[Pick(random, 0, 12)]};
  n.q_heads = n.kv_heads * Pick(random, 1, 4);
  Case c;
  AttentionProblem& p = c.p;
  SetTensors(c, type, layout, n, random, maybe(50));
  const auto draw = [&](std::size_t count, double low, double high) {
    std::vector<float> values(count);
    for (float& x : values) x = static_cast<float>(std::uniform_real_distribution<double>(low, high)(random));
    return values;
  };
  if (packed) {
    const auto offsets = [&](std::int64_t total) {
      std::vector<std::int64_t> cuts = {0};
      for (std::int64_t i = 1; i < n.batch; ++i) cuts.push_back(Pick(random, cuts.back(), total));
      cuts.push_back(total);
      return cuts;
    };
    p.q_offsets = offsets(n.q_rows);
    p.kv_offsets = offsets(n.kv_rows);
  } else {
    if (maybe(30)) {
      for (std::int64_t b = 0; b < n.batch; ++b) p.q_lengths.push_back(Pick(random, 0, n.q_rows));
    }
    if (maybe(30)) {
      for (std::int64_t b = 0; b < n.batch; ++b) p.kv_lengths.push_back(Pick(random, 0, n.kv_rows));
    }
    const auto broadcast = [&](DataType dtype) {
      return SpecOf(dtype, {maybe(50) ? n.batch : 1, maybe(50) ? n.q_heads : 1, maybe(50) ? n.q_rows : 1, n.kv_rows},
                    maybe(50) ? &random : nullptr);
    };
    if (maybe(25)) {
      p.mask = broadcast(DataType::kBool);
      c.mask = Operand(*p.mask, Pick(random, 0, 3));
      const int visible = static_cast<int>(Pick(random, 0, 100));
      c.mask.Fill([&](const Dims&) { return maybe(visible) ? 1.0 : 0.0; });
    }
    if (maybe(25)) {
      p.bias = broadcast(maybe(50) ? DataType::kF32 : type);
      c.bias = Operand(*p.bias, 0);
      c.bias.Fill([&](const Dims&) {
        return maybe(10) && p.bias->dtype != DataType::kF8E4M3 ? -kInfinity
                                                               : std::normal_distribution<double>()(random);
      });
    }
  }
  p.alignment = maybe(50) ? MaskAlignment::kTopLeft : MaskAlignment::kBottomRight;
  p.causal = maybe(35);
  if (maybe(25)) p.window_left = maybe(10) ? std::numeric_limits<std::int64_t>::max() : Pick(random, 0, 150);
  if (maybe(25) && !p.causal)
    p.window_right = maybe(10) ? std::numeric_limits<std::int64_t>::max() : Pick(random, 0, 150);
  if (maybe(25)) p.softcap = std::uniform_real_distribution<double>(0.5, 30)(random);
  if (maybe(25)) p.alibi_slopes = draw(static_cast<std::size_t>(n.q_heads), 0, 0.5);
  if (maybe(25)) {
    p.sinks = draw(static_cast<std::size_t>(n.q_heads), -5, 5);
    if (maybe(20)) p.sinks[0] = -std::numeric_limits<float>::infinity();
  }
  const double scales[] = {0, -0.25, 1, 0.1};
  if (maybe(30)) p.scale = scales[Pick(random, 0, 3)];
  if (IsFloat8(type)) {
    const std::size_t counts[] = {0, 1, static_cast<std::size_t>(n.kv_heads),
                                  static_cast<std::size_t>(n.batch * n.kv_heads)};
    p.q_scale = draw(counts[Pick(random, 0, 3)], 0.5, 2);
    p.k_scale = draw(counts[Pick(random, 0, 3)], 0.5, 2);
    p.v_scale = draw(counts[Pick(random, 0, 3)], 0.5, 2);
    const DataType outputs[] = {DataType::kInvalid, DataType::kF16, DataType::kBF16, DataType::kF32};
    p.output_dtype = outputs[Pick(random, 0, 3)];
  } else if (maybe(30)) {
    p.output_dtype = DataType::kF32;
  }
  p.want_lse = maybe(70);
  return c;
}

std::string Describe(const Case& c) {
  return std::string(Name(c.p.layout)) + " q " + c.p.q.ToString() + " k " + c.p.k.ToString() + " v " + c.p.v.ToString();
}

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

// Everything that no row may see, replaced by NaN and by infinity: padding rows, masked and windowed keys.
TEST_P(CpuAttention, InvisibleBytesNeverMatter) {
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

// A change at key `at` leaves the rows that do not see it alone to the bit, and reaches all others.
TEST_P(CpuAttention, KeysReachOnlyTheRowsThatSeeThem) {
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
TEST_P(CpuAttention, RowsDoNotDependOnTheirCompany) {
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

TEST_P(CpuAttention, ThreadsAndRepetitionDoNotShow) {
  const Case c =
      PlainCase({.batch = 2, .q_heads = 4, .kv_heads = 2, .q_rows = 200, .kv_rows = 260, .d = 32, .dv = 48}, 41);
  const Result first = Compute(c, {.isa = GetParam()});
  ExpectMatchesReference(c, first);
  for (int threads = 1; threads <= 4; ++threads) {
    EXPECT_TRUE(first == Compute(c, {.isa = GetParam(), .threads = threads})) << threads;
  }
}

TEST_P(CpuAttention, OnesGiveOnes) {
  Case c = PlainCase({.q_rows = 30, .kv_rows = 500}, 51);
  c.v.Fill([](const Dims&) { return 1.0; });
  const Result result = Compute(c, {.isa = GetParam()});
  for (std::int64_t i = 0; i < 30 * 16; ++i)
    EXPECT_NEAR(reference::Load(DataType::kF32, result.o.data(), i), 1.0, 1e-6) << i;
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
