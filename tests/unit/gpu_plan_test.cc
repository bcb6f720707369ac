// What the GPU backend works out before it touches a device: tiers, units, and where buffers lie.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "server/gpu/capabilities.h"
#include "server/gpu/layout.h"

namespace kernd::gpu {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Not;

TEST(Capabilities, TiersAreThoseOfTheTable) {
  using Tier = core::DeviceDescription::Tier;
  const std::pair<int, Tier> rows[] = {{70, Tier::kUnsupported}, {75, Tier::kBasic}, {80, Tier::kFull},
                                       {86, Tier::kFull},        {89, Tier::kFull},  {90, Tier::kAdvanced},
                                       {100, Tier::kFull},       {120, Tier::kFull}};
  for (const auto& [sm, tier] : rows) EXPECT_EQ(TierOf(sm), tier) << sm;
  EXPECT_THAT(HardwareHas(70), ElementsAre("f16 tensor cores"));
  EXPECT_THAT(HardwareHas(86), Contains("bf16 tensor cores"));
  EXPECT_THAT(HardwareHas(120), Not(Contains("wgmma")));
  EXPECT_EQ(CudaVersion(13000), "13.0");
  EXPECT_EQ(CudaVersion(12090), "12.9");
}

TEST(DeviceLayout, AlignsEverythingAndRefusesWhatWraps) {
  const auto layout = LayOut({1, -1, 0, 300}, 10, {257, 0}, 5);
  ASSERT_TRUE(layout.has_value());
  EXPECT_THAT(layout->operand_at, ElementsAre(0, DeviceLayout::kAbsent, 256, 256));
  EXPECT_EQ(layout->tables_at, 768);
  EXPECT_EQ(layout->input_bytes, 1024);
  EXPECT_THAT(layout->result_at, ElementsAre(1024, 1536));
  EXPECT_EQ(layout->workspace_at, 1536);
  EXPECT_EQ(layout->bytes(), 1792);
  constexpr std::int64_t kHuge = std::int64_t{1} << 61;
  EXPECT_TRUE(LayOut({kHuge}, 0, {}, 0).has_value());
  EXPECT_FALSE(LayOut({kHuge, kHuge, kHuge}, 0, {}, 0).has_value());
  EXPECT_FALSE(LayOut({1}, 0, {}, std::numeric_limits<std::int64_t>::max()).has_value());
  EXPECT_FALSE(LayOut({1}, 0, {}, -1).has_value());
}

TEST(DeviceLayout, GuardsReachFromTheLastByteOfAResultToTheNext) {
  const auto layout = LayOut({1}, 0, {257, 0}, 5, Guarded::kYes);
  ASSERT_TRUE(layout.has_value());
  EXPECT_THAT(layout->result_at, ElementsAre(512, 1280));
  ASSERT_EQ(layout->guards.size(), 3u);
  const std::int64_t expected[][2] = {{256, 256}, {512 + 257, 511}, {1280, 256}};
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(layout->guards[i].at, expected[i][0]) << i;
    EXPECT_EQ(layout->guards[i].bytes, expected[i][1]) << i;
  }
  EXPECT_EQ(layout->counts_at, 1536);
  EXPECT_EQ(layout->workspace_at, 1792);
  EXPECT_EQ(layout->bytes(), 2048) << "all of it is accounted for";
  EXPECT_EQ(layout->output_bytes, 512);
  EXPECT_TRUE(LayOut({1}, 0, {}, 0, Guarded::kYes)->guards.empty());
}

}  // namespace
}  // namespace kernd::gpu
