// The promises of kernd/kernels/attention.h that no tolerance covers, of every attention variant that runs on the
// device: what a row may depend on, bit for bit, and what may never reach it. Prefill and few queries with many keys.
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/gpu/attention_gpu_case.h"

namespace kernd::gpu {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInfinity = std::numeric_limits<double>::infinity();

class AttentionGpuContract : public DeviceTest {
 protected:
  // Calls `check(variant)` for those that take the problem.
  template <typename Function>
  void ForEach(const AttentionProblem& p, const Function& check) {
    for (const AttentionVariant& variant : AttentionVariants()) {
      if (!Takes(variant, p)) continue;
      SCOPED_TRACE(variant.info.name);
      check(variant);
    }
  }

  Result Run(const AttentionVariant& variant, const Case& c) { return Compute(variant, c, OnDevice(c)); }

  void ExpectMatchesReference(const Case& c, const Result& result) {
    const auto expected = reference::AttentionValues(c.p, c.Args());
    ASSERT_TRUE(expected.ok()) << expected.status();
    ExpectMatches(c, result.o, result.lse, *expected);
  }
};

// Fills with normal numbers, but with `value` where `chosen(indices)`.
template <typename Chosen>
void FillBut(Operand& operand, std::uint64_t seed, double value, const Chosen& chosen) {
  Random random(seed);
  std::normal_distribution<double> normal;
  operand.Fill([&](const Dims& at) {
    const double x = normal(random);
    return chosen(at) ? value : x;
  });
}

// Everything that no row may see, replaced by NaN and by infinity: padding rows, masked and windowed keys.
TEST_F(AttentionGpuContract, InvisibleBytesNeverMatter) {
  for (const DataType type : {DataType::kF32, DataType::kBF16, DataType::kF16, DataType::kF8E5M2}) {
    for (const std::int64_t q_rows : {5, 150}) {
      const auto make = [&](double value) {
        Case c = PlainCase({.batch = 2, .q_heads = 4, .kv_heads = 2, .q_rows = q_rows, .kv_rows = 700}, 9, type);
        c.p.q_lengths = {q_rows, q_rows / 4};
        c.p.kv_lengths = {690, 331};
        c.p.window_left = 400;
        c.p.window_right = 509;
        c.p.alignment = MaskAlignment::kTopLeft;
        c.p.mask = SpecOf(DataType::kBool, {2, 1, 1, 700});
        c.mask = Operand(*c.p.mask, 0);
        c.mask.Fill([](const Dims& at) { return at[3] % 3 == 1 ? 0.0 : 1.0; });
        const auto hidden = [&](const Dims& at) {
          return at[2] >= c.p.kv_lengths[at[0]] || at[2] % 3 == 1 || at[2] >= c.p.q_lengths[at[0]] + 509;
        };
        FillBut(c.k, 4, value, hidden);
        FillBut(c.v, 5, value, hidden);
        FillBut(c.q, 6, value, [&](const Dims& at) { return at[2] >= c.p.q_lengths[at[0]]; });
        return c;
      };
      SCOPED_TRACE(std::string(Name(type)) + " " + std::to_string(q_rows));
      const Case clean = make(0.0);
      ForEach(clean.p, [&](const AttentionVariant& variant) {
        const Result result = Run(variant, clean);
        ExpectMatchesReference(clean, result);
        for (const double poison : {kNan, kInfinity, -kInfinity}) {
          EXPECT_TRUE(result == Run(variant, make(poison))) << poison;
        }
      });
    }
  }
}

// A bias of minus infinity is a mask: the same bits, and nothing of the key or its value shows, be it NaN, in rows that
// see other keys and in rows that see none. Where another row sees the key, only that row is spoiled.
TEST_F(AttentionGpuContract, BiasOfMinusInfinityHidesAsAMask) {
  for (const std::int64_t queries : {8, 150}) {
    const std::int64_t keys = queries == 8 ? 600 : 200;
    const auto hidden = [](const Dims& at) {
      return at[2] % 7 == 3 || at[3] % 5 == 1 || (at[2] % 3 == 1 && at[3] == 9);
    };
    for (const DataType type : {DataType::kF32, DataType::kBF16, DataType::kF16}) {
      for (const double poison : {0.0, kNan, kInfinity, -kInfinity}) {
        Case masked = PlainCase({.q_heads = 2, .q_rows = queries, .kv_rows = keys}, 11, type);
        FillBut(masked.k, 13, poison, [](const Dims& at) { return at[2] % 5 == 1; });
        FillBut(masked.v, 12, poison, [](const Dims& at) { return at[2] % 5 == 1 || at[2] == 9; });
        Case biased = masked;
        masked.p.mask = SpecOf(DataType::kBool, {1, 1, queries, keys});
        masked.mask = Operand(*masked.p.mask, 0);
        masked.mask.Fill([&](const Dims& at) { return hidden(at) ? 0.0 : 1.0; });
        biased.p.bias = SpecOf(DataType::kF32, {1, 1, queries, keys});
        biased.bias = Operand(*biased.p.bias, 0);
        biased.bias.Fill([&](const Dims& at) { return hidden(at) ? -kInfinity : 0.0; });
        SCOPED_TRACE(std::string(Name(type)) + " " + std::to_string(poison));
        ForEach(biased.p, [&](const AttentionVariant& variant) {
          const Result result = Run(variant, biased);
          EXPECT_TRUE(result == Run(variant, masked));
          ExpectMatchesReference(biased, result);
          for (std::int64_t row = 0; row < 2 * queries; ++row) {
            const std::int64_t i = row % queries;
            const double o = reference::Load(type, result.o.data(), row * 16);
            EXPECT_EQ(std::isfinite(o), poison == 0 || i % 7 == 3 || i % 3 == 1) << row;
          }
        });
      }
    }
  }
}

// A logit that comes out as minus infinity weighs nothing, whoever else is in the tile: its value never shows.
TEST_F(AttentionGpuContract, KeysThatWeighNothingDoNotShow) {
  for (const DataType type : {DataType::kF32, DataType::kF16, DataType::kBF16}) {
    for (const std::int64_t queries : {3, 150}) {
      for (const double poison : {kNan, kInfinity}) {
        Case c = PlainCase({.q_rows = queries, .kv_rows = 600}, 14, type);
        c.p.causal = true;
        c.p.alignment = MaskAlignment::kBottomRight;
        c.q.Fill([](const Dims& at) { return 0.1 + static_cast<double>(at[3]); });
        FillBut(c.k, 15, -kInfinity, [](const Dims& at) { return at[2] % 40 == 3; });
        FillBut(c.v, 16, poison, [](const Dims& at) { return at[2] % 40 == 3; });
        SCOPED_TRACE(std::string(Name(type)) + " " + std::to_string(queries) + " " + std::to_string(poison));
        ForEach(c.p, [&](const AttentionVariant& variant) {
          const Result result = Run(variant, c);
          ExpectMatchesReference(c, result);
          for (std::int64_t i = 0; i < queries * 16; ++i) {
            EXPECT_TRUE(std::isfinite(reference::Load(type, result.o.data(), i))) << i;
          }
        });
      }
    }
  }
}

// A change at key `at` leaves the rows that do not see it alone to the bit, and a NaN or an infinity reaches all
// others.
TEST_F(AttentionGpuContract, KeysReachOnlyTheRowsThatSeeThem) {
  for (const DataType type : {DataType::kF32, DataType::kF16, DataType::kBF16}) {
    const std::int64_t row_bytes = 16 * ElementBytes(type);
    for (const std::int64_t queries : {6, 270}) {
      const std::int64_t keys = queries == 6 ? 700 : 270;
      for (const std::int64_t at :
           {std::int64_t{0}, std::int64_t{1}, std::int64_t{127}, std::int64_t{128}, keys - 70, keys - 5, keys - 1}) {
        for (const auto& [in_values, poison] :
             {std::pair{false, kNan}, {true, kNan}, {true, kInfinity}, {true, -kInfinity}}) {
          const auto make = [&](double value) {
            Case c = PlainCase({.q_rows = queries, .kv_rows = keys}, 21, type);
            c.p.causal = true;
            c.p.alignment = MaskAlignment::kBottomRight;
            FillBut(in_values ? c.v : c.k, 6, value, [&](const Dims& index) { return index[2] == at; });
            return c;
          };
          SCOPED_TRACE(std::string(Name(type)) + (in_values ? " V[" : " K[") + std::to_string(at) + "] of " +
                       std::to_string(keys) + " is " + std::to_string(poison));
          const Case base = make(0), spoiled = make(poison);
          ForEach(base.p, [&](const AttentionVariant& variant) {
            const Result before = Run(variant, base), after = Run(variant, spoiled);
            for (std::int64_t row = 0; row < queries; ++row) {
              const double o = reference::Load(type, after.o.data(), row * 16);
              if (row + keys - queries < at) {
                EXPECT_EQ(std::memcmp(before.o.data() + row * row_bytes, after.o.data() + row * row_bytes,
                                      static_cast<std::size_t>(row_bytes)),
                          0)
                    << row;
              } else {
                EXPECT_TRUE(std::isnan(poison) ? std::isnan(o) : o == poison) << row << ": " << o;
              }
            }
          });
        }
      }
    }
  }
}

// A sequence alone, and in a batch with longer and shorter ones, in every layout: the same bits. Each stays on its side
// of any limit at which a kernel changes its way, whatever the others do.
TEST_F(AttentionGpuContract, SequencesDoNotDependOnTheirCompany) {
  constexpr std::int64_t kHeads = 6, kKvHeads = 2, kD = 24;
  const std::vector<std::int64_t> queries = {1, 200, 3, 40, 2, 0, 5}, keys = {900, 300, 17, 1100, 3000, 50, 0};
  const std::int64_t batch = static_cast<std::int64_t>(queries.size());
  for (const DataType type : {DataType::kF32, DataType::kF16, DataType::kF8E4M3}) {
    for (const bool causal : {false, true}) {
      Random random(31);
      Case packed;
      AttentionProblem& p = packed.p;
      p.q_offsets = p.kv_offsets = {0};
      for (std::int64_t b = 0; b < batch; ++b) {
        p.q_offsets.push_back(p.q_offsets.back() + queries[b]);
        p.kv_offsets.push_back(p.kv_offsets.back() + keys[b]);
      }
      SetTensors(packed, type, AttentionLayout::kPacked,
                 {.q_heads = kHeads,
                  .kv_heads = kKvHeads,
                  .q_rows = p.q_offsets.back(),
                  .kv_rows = p.kv_offsets.back(),
                  .d = kD,
                  .dv = kD},
                 random, false);
      p.causal = causal;
      p.alignment = MaskAlignment::kBottomRight;
      p.output_dtype = DataType::kF32;
      const OnDevice all(packed);
      const std::int64_t size = ElementBytes(type);
      SCOPED_TRACE(std::string(Name(type)) + (causal ? " causal" : ""));
      ForEach(p, [&](const AttentionVariant& variant) {
        const Result together = Compute(variant, packed, all);
        for (std::int64_t b = 0; b < batch; ++b) {
          // A batch of its own, in the layout whose bytes are those of the packed rows.
          AttentionProblem alone = p;
          alone.layout = AttentionLayout::kBLHD;
          alone.q_offsets.clear();
          alone.kv_offsets.clear();
          alone.q.shape = {1, queries[b], kHeads, kD};
          alone.k.shape = alone.v.shape = {1, keys[b], kKvHeads, kD};
          const auto part = [&](const Operand& operand, std::int64_t row, std::int64_t rows, std::int64_t heads) {
            return DeviceBuffer(static_cast<const std::byte*>(operand.data()) + row * heads * kD * size,
                                rows * heads * kD * size);
          };
          const DeviceBuffer q = part(packed.q, p.q_offsets[b], queries[b], kHeads),
                             k = part(packed.k, p.kv_offsets[b], keys[b], kKvHeads),
                             v = part(packed.v, p.kv_offsets[b], keys[b], kKvHeads);
          const Result one = Compute(variant, alone, {.q = q.data(), .k = k.data(), .v = v.data()});
          EXPECT_EQ(std::memcmp(one.o.data(), together.o.data() + p.q_offsets[b] * kHeads * kD * 4, one.o.size()), 0)
              << "sequence " << b;
          for (std::int64_t h = 0; h < kHeads; ++h) {
            EXPECT_EQ(std::memcmp(one.lse.data() + h * queries[b] * 4,
                                  together.lse.data() + (h * p.q_offsets.back() + p.q_offsets[b]) * 4,
                                  static_cast<std::size_t>(queries[b] * 4)),
                      0)
                << "sequence " << b << " head " << h;
          }
        }
      });
    }
  }
}

// Padding after a sequence, of queries or keys, changes nothing of its rows.
TEST_F(AttentionGpuContract, PaddingDoesNotShow) {
  for (const std::int64_t kv_length : {100, 800}) {
    for (const std::int64_t q_length : {1, 4, 90}) {
      Case padded = PlainCase({.q_heads = 2, .kv_heads = 1, .q_rows = q_length + 300, .kv_rows = kv_length + 2000}, 33);
      padded.p.q_lengths = {q_length};
      padded.p.kv_lengths = {kv_length};
      const OnDevice operands(padded);
      AttentionProblem bare = padded.p;
      bare.q_lengths.clear();
      bare.kv_lengths.clear();
      for (TensorSpec* spec : {&bare.q, &bare.k, &bare.v}) spec->strides = spec->EffectiveStrides();
      bare.q.shape[2] = q_length;
      bare.k.shape[2] = bare.v.shape[2] = kv_length;
      SCOPED_TRACE(std::to_string(q_length) + " of " + std::to_string(kv_length));
      ForEach(bare, [&](const AttentionVariant& variant) {
        const Result with = Compute(variant, padded, operands), without = Compute(variant, bare, operands.Args());
        for (std::int64_t h = 0; h < 2; ++h) {
          EXPECT_EQ(std::memcmp(without.o.data() + h * q_length * 64, with.o.data() + h * (q_length + 300) * 64,
                                static_cast<std::size_t>(q_length * 64)),
                    0)
              << "head " << h;
        }
      });
    }
  }
}

TEST_F(AttentionGpuContract, RepetitionDoesNotShow) {
  for (const std::int64_t q_rows : {2, 200}) {
    const Case c =
        PlainCase({.batch = 2, .q_heads = 4, .kv_heads = 2, .q_rows = q_rows, .kv_rows = 1260, .d = 32, .dv = 48}, 41,
                  DataType::kBF16);
    const OnDevice operands(c);
    ForEach(c.p, [&](const AttentionVariant& variant) {
      const Result first = Compute(variant, c, operands);
      for (int i = 0; i < 50; ++i) ASSERT_TRUE(first == Compute(variant, c, operands)) << i;
    });
  }
}

// Few multiprocessors have many pieces of work each, one after the other, some of them with values that are not finite.
TEST_F(AttentionGpuContract, MultiprocessorsDoNotShow) {
  for (const auto& [type, d] : {std::pair{DataType::kF16, 64}, {DataType::kBF16, 128}}) {
    for (const double poison : {0.0, kNan}) {
      Case c = PlainCase({.batch = 2, .q_heads = 4, .kv_heads = 2, .q_rows = 150, .kv_rows = 270, .d = d, .dv = d}, 45,
                         type);
      FillBut(c.v, 46, poison, [](const Dims& at) { return at[1] == 1 && at[2] == 230; });
      c.p.kv_lengths = {270, 65};
      c.p.causal = true;
      c.p.alignment = MaskAlignment::kBottomRight;
      const OnDevice operands(c);
      SCOPED_TRACE(std::string(Name(type)) + " " + std::to_string(d) + " " + std::to_string(poison));
      const auto expected = reference::AttentionValues(c.p, c.Args());
      ASSERT_TRUE(expected.ok()) << expected.status();
      ForEach(c.p, [&](const AttentionVariant& variant) {
        SetMultiprocessors(132);
        const Result many = Compute(variant, c, operands);
        ExpectMatches(c, many.o, many.lse, *expected);
        for (const int count : {1, 3}) {
          SetMultiprocessors(count);
          EXPECT_TRUE(many == Compute(variant, c, operands)) << count;
        }
      });
    }
  }
}

TEST_F(AttentionGpuContract, OnesGiveOnes) {
  for (const std::int64_t q_rows : {1, 30, 100}) {
    Case c = PlainCase({.q_rows = q_rows, .kv_rows = 500}, 51);
    c.v.Fill([](const Dims&) { return 1.0; });
    ForEach(c.p, [&](const AttentionVariant& variant) {
      const Result result = Run(variant, c);
      for (std::int64_t i = 0; i < q_rows * 16; ++i) {
        EXPECT_NEAR(reference::Load(DataType::kF32, result.o.data(), i), 1.0, 1e-6) << i;
      }
    });
  }
}

}  // namespace
}  // namespace kernd::gpu
