// Memory that clients share, in sessions: who may use it, what it is charged for, and when it goes.
#include <gtest/gtest.h>

#include <limits>

#include "kernd/kernels/error.h"
#include "server/core/session_store.h"
#include "tests/support/fake_tensors.h"
#include "tests/support/memfd.h"

namespace kernd::core {
namespace {

constexpr std::int64_t kPage = 4096;

class SessionRegionsTest : public ::testing::Test {
 protected:
  ~SessionRegionsTest() override { EXPECT_EQ(alive_, 0) << "something is still mapped"; }

  SessionStore::MapRegion Map(std::int64_t bytes) {
    return [this, bytes]() -> absl::StatusOr<std::shared_ptr<SharedRegion>> {
      ++maps_;
      const int fd = testing::MakeMemfd(bytes);
      auto region = SharedRegion::Map(fd, bytes);
      close(fd);
      ++alive_;
      (*region)->Keep(std::shared_ptr<void>(this, [this](void*) { --alive_; }));
      return region;
    };
  }
  absl::Status Add(const SessionId& id, std::uint64_t region, std::int64_t bytes) {
    return store_.AddRegion(id, region, bytes, Map(bytes));
  }
  SessionId Open() { return store_.Open(absl::ZeroDuration(), 0).value().id; }
  std::int64_t Used() const { return store_.use().shared_used; }
  static void ExpectError(const absl::Status& status, absl::StatusCode code, std::string_view why) {
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_EQ(DetailOf(status).reason, why) << status;
  }

  int alive_ = 0, maps_ = 0;
  ByteBudget device_{1 << 20};
  testing::FakeTensors tensors_;
  SteadyTime now_ = SteadyTime() + std::chrono::hours(1);
  SessionStore store_{{.resident_limit = 1 << 20,
                       .session_quota = 1 << 20,
                       .max_sessions = 4,
                       .shared_limit = 8 * kPage,
                       .default_lease = absl::Seconds(10),
                       .max_lease = absl::Seconds(60),
                       .fill_timeout = absl::Seconds(3)},
                      {.memory = device_,
                       .allocate = [this](std::int64_t bytes) { return tensors_.Allocate(bytes); },
                       .now = [this] { return now_; }}};
};

TEST_F(SessionRegionsTest, AreTheirSessions) {
  const SessionId mine = Open(), other = Open();
  ASSERT_TRUE(Add(mine, 7, 100).ok());
  const auto found = store_.FindRegion(mine, 7);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ((*found)->bytes(), 100);
  ExpectError(store_.FindRegion(other, 7).status(), absl::StatusCode::kNotFound, reason::kRegionNotFound);
  ExpectError(store_.RemoveRegion(other, 7), absl::StatusCode::kNotFound, reason::kRegionNotFound);
  ExpectError(store_.FindRegion(mine, 8).status(), absl::StatusCode::kNotFound, reason::kRegionNotFound);
  EXPECT_TRUE(Add(other, 7, 100).ok()) << "ids are each session's own";
  ExpectError(store_.FindRegion(SessionId{}, 7).status(), absl::StatusCode::kNotFound, reason::kSessionNotFound);
  ExpectError(Add(SessionId{}, 7, 100), absl::StatusCode::kNotFound, reason::kSessionNotFound);
  EXPECT_EQ(maps_, 2) << "nothing is mapped for nobody";
  store_.Close(mine).value();
  store_.Close(other).value();
}

TEST_F(SessionRegionsTest, ATakenIdStaysWhatItIs) {
  const SessionId id = Open();
  ASSERT_TRUE(Add(id, 1, 100).ok());
  ExpectError(Add(id, 1, 200), absl::StatusCode::kAlreadyExists, reason::kInvalidField);
  EXPECT_EQ(maps_, 1);
  // Taken while the second one was mapped.
  const absl::Status late = store_.AddRegion(id, 2, 200, [&] {
    EXPECT_TRUE(Add(id, 2, 300).ok());
    return Map(200)();
  });
  ExpectError(late, absl::StatusCode::kAlreadyExists, reason::kInvalidField);
  EXPECT_EQ(store_.FindRegion(id, 2).value()->bytes(), 300);
  EXPECT_EQ(alive_, 2);
  EXPECT_EQ(Used(), 2 * kPage);
  store_.Close(id).value();
}

TEST_F(SessionRegionsTest, AreChargedInPagesUntilTheLastUserLetsGo) {
  const SessionId id = Open(), other = Open();
  ASSERT_TRUE(Add(id, 1, kPage + 1).ok());
  EXPECT_EQ(Used(), 2 * kPage);
  ExpectError(Add(other, 1, 9 * kPage), absl::StatusCode::kResourceExhausted, reason::kTooLarge);
  ExpectError(Add(other, 1, std::numeric_limits<std::int64_t>::max()), absl::StatusCode::kResourceExhausted,
              reason::kTooLarge);
  const absl::Status full = Add(other, 1, 7 * kPage);
  ExpectError(full, absl::StatusCode::kResourceExhausted, reason::kMemoryFull);
  EXPECT_TRUE(DetailOf(full).retry_after.has_value());
  for (const std::int64_t bytes : {0, -1}) {
    ExpectError(Add(other, 1, bytes), absl::StatusCode::kInvalidArgument, reason::kInvalidField);
  }
  std::shared_ptr<SharedRegion> call = store_.FindRegion(id, 1).value();
  ASSERT_TRUE(store_.RemoveRegion(id, 1).ok());
  EXPECT_EQ(Used(), 2 * kPage);
  EXPECT_EQ(alive_, 1);
  call->data()[kPage] = std::byte{1};  // still mapped
  ASSERT_TRUE(Add(id, 1, 1).ok()) << "the id is free";
  call.reset();
  EXPECT_EQ(Used(), kPage);
  EXPECT_TRUE(Add(other, 1, 7 * kPage).ok());
  EXPECT_EQ(store_.use().shared_peak, 8 * kPage);
  store_.Close(id).value();
  store_.Close(other).value();
  EXPECT_EQ(Used(), 0);
}

TEST_F(SessionRegionsTest, GoWithTheirSession) {
  const SessionId id = Open(), expired = Open();
  ASSERT_TRUE(Add(id, 1, 1).ok() && Add(id, 2, 1).ok() && Add(expired, 1, 1).ok());
  const std::shared_ptr<SharedRegion> call = store_.FindRegion(id, 2).value();
  store_.Close(id).value();
  EXPECT_EQ(alive_, 2);
  now_ += std::chrono::seconds(11);
  store_.Sweep();
  EXPECT_EQ(alive_, 1) << "what a call uses";
  EXPECT_EQ(Used(), kPage);
}

TEST_F(SessionRegionsTest, WhatIsMappedForASessionThatEndsMeanwhileGoes) {
  const SessionId id = Open();
  const absl::Status status = store_.AddRegion(id, 1, 100, [&] {
    store_.Close(id).value();
    return Map(100)();
  });
  ExpectError(status, absl::StatusCode::kNotFound, reason::kSessionNotFound);
  const SessionId next = Open();
  ExpectError(store_.AddRegion(next, 1, 100, [] { return absl::InternalError("no memory"); }),
              absl::StatusCode::kInternal, "");
  EXPECT_EQ(Used(), 0);
  EXPECT_EQ(alive_, 0);
}

TEST_F(SessionRegionsTest, RenewTheLease) {
  const SessionId id = Open();
  now_ += std::chrono::seconds(9);
  ASSERT_TRUE(Add(id, 1, 1).ok());
  now_ += std::chrono::seconds(9);
  EXPECT_TRUE(store_.FindRegion(id, 1).ok()) << "registering renewed the lease";
  now_ += std::chrono::seconds(9);
  EXPECT_TRUE(store_.RemoveRegion(id, 1).ok()) << "and so did its use";
}

}  // namespace
}  // namespace kernd::core
