// server/core: merged ranges, against a bit for each byte.
#include "server/core/byte_ranges.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace kernd::core {
namespace {

using Added = ByteRanges::Added;

TEST(ByteRanges, MergesNeighbours) {
  ByteRanges ranges;
  EXPECT_EQ(ranges.Add(0, 4), Added::kNew);
  EXPECT_EQ(ranges.Add(8, 12), Added::kNew);
  EXPECT_EQ(ranges.pieces(), 2u);
  EXPECT_EQ(ranges.Add(4, 8), Added::kNew);
  EXPECT_EQ(ranges.pieces(), 1u);
  EXPECT_EQ(ranges.Add(0, 12), Added::kPresent);
  EXPECT_EQ(ranges.Add(11, 13), Added::kOverlap);
  EXPECT_EQ(ranges.Add(100, 100), Added::kPresent) << "no byte";
  ranges.Clear();
  EXPECT_EQ(ranges.Add(11, 13), Added::kNew);
}

TEST(ByteRanges, AgreesWithOneBitForEachByte) {
  std::random_device device;
  for (int round = 0; round < 500; ++round) {
    const unsigned seed = device();
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    constexpr int kSize = 48;
    std::vector<bool> there(kSize);
    ByteRanges ranges;
    for (int i = 0; i < 60; ++i) {
      const int begin = static_cast<int>(random() % kSize);
      const int end = begin + static_cast<int>(random() % std::min<unsigned>(8, kSize - begin + 1));
      int covered = 0;
      for (int b = begin; b < end; ++b) covered += there[b];
      const Added expected = covered == end - begin ? Added::kPresent : covered == 0 ? Added::kNew : Added::kOverlap;
      const auto [first, last] = ranges.FirstOverlap(begin, end);
      EXPECT_EQ(first != last, covered > 0);
      if (covered > 0) {
        EXPECT_TRUE(there[first] && there[last - 1] && first < end && begin < last);
        EXPECT_TRUE((first == 0 || !there[first - 1]) && (last == kSize || !there[last])) << "a whole piece";
      }
      ASSERT_EQ(ranges.Add(begin, end), expected) << "[" << begin << ", " << end << ")";
      if (expected == Added::kNew) std::fill(there.begin() + begin, there.begin() + end, true);
      std::size_t pieces = 0;
      for (int b = 0; b < kSize; ++b) pieces += there[b] && (b == 0 || !there[b - 1]);
      ASSERT_EQ(ranges.pieces(), pieces);
    }
  }
}

}  // namespace
}  // namespace kernd::core
