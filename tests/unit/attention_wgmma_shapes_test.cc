// Every shape of the attention for SM 9.0 that a bench compares (tests/support/attention_wgmma_candidates.cuh), on the
// emulator: right before a GPU sees it, and for the chosen ones and the others alike.
#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/emulator/emulator.h"
#include "tests/gpu/attention_gpu_case.h"
#include "tests/support/attention_wgmma_candidates.cuh"

namespace kernd::gpu {
namespace {

const WgmmaKernel* kernel_at_hand = nullptr;

class AttentionWgmmaShapes : public DeviceTest {
 protected:
  // A variant that is nothing but the kernel.
  static AttentionVariant VariantOf(const attention_wgmma::Candidate& candidate) {
    kernel_at_hand = &candidate.kernel;
    AttentionVariant variant;
    variant.info.name = candidate.name;
    variant.workspace_bytes = [](const AttentionProblem&, const AttentionGeometry&, const DeviceInfo&) -> std::int64_t {
      return 0;
    };
    variant.launch = [](const AttentionProblem& p, const AttentionGeometry& g, const DeviceInfo& device,
                        const AttentionArgs& args, const AttentionTables& tables, void*,
                        Stream stream) { return LaunchWgmma(*kernel_at_hand, p, g, device, args, tables, stream); };
    return variant;
  }

  // Tails of tiles, jobs one after the other, a value that is no number, and rows that see nothing.
  template <unsigned kD>
  void CheckAll() {
    for (const std::string_view rows : {"full", "causal", "window"}) {
      Case c = PlainCase({.batch = 2, .q_heads = 2, .kv_heads = 1, .q_rows = 230, .kv_rows = 400, .d = kD, .dv = kD},
                         kD, DataType::kF16);
      c.p.causal = rows == "causal";
      if (rows == "window") c.p.window_left = c.p.window_right = 60;
      c.p.alignment = MaskAlignment::kBottomRight;
      c.p.kv_lengths = {400, 131};
      Random random(kD);
      c.v.Fill([&](const Dims& at) {
        const double x = std::normal_distribution<double>()(random);
        return at[0] == 0 && at[2] == 280 ? std::numeric_limits<double>::quiet_NaN() : x;
      });
      const auto expected = reference::AttentionValues(c.p, c.Args());
      ASSERT_TRUE(expected.ok()) << expected.status();
      const OnDevice operands(c);
      for (const attention_wgmma::Candidate& candidate : attention_wgmma::Candidates<kD>()) {
        SCOPED_TRACE(std::string(candidate.name) + ", " + std::string(rows));
        const AttentionVariant variant = VariantOf(candidate);
        SetMultiprocessors(2);
        emulator::ResetCounters();
        const Result result = Compute(variant, c, operands);
        EXPECT_EQ(emulator::Counts().ldmatrix_conflicts, 0u);
        ExpectMatches(c, result.o, result.lse, *expected);
        SetMultiprocessors(132);
        EXPECT_TRUE(result == Compute(variant, c, operands)) << "another order of warps or jobs";
      }
    }
  }
};

// Sections of any size, the last one smaller: every piece is in one pair, once, and pairs of whole sections are alike.
TEST(AttentionWgmmaPairs, HaveEveryPieceOnce) {
  for (const auto& [heads, blocks, section] : std::vector<std::array<std::int64_t, 3>>{
           {1, 1, 1}, {1, 2, 1}, {3, 5, 1}, {8, 128, 1}, {7, 6, 3}, {6, 7, 3}, {5, 3, 5}}) {
    SCOPED_TRACE(std::to_string(heads) + " heads, " + std::to_string(blocks) + " blocks, " + std::to_string(section));
    const AttentionPlan plan{.works = heads * blocks, .blocks = blocks, .section = section};
    std::vector<int> times(static_cast<std::size_t>(plan.works), 0);
    const std::int64_t pairs = WgmmaPairs(plan);
    for (std::int64_t i = 0; i < pairs; ++i) {
      const WgmmaPieces pieces = WgmmaPair(plan, i);
      ++times.at(static_cast<std::size_t>(pieces.first));
      if (pieces.second != pieces.first) ++times.at(static_cast<std::size_t>(pieces.second));
      const auto block = [&](std::int64_t piece) { return piece % (section * blocks) / section; };
      if (heads % section == 0) {
        EXPECT_EQ(block(pieces.first) + block(pieces.second), blocks - 1) << i;
      }
    }
    EXPECT_THAT(times, ::testing::Each(1));
  }
}

TEST_F(AttentionWgmmaShapes, D64) {
  CheckAll<64>();
}
TEST_F(AttentionWgmmaShapes, D128) {
  CheckAll<128>();
}
TEST_F(AttentionWgmmaShapes, D256) {
  CheckAll<256>();
}

}  // namespace
}  // namespace kernd::gpu
