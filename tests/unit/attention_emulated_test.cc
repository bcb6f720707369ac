// What only the emulator can tell of the attention kernels: that shared memory has no bank conflicts, and that neither
// the order of warps nor the size of the tile shows in the bits. And a sample of the kernels for ordinary cores.
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/emulator/emulator.h"
#include "kernels/gpu/variants.h"
#include "tests/gpu/attention_gpu_case.h"

namespace kernd::gpu {
namespace {

class AttentionEmulated : public DeviceTest {
 protected:
  template <typename Function>
  void ForEachVariant(const AttentionProblem& p, const Function& check) {
    int count = 0;
    for (const AttentionVariant& variant : AttentionVariants()) {
      if (!Takes(variant, p)) continue;
      SCOPED_TRACE(variant.info.name);
      check(variant);
      ++count;
    }
    EXPECT_GT(count, 0) << "no variant takes it";
  }
};

// Every instantiation, by its channels and the rows that choose its tile.
TEST_F(AttentionEmulated, TilesAreRightAndHaveNoBankConflicts) {
  for (const auto& [d, dv] : {std::pair{32, 32}, {64, 64}, {96, 96}, {128, 128}, {192, 128}, {192, 192}, {256, 256}}) {
    for (const std::int64_t q_rows : {1, 40, 200}) {
      for (const DataType type : {DataType::kF16, DataType::kBF16}) {
        const Case c = PlainCase({.q_rows = q_rows, .kv_rows = 300, .d = d, .dv = dv}, 2, type);
        const auto expected = reference::AttentionValues(c.p, c.Args());
        ASSERT_TRUE(expected.ok()) << expected.status();
        ForEachVariant(c.p, [&](const AttentionVariant& variant) {
          emulator::ResetCounters();
          const OnDevice operands(c);
          const Result result = Compute(variant, c, operands);
          ExpectMatches(c, result.o, result.lse, *expected);
          const emulator::Counters& counts = emulator::Counts();
          const bool hopper = variant.info.name.ends_with("_wgmma");
          EXPECT_GT(hopper ? counts.wgmma : counts.mma, 0u);
          EXPECT_GT(hopper ? counts.bulk_copies : counts.ldmatrix, 0u);
          EXPECT_EQ(emulator::Counts().ldmatrix_conflicts, 0u) << d << "/" << dv << " with " << q_rows << " rows";
        });
      }
    }
  }
}

TEST_F(AttentionEmulated, OrderOfWarpsDoesNotShow) {
  for (const std::int64_t q_rows : {2, 150}) {
    Case c = PlainCase({.q_heads = 4, .kv_heads = 2, .q_rows = q_rows, .kv_rows = 600, .d = 64, .dv = 64}, 3,
                       DataType::kBF16);
    c.p.causal = true;
    c.p.alignment = MaskAlignment::kBottomRight;
    const OnDevice operands(c);
    ForEachVariant(c.p, [&](const AttentionVariant& variant) {
      emulator::SetOrder(emulator::Order::kAscending);
      const Result first = Compute(variant, c, operands);
      emulator::SetOrder(emulator::Order::kDescending);
      EXPECT_TRUE(first == Compute(variant, c, operands)) << "descending";
      for (std::uint64_t seed = 0; seed < 3; ++seed) {
        emulator::SetOrder(emulator::Order::kRandom, seed);
        EXPECT_TRUE(first == Compute(variant, c, operands)) << "random, seed " << seed;
      }
      emulator::SetOrder(emulator::Order::kVaried);
    });
  }
}

// Rows of many heads of few rows (large tiles) are those of the same heads one at a time (small tiles).
TEST_F(AttentionEmulated, TileDoesNotShow) {
  constexpr std::int64_t kHeads = 132, kRows = 65, kD = 32;
  Case all = PlainCase({.q_heads = kHeads, .kv_heads = kHeads, .q_rows = kRows, .kv_rows = 130, .d = kD, .dv = kD}, 4,
                       DataType::kF16);
  all.p.causal = true;
  all.p.alignment = MaskAlignment::kBottomRight;
  const OnDevice operands(all);
  ForEachVariant(all.p, [&](const AttentionVariant& variant) {
    const Result together = Compute(variant, all, operands);
    for (const std::int64_t head : {std::int64_t{0}, std::int64_t{57}, kHeads - 1}) {
      AttentionProblem one = all.p;
      one.q.shape[1] = one.k.shape[1] = one.v.shape[1] = 1;
      const auto at = [&](const DeviceBuffer& buffer, std::int64_t rows) {
        return DeviceBuffer(static_cast<const std::byte*>(buffer.data()) + head * rows * kD * 2, rows * kD * 2);
      };
      const DeviceBuffer q = at(operands.q, kRows), k = at(operands.k, 130), v = at(operands.v, 130);
      const Result alone = Compute(variant, one, {.q = q.data(), .k = k.data(), .v = v.data()});
      EXPECT_TRUE(std::equal(alone.o.begin(), alone.o.end(), together.o.begin() + head * kRows * kD * 2)) << head;
    }
  });
}

// Keys that no row sees, padding or another sequence's, cost no second pass, whatever their values are.
TEST_F(AttentionEmulated, InvisibleTailsCostNothing) {
  const auto count = [&](double value) {
    Case c = PlainCase({.batch = 2, .q_rows = 80, .kv_rows = 300, .d = 64, .dv = 64}, 5, DataType::kF16);
    c.p.kv_lengths = {150, 170};
    Random random(6);
    c.v.Fill(
        [&](const Dims& at) { return at[2] >= c.p.kv_lengths[at[0]] ? value : std::normal_distribution<>()(random); });
    std::uint64_t instructions = 0;
    ForEachVariant(c.p, [&](const AttentionVariant& variant) {
      emulator::ResetCounters();
      Compute(variant, c, OnDevice(c));
      instructions += emulator::Counts().wgmma + emulator::Counts().mma;
    });
    return instructions;
  };
  const std::uint64_t clean = count(0);
  EXPECT_GT(clean, 0u);
  EXPECT_EQ(count(std::numeric_limits<double>::quiet_NaN()), clean);
}

// Sequences cut along their keys: values without columns still have LSE, and no heads of Q have nothing at all.
TEST_F(AttentionEmulated, OrdinaryCoresMergeNothing) {
  for (const auto& [heads, columns] : {std::pair{2, 0}, {0, 8}}) {
    const testing::attention::Sizes sizes{
        .q_heads = heads, .kv_heads = 2, .q_rows = 3, .kv_rows = 300, .d = 8, .dv = columns};
    const Case c = PlainCase(sizes, 7, DataType::kF16);
    SCOPED_TRACE(Describe(c));
    const auto expected = reference::AttentionValues(c.p, c.Args());
    ASSERT_TRUE(expected.ok()) << expected.status();
    const OnDevice operands(c);
    int count = 0;
    for (const auto variants : {AttentionSimtVariants(), AttentionMmaVariants(), AttentionWgmmaVariants()}) {
      for (const AttentionVariant& variant : variants) {
        if (!Takes(variant, c.p)) continue;
        SCOPED_TRACE(variant.info.name);
        const Result result = Compute(variant, c, operands);
        ExpectMatches(c, result.o, result.lse, *expected);
        ++count;
      }
    }
    EXPECT_GT(count, 0);
  }
}

TEST_F(AttentionEmulated, OrdinaryCoresAgreeToo) {
  for (std::uint64_t seed = 30001; seed < 30031 && !HasFailure(); ++seed) {
    const Case c = RandomCase(seed, seed % 5 == 0);
    SCOPED_TRACE("seed " + std::to_string(seed) + ", " + Describe(c));
    const auto expected = reference::AttentionValues(c.p, c.Args());
    ASSERT_TRUE(expected.ok()) << expected.status();
    const OnDevice operands(c);
    for (const AttentionVariant& variant : AttentionSimtVariants()) {
      if (!Takes(variant, c.p)) continue;
      const Result result = Compute(variant, c, operands);
      ExpectMatches(c, result.o, result.lse, *expected);
      EXPECT_TRUE(result == Compute(variant, c, operands)) << "two runs differ";
    }
  }
}

}  // namespace
}  // namespace kernd::gpu
