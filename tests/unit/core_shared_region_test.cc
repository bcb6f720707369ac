// Memory shared by a client that means no good.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "kernd/kernels/error.h"
#include "server/core/shared_region.h"
#include "tests/support/memfd.h"

namespace kernd::core {
namespace {

using ::testing::HasSubstr;
using testing::MakeMemfd;

constexpr std::int64_t kBytes = 3 * 4096 + 100;

// The refusal of `fd`, which is closed.
absl::Status Refusal(int fd, std::int64_t bytes = kBytes) {
  const auto region = SharedRegion::Map(fd, bytes);
  close(fd);
  return region.status();
}

TEST(SharedRegionTest, IsTheClientsMemory) {
  const int fd = MakeMemfd(kBytes);
  const auto region = SharedRegion::Map(fd, kBytes);
  ASSERT_TRUE(region.ok()) << region.status();
  EXPECT_EQ((*region)->bytes(), kBytes);
  const auto range = (*region)->Range(4000, 200, "q.shared.offset_bytes");
  ASSERT_TRUE(range.ok());
  ASSERT_EQ(pwrite(fd, "hello", 5, 4000), 5);
  EXPECT_EQ(static_cast<char>((*range)[1]), 'e');
  (*range)[1] = std::byte{'a'};
  char read[6] = {};
  ASSERT_EQ(pread(fd, read, 5, 4000), 5);
  EXPECT_STREQ(read, "hallo");
  // Cut short, its last page would kill whoever reads it.
  EXPECT_NE(ftruncate(fd, 10), 0);
  close(fd);
  EXPECT_EQ((*region)->data()[kBytes - 1], std::byte{0});
}

TEST(SharedRegionTest, RefusesWhatCouldBeCutShort) {
  const absl::Status unsealed = Refusal(MakeMemfd(kBytes, F_SEAL_GROW));
  EXPECT_EQ(unsealed.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(unsealed.message()), HasSubstr("F_SEAL_SHRINK"));
  EXPECT_THAT(std::string(Refusal(memfd_create("no seals", 0), 1).message()), HasSubstr("F_SEAL_SHRINK"));
  char path[] = "/tmp/kernd_shared_region_XXXXXX";
  const int file = mkstemp(path);
  ASSERT_EQ(ftruncate(file, kBytes), 0);
  unlink(path);
  EXPECT_THAT(std::string(Refusal(file).message()), HasSubstr("memfd"));
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  close(ends[1]);
  EXPECT_EQ(Refusal(ends[0]).code(), absl::StatusCode::kInvalidArgument);
}

TEST(SharedRegionTest, RefusesWhatCannotHoldResults) {
  const absl::Status sealed = Refusal(MakeMemfd(kBytes, F_SEAL_SHRINK | F_SEAL_WRITE));
  EXPECT_EQ(sealed.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(sealed.message()), HasSubstr("cannot be written"));
}

TEST(SharedRegionTest, RefusesSizesThatAreNotThere) {
  for (const std::int64_t bytes : {kBytes + 1, std::numeric_limits<std::int64_t>::max()}) {
    const absl::Status status = Refusal(MakeMemfd(kBytes), bytes);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_EQ(DetailOf(status).field, "size_bytes");
  }
  for (const std::int64_t bytes : {std::int64_t{0}, std::int64_t{-1}, std::numeric_limits<std::int64_t>::min()}) {
    EXPECT_EQ(Refusal(MakeMemfd(kBytes), bytes).code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(SharedRegionTest, RangesAreInside) {
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  const int fd = MakeMemfd(kBytes);
  const auto region = SharedRegion::Map(fd, kBytes);
  close(fd);
  ASSERT_TRUE(region.ok());
  EXPECT_TRUE((*region)->Range(0, kBytes, "x").ok());
  EXPECT_TRUE((*region)->Range(kBytes, 0, "x").ok());
  for (const auto& [offset, bytes] : std::vector<std::pair<std::int64_t, std::int64_t>>{{0, kBytes + 1},
                                                                                        {1, kBytes},
                                                                                        {kBytes, 1},
                                                                                        {kBytes + 1, 0},
                                                                                        {-1, 1},
                                                                                        {kMax, 1},
                                                                                        {1, kMax},
                                                                                        {kMax, kMax},
                                                                                        {0, -1}}) {
    const auto range = (*region)->Range(offset, bytes, "q.shared.offset_bytes");
    EXPECT_EQ(range.status().code(), absl::StatusCode::kOutOfRange) << offset << " " << bytes;
    EXPECT_EQ(DetailOf(range.status()).field, "q.shared.offset_bytes");
  }
}

TEST(SharedRegionTest, WhatTheDeviceNeedsGoesBeforeTheMapping) {
  const int fd = MakeMemfd(kBytes);
  auto region = *SharedRegion::Map(fd, kBytes);
  close(fd);
  std::byte seen{1};
  region->Keep(std::shared_ptr<void>(region->data(), [&seen](void* data) { seen = *static_cast<std::byte*>(data); }));
  region.reset();
  EXPECT_EQ(seen, std::byte{0}) << "read while it was still mapped";
}

}  // namespace
}  // namespace kernd::core
