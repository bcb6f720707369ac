// What becomes of plans that were made.
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/gpu/plan_cache.h"

namespace kernd {
namespace {

TEST(PlanCache, KeepsTheLastUsedAndNoMore) {
  PlanCache<int, int> cache(3);
  int made = 0;
  const auto get = [&](int key) { return **cache.Get(key, [&] { return ++made, absl::StatusOr<int>(key * 10); }); };
  for (const int key : {1, 2, 3, 1}) EXPECT_EQ(get(key), key * 10);
  EXPECT_EQ(made, 3);
  get(4);  // in place of 2, the one that nobody asked for since
  get(1), get(3), get(4);
  EXPECT_EQ(made, 4);
  get(2);
  EXPECT_EQ(made, 5);
  for (int key = 100; key < 1000; ++key) get(key);
  EXPECT_EQ(cache.size(), 3);
}

TEST(PlanCache, AValueOutlivesItsPlace) {
  PlanCache<int, std::string> cache(1);
  const auto held = *cache.Get(1, [] { return absl::StatusOr<std::string>("one"); });
  ASSERT_TRUE(cache.Get(2, [] { return absl::StatusOr<std::string>("two"); }).ok());
  EXPECT_EQ(*held, "one");
}

TEST(PlanCache, ErrorsAreNotKept) {
  PlanCache<int, int> cache(2);
  EXPECT_EQ(cache.Get(1, [] { return absl::StatusOr<int>(absl::ResourceExhaustedError("")); }).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(cache.size(), 0);
  EXPECT_EQ(**cache.Get(1, [] { return absl::StatusOr<int>(7); }), 7);
}

// Whoever makes a plan waits until all threads have asked, so that without single flight each would make its own.
TEST(PlanCache, OneThreadMakesWhatManyWant) {
  PlanCache<int, int> cache(8);
  constexpr int kThreads = 8;
  std::atomic<int> made = 0, asking = 0, wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      ++asking;
      const auto value = cache.Get(5, [&]() -> absl::StatusOr<int> {
        while (asking < kThreads) std::this_thread::yield();
        return ++made;
      });
      if (!value.ok() || **value != 1) ++wrong;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(made, 1);
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace kernd
