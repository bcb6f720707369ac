// server/telemetry: counts and quantiles of the last minute, against models that keep every observation.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <thread>
#include <vector>

#include "server/telemetry/latency_window.h"
#include "server/telemetry/sliding_counts.h"

namespace kernd::telemetry {
namespace {

using core::SteadyTime;
using std::chrono::nanoseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;

constexpr nanoseconds kSlot = SlidingCounts::kSlot;

SteadyTime At(nanoseconds time) {
  return SteadyTime(time);
}

TEST(SlidingCounts, AWindowIsTheSlotUnderWayAndTwelveBefore) {
  SlidingCounts counts(2);
  EXPECT_THAT(counts.Sum(At(seconds(0))), ElementsAre(0, 0));
  counts.Add(1, At(seconds(100)));
  EXPECT_THAT(counts.Sum(At(seconds(100))), ElementsAre(0, 1));
  EXPECT_THAT(counts.Sum(At(seconds(164))), ElementsAre(0, 1));
  EXPECT_THAT(counts.Sum(At(seconds(165))), ElementsAre(0, 0)) << "the thirteenth slot later";
  EXPECT_THAT(counts.Sum(At(seconds(99))), ElementsAre(0, 0)) << "not yet";
  EXPECT_THAT(counts.Slot(0, At(seconds(104))), ElementsAre(0, 1));
  EXPECT_THAT(counts.Slot(1, At(seconds(105))), ElementsAre(0, 1));
  EXPECT_EQ(SlidingCounts::Span(At(seconds(100))), seconds(60));
  EXPECT_EQ(SlidingCounts::Span(At(seconds(104))), seconds(64));
}

// Time goes forward by odd steps, now and then by more than the ring holds; threads lag by up to a slot.
TEST(SlidingCounts, AgreesWithAModelThatKeepsAll) {
  constexpr std::size_t kCounters = 3;
  for (unsigned seed = 1; seed <= 20; ++seed) {
    std::mt19937_64 random(seed);
    SlidingCounts counts(kCounters);
    std::vector<std::pair<std::int64_t, std::size_t>> model;  // slot, counter
    nanoseconds now = seconds(random() % 100000);
    for (int step = 0; step < 3000; ++step) {
      now += nanoseconds(random() % (step % 500 == 0 ? 200'000'000'000 : 100'000'000));
      const nanoseconds then = now - nanoseconds(random() % 2 == 0 ? 0 : random() % kSlot.count());
      if (then < nanoseconds(0)) continue;
      const std::size_t counter = random() % kCounters;
      counts.Add(counter, At(then));
      model.emplace_back(then / kSlot, counter);
      if (step % 50 != 0) continue;
      for (int age = 0; age < SlidingCounts::kSlots; ++age) {
        std::vector<std::uint64_t> expected(kCounters);
        for (const auto& [slot, of] : model) expected[of] += slot == now / kSlot - age;
        ASSERT_EQ(counts.Slot(age, At(now)), expected) << "seed " << seed << " step " << step << " age " << age;
      }
    }
  }
}

TEST(SlidingCounts, ThreadsThatMeetAtTheTurnOfASlotLoseNothing) {
  constexpr int kThreads = 4, kAdds = 20000;
  SlidingCounts counts(1);
  std::vector<std::thread> threads;
  // All go through the same slots, each at its own speed; together they stay within the window.
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < kAdds; ++j) counts.Add(0, At(seconds(1000) + j * 12 * kSlot / kAdds));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(counts.Sum(At(seconds(1000) + 12 * kSlot - nanoseconds(1))), ElementsAre(kThreads * kAdds));
}

// The smallest time that at least `percent` of them do not exceed.
absl::Duration Quantile(const std::vector<absl::Duration>& sorted, std::size_t percent) {
  const std::size_t rank = (sorted.size() * percent + 99) / 100;
  return sorted[std::max<std::size_t>(rank, 1) - 1];
}

void ExpectNear(absl::Duration got, absl::Duration expected, const std::string& what) {
  EXPECT_LE(absl::AbsDuration(got - expected), expected * LatencyWindow::kMaxRelativeError)
      << what << ": got " << got << ", expected " << expected;
}

TEST(LatencyWindow, QuantilesAreWithinTheBoundOfThoseOfAllTimes) {
  for (unsigned seed = 1; seed <= 60; ++seed) {
    std::mt19937_64 random(seed);
    // From a nanosecond to minutes; as many times as 1, 2, ... and some hundreds.
    std::lognormal_distribution<double> spread(std::uniform_real_distribution<>(2, 20)(random),
                                               std::uniform_real_distribution<>(0, 3)(random));
    const int count = seed <= 10 ? static_cast<int>(seed) : static_cast<int>(random() % 900 + 1);
    LatencyWindow window;
    std::vector<absl::Duration> times;
    for (int i = 0; i < count; ++i) {
      times.push_back(absl::Nanoseconds(static_cast<std::int64_t>(spread(random)) % LatencyWindow::kLongestNs));
      window.Add(times.back(), At(seconds(500 + i % 60)));
    }
    std::sort(times.begin(), times.end());
    const LatencySummary summary = window.Read(At(seconds(560)));
    const std::string seeded = "seed " + std::to_string(seed);
    EXPECT_EQ(summary.count, times.size()) << seeded;
    ExpectNear(summary.p50, Quantile(times, 50), seeded + " p50");
    ExpectNear(summary.p90, Quantile(times, 90), seeded + " p90");
    ExpectNear(summary.p99, Quantile(times, 99), seeded + " p99");
    ExpectNear(summary.max, times.back(), seeded + " max");
  }
}

// Both sides of every edge between buckets.
TEST(LatencyWindow, TheBoundHoldsAtEveryEdge) {
  std::int64_t slot = 0;
  LatencyWindow window;
  for (int power = 0; power < 40; ++power) {
    for (int sixteenth = 0; sixteenth < 32; ++sixteenth) {
      const std::int64_t edge = ((std::int64_t{1} << power) * (32 + sixteenth)) / 32;
      for (const std::int64_t ns : {edge - 1, edge}) {
        const SteadyTime alone = At(++slot * seconds(100));
        window.Add(absl::Nanoseconds(ns), alone);
        ExpectNear(window.Read(alone).max, absl::Nanoseconds(ns), std::to_string(ns) + " ns");
      }
    }
  }
}

TEST(LatencyWindow, TimesBeyondItsEnds) {
  LatencyWindow window;
  const SteadyTime now = At(seconds(10));
  const LatencySummary none = window.Read(now);
  EXPECT_EQ(none.count, 0u);
  EXPECT_EQ(none.max, absl::ZeroDuration());
  window.Add(absl::Nanoseconds(-5), now);
  EXPECT_EQ(window.Read(now).max, absl::ZeroDuration());
  window.Add(absl::InfiniteDuration(), now);
  ExpectNear(window.Read(now).max, absl::Nanoseconds(LatencyWindow::kLongestNs), "for ever");
  EXPECT_EQ(window.Read(now).p50, absl::ZeroDuration());
}

TEST(LatencyWindow, OldTimesAreForgotten) {
  LatencyWindow window;
  window.Add(absl::Seconds(3), At(seconds(10)));
  window.Add(absl::Milliseconds(1), At(seconds(70)));
  EXPECT_EQ(window.Read(At(seconds(70))).count, 2u);
  EXPECT_EQ(window.Read(At(seconds(75))).count, 1u);
  ExpectNear(window.Read(At(seconds(75))).max, absl::Milliseconds(1), "the newer one");
}

}  // namespace
}  // namespace kernd::telemetry
