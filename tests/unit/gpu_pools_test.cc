// The pools of the GPU backend, on a GPU made of host memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "kernd/kernels/error.h"
#include "server/gpu/device_pool.h"
#include "server/gpu/pinned_pool.h"
#include "tests/support/fake_gpu.h"

namespace kernd::gpu {
namespace {

using testing::FakeGpu;

constexpr absl::Duration kNoPatience = absl::ZeroDuration();

std::unique_ptr<PinnedPool> Pinned(FakeGpu& gpu, std::int64_t bytes) {
  auto pool = PinnedPool::Create(gpu, bytes);
  EXPECT_TRUE(pool.ok()) << pool.status();
  return *std::move(pool);
}

// Any order of taking and giving back: buffers never overlap, the sums are right, and in the end the slab is whole.
TEST(PinnedPool, AgreesWithAModel) {
  FakeGpu gpu;
  constexpr std::int64_t kSlab = 1 << 20;
  const auto pool = Pinned(gpu, kSlab);
  std::mt19937_64 random(7);
  std::vector<core::HostBuffer> live;
  for (int step = 0; step < 20000; ++step) {
    SCOPED_TRACE(step);
    if (live.empty() || random() % 5 < 3) {
      const auto bytes = static_cast<std::int64_t>(1 + random() % (random() % 8 == 0 ? 300000 : 9000));
      auto buffer = pool->Allocate(bytes, kNoPatience);
      ASSERT_TRUE(buffer.ok());
      ASSERT_EQ(buffer->size(), bytes);
      std::memset(buffer->data(), step & 0xff, static_cast<std::size_t>(bytes));
      live.push_back(*std::move(buffer));
    } else {
      const std::size_t index = random() % live.size();
      const auto* const data = reinterpret_cast<const unsigned char*>(live[index].data());
      ASSERT_TRUE(std::all_of(data, data + live[index].size(), [&](unsigned char c) { return c == data[0]; }))
          << "somebody wrote into this buffer";
      std::swap(live[index], live.back());
      live.pop_back();
    }
    ASSERT_LE(pool->use().used, kSlab);
  }
  EXPECT_GT(pool->use().pageable, 0) << "the slab was never full: the test is too small";
  live.clear();
  EXPECT_EQ(pool->use().used, 0);
  const std::int64_t pageable = pool->use().pageable;
  EXPECT_TRUE(pool->Allocate(kSlab, kNoPatience).ok());
  EXPECT_EQ(pool->use().pageable, pageable) << "the slab did not come together again";
}

TEST(PinnedPool, CountsWhatItRounds) {
  FakeGpu gpu;
  const auto pool = Pinned(gpu, 1 << 20);
  const auto buffer = pool->Allocate(1, kNoPatience);
  ASSERT_TRUE(buffer.ok());
  EXPECT_EQ(pool->use().used, PinnedPool::Rounded(1));
  EXPECT_EQ(PinnedPool::Rounded(0), 0);
  EXPECT_EQ(PinnedPool::Rounded(std::numeric_limits<std::int64_t>::max()), std::numeric_limits<std::int64_t>::max());
}

TEST(PinnedPool, WaitsForRoom) {
  FakeGpu gpu;
  const auto pool = Pinned(gpu, 8192);
  auto first = pool->Allocate(8192, kNoPatience);
  ASSERT_TRUE(first.ok());
  absl::Notification got;
  std::thread other([&] {
    const auto second = pool->Allocate(4096, absl::Seconds(20));
    EXPECT_TRUE(second.ok());
    got.Notify();
  });
  while (pool->use().waits == 0) std::this_thread::yield();
  EXPECT_FALSE(got.HasBeenNotified());
  *first = core::HostBuffer();
  other.join();
  EXPECT_EQ(pool->use().pageable, 0);
}

TEST(PinnedPool, IsNeverAReasonToFail) {
  FakeGpu gpu;
  const auto pool = Pinned(gpu, 4096);
  const auto larger = pool->Allocate(1 << 20, absl::InfiniteDuration());  // never fits: must not wait
  ASSERT_TRUE(larger.ok());
  EXPECT_EQ(larger->size(), 1 << 20);
  const auto none = Pinned(gpu, 0);
  EXPECT_TRUE(none->Allocate(10, absl::InfiniteDuration()).ok());
  EXPECT_EQ(gpu.alive().pinned, 1);
}

std::unique_ptr<DevicePool> Device(FakeGpu& gpu, std::int64_t limit, std::int64_t primed = 0) {
  auto pool = DevicePool::Create(gpu, limit, primed);
  EXPECT_TRUE(pool.ok()) << pool.status();
  return *std::move(pool);
}

TEST(DevicePool, IsPrimedAndCountsFromZero) {
  FakeGpu gpu;
  const auto pool = Device(gpu, 1 << 20, 1 << 18);
  EXPECT_EQ(*pool->reserved(), 1 << 18);
  EXPECT_EQ(pool->use().used, 0);
  EXPECT_EQ(pool->use().peak, 0);
  EXPECT_EQ(*pool->Trim(), 1 << 18);
  EXPECT_EQ(*pool->reserved(), 0);
}

TEST(DevicePool, MorePrimedThanTheDeviceHasIsAnError) {
  FakeGpu gpu;
  gpu.memory = 1 << 20;
  EXPECT_TRUE(absl::IsResourceExhausted(DevicePool::Create(gpu, 1 << 24, 1 << 22).status()));
  EXPECT_EQ(gpu.alive(), FakeGpu::Alive());
}

TEST(DevicePool, WaitsForBlocksThatAreOnTheirWayBack) {
  FakeGpu gpu;
  const auto pool = Device(gpu, 1000);
  const Stream stream = *gpu.CreateStream();
  { ASSERT_TRUE(pool->Allocate(1000, stream).ok()); }
  const auto second = pool->Allocate(1000, stream);  // the first is freed on the stream, which nobody has waited for
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(pool->use().retries, 1);
  EXPECT_EQ(pool->use().used, 1000);
  gpu.Synchronize(stream).IgnoreError();
}

TEST(DevicePool, SaysNoWhenOthersHoldTheDevice) {
  FakeGpu gpu;
  gpu.memory = 1500;
  const auto ours = Device(gpu, 1000), theirs = Device(gpu, 1000);
  const Stream stream = *gpu.CreateStream();
  const auto held = theirs->Allocate(1000, stream);
  ASSERT_TRUE(held.ok());
  const absl::Status refused = ours->Allocate(1000, stream).status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused));
  EXPECT_EQ(DetailOf(refused).reason, reason::kMemoryFull);
  EXPECT_TRUE(DetailOf(refused).retry_after.has_value());
  EXPECT_EQ(ours->use().failures, 1);
  EXPECT_EQ(ours->use().used, 0);
  EXPECT_TRUE(ours->Allocate(500, stream).ok()) << "it goes on";
}

TEST(DevicePool, AnEmptyBlockTakesNothing) {
  FakeGpu gpu;
  const auto pool = Device(gpu, 1000);
  const auto block = pool->Allocate(0, nullptr);
  ASSERT_TRUE(block.ok());
  EXPECT_EQ(block->data(), nullptr);
  EXPECT_EQ(gpu.calls("Allocate"), 0);
}

}  // namespace
}  // namespace kernd::gpu
