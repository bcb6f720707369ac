// server/core: sessions and resident tensors, on a clock of the test's own.
#include "server/core/session_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "server/core/byte_ranges.h"
#include "tests/unit/session_store_case.h"

namespace kernd::core {
namespace {

using ::testing::HasSubstr;

TEST_F(SessionStoreTest, WishesAreCutDownToTheLimits) {
  const auto plain = store.Open(absl::ZeroDuration(), 0).value();
  EXPECT_EQ(plain.lease, absl::Seconds(10));
  EXPECT_EQ(plain.quota, 32 * kKiB);
  const auto modest = store.Open(absl::Seconds(2), kKiB).value();
  EXPECT_EQ(modest.lease, absl::Seconds(2));
  EXPECT_EQ(modest.quota, kKiB);
  const auto greedy = store.Open(absl::InfiniteDuration(), kMost).value();
  EXPECT_EQ(greedy.lease, absl::Seconds(60));
  EXPECT_EQ(greedy.quota, 32 * kKiB);
  EXPECT_NE(plain.id, modest.id);
  EXPECT_EQ(DetailOf(store.Open(-absl::Nanoseconds(1), 0).status()).field, "lease");
  EXPECT_EQ(DetailOf(store.Open(absl::ZeroDuration(), -1).status()).field, "quota_bytes");
}

TEST_F(SessionStoreTest, SessionsAreLimitedAndExpiredOnesMakeRoom) {
  for (int i = 0; i < 4; ++i) Session();
  const absl::Status full = store.Open(absl::ZeroDuration(), 0).status();
  ExpectError(full, absl::StatusCode::kResourceExhausted, reason::kSessionsFull);
  EXPECT_TRUE(DetailOf(full).retry_after.has_value());
  Pass(absl::Seconds(10));
  EXPECT_TRUE(store.Open(absl::ZeroDuration(), 0).ok());
  EXPECT_EQ(store.use().sessions, 1);
  EXPECT_EQ(store.use().expired, 4);
}

TEST_F(SessionStoreTest, AnIdThatIsTakenIsNotGivenTwice) {
  int made = 0;
  SessionStore twins({.resident_limit = kKiB,
                      .session_quota = kKiB,
                      .max_sessions = 4,
                      .default_lease = absl::Seconds(10),
                      .max_lease = absl::Seconds(10)},
                     {.memory = device,
                      .allocate = [this](std::int64_t bytes) { return tensors.Allocate(bytes); },
                      .now = [this] { return now; },
                      .new_id = [&made] { return SessionId{static_cast<std::uint8_t>(made++ / 2)}; }});
  const SessionId first = twins.Open(absl::ZeroDuration(), 0).value().id;
  EXPECT_NE(twins.Open(absl::ZeroDuration(), 0).value().id, first);
  EXPECT_EQ(twins.use().sessions, 2);
}

TEST_F(SessionStoreTest, ATensorIsReadyWhenEveryByteHasCome) {
  const SessionId id = Session();
  const std::string data = Pattern(1000, 1);
  const auto upload = store.BeginPut(id, 7, Bytes(1000), 0).value();
  const auto refused = store.Find(id, 7).status();
  ExpectError(refused, absl::StatusCode::kFailedPrecondition, reason::kNotReady);
  EXPECT_TRUE(DetailOf(refused).retry_after.has_value());
  EXPECT_TRUE(Write(upload, 600, data.substr(600)).ok());  // the end first
  EXPECT_TRUE(Write(upload, 0, data.substr(0, 100)).ok());
  EXPECT_TRUE(Write(upload, 0, data.substr(0, 100)).ok()) << "a chunk that is there is a retry";
  EXPECT_EQ(store.ProgressOf(upload)->received, 500);
  EXPECT_EQ(store.ProgressOf(upload)->state, TensorState::kFilling);
  EXPECT_TRUE(Write(upload, 100, data.substr(100, 500)).ok());
  EXPECT_EQ(store.ProgressOf(upload)->state, TensorState::kReady);
  EXPECT_EQ(store.ProgressOf(upload)->received, 1000);
  EXPECT_EQ(tensors.Text(*store.Find(id, 7)->memory), data);
  EXPECT_EQ(tensors.settled(), 1) << "the device is waited for once, with the last byte";
}

TEST_F(SessionStoreTest, ChunksThatOverlapInPartAreRefused) {
  const SessionId id = Session();
  const auto upload = store.BeginPut(id, 1, Bytes(1000), 0).value();
  ASSERT_TRUE(Write(upload, 200, Pattern(200, 0)).ok());
  for (const auto& [offset, bytes] : std::vector<std::pair<int, int>>{{100, 101}, {399, 2}, {100, 400}, {0, 1000}}) {
    const absl::Status status = Write(upload, offset, Pattern(bytes, 1));
    ExpectError(status, absl::StatusCode::kInvalidArgument, reason::kOverlap);
    EXPECT_THAT(std::string(status.message()), HasSubstr("[200, 400)"));
  }
  EXPECT_TRUE(Write(upload, 250, Pattern(150, 9)).ok()) << "wholly inside";
  EXPECT_TRUE(Write(upload, 100, Pattern(100, 0)).ok()) << "side by side";
  EXPECT_TRUE(Write(upload, 400, Pattern(600, 0)).ok());
  EXPECT_TRUE(Write(upload, 0, Pattern(100, 0)).ok());
  EXPECT_EQ(Facts(id, 1).state, TensorState::kReady);
  EXPECT_EQ(tensors.Text(*store.Find(id, 1)->memory).substr(200, 200), Pattern(200, 0)) << "the first one counts";
}

TEST_F(SessionStoreTest, ChunksBeyondTheEndAreRefused) {
  const SessionId id = Session();
  const auto upload = store.BeginPut(id, 1, Bytes(100), 0).value();
  for (const std::int64_t offset : {std::int64_t{91}, std::int64_t{100}, std::int64_t{-1}, kMost, -kMost, kMost - 5}) {
    ExpectError(Write(upload, offset, Pattern(10, 0)), absl::StatusCode::kOutOfRange, reason::kOutOfRange);
  }
  ExpectError(Write(upload, 0, Pattern(101, 0)), absl::StatusCode::kOutOfRange, reason::kOutOfRange);
  EXPECT_EQ(store.ProgressOf(upload)->received, 0);
  EXPECT_TRUE(Write(upload, 90, Pattern(10, 0)).ok());
  EXPECT_TRUE(Write(upload, 100, "").ok()) << "no byte, at the end";
}

TEST_F(SessionStoreTest, ScatteredBytesDoNotPileUp) {
  const SessionId id = Session();
  const std::int64_t size = 9000, most = static_cast<std::int64_t>(ByteRanges::PiecesFor(size));
  ASSERT_EQ(most, 18) << "sixteen, and one for each 4 KiB";
  const auto upload = store.BeginPut(id, 1, Bytes(size), 0).value();
  for (std::int64_t i = 0; i < most; ++i) ASSERT_TRUE(Write(upload, 2 * i, "x").ok()) << i;
  ExpectError(Write(upload, 2 * most, "x"), absl::StatusCode::kInvalidArgument, reason::kInvalidField);
  EXPECT_TRUE(Write(upload, 1, "x").ok()) << "a gap that is filled makes room";
  EXPECT_TRUE(Write(upload, 2 * most, "x").ok());
  EXPECT_EQ(ByteRanges::PiecesFor(std::int64_t{1} << 40), ByteRanges::kMaxPieces);
}

TEST_F(SessionStoreTest, EmptyTensorsAreReadyAtOnce) {
  const SessionId id = Session();
  const auto upload = store.BeginPut(id, 1, {.dtype = DataType::kF32, .shape = {4, 0, 2}}, 0).value();
  EXPECT_EQ(store.ProgressOf(upload)->state, TensorState::kReady);
  EXPECT_EQ(store.Find(id, 1)->memory->bytes(), 0);
  EXPECT_EQ(device.used(), kRecord);
}

TEST_F(SessionStoreTest, StreamsOfOneUploadFillOneTensor) {
  const SessionId id = Session();
  const auto first = store.BeginPut(id, 1, Bytes(200), 3).value();
  const auto second = store.BeginPut(id, 1, Bytes(200), 3).value();
  EXPECT_EQ(device.used(), TensorCharge::kUnit + kRecord) << "charged once";
  EXPECT_TRUE(Write(second, 100, Pattern(100, 0)).ok());
  EXPECT_TRUE(Write(first, 0, Pattern(100, 0)).ok());
  EXPECT_EQ(store.ProgressOf(second)->state, TensorState::kReady);
  // The same upload once more, as after a lost reply.
  const auto again = store.BeginPut(id, 1, Bytes(200), 3).value();
  EXPECT_TRUE(Write(again, 50, Pattern(100, 9)).ok()) << "taken and ignored";
  EXPECT_EQ(tensors.Text(*store.Find(id, 1)->memory).substr(0, 100), Pattern(100, 0));
  const absl::Status other = store.BeginPut(id, 1, Bytes(201), 3).status();
  ExpectError(other, absl::StatusCode::kInvalidArgument, reason::kInvalidField);
  EXPECT_EQ(DetailOf(other).field, "shape");
}

TEST_F(SessionStoreTest, HigherVersionsReplaceAndLowerOnesAreRefused) {
  const SessionId id = Session();
  PutWhole(id, 1, 100, 5, 1);
  const auto in_use = store.Find(id, 1).value();
  ExpectError(store.BeginPut(id, 1, Bytes(100), 4).status(), absl::StatusCode::kFailedPrecondition,
              reason::kOldVersion);
  const auto next = store.BeginPut(id, 1, Bytes(50), 6).value();
  EXPECT_EQ(Facts(id, 1).state, TensorState::kFilling);
  EXPECT_EQ(tensors.Text(*in_use.memory), Pattern(100, 1)) << "calls in flight keep the old one";
  ASSERT_TRUE(Write(next, 0, Pattern(50, 2)).ok());
  EXPECT_EQ(tensors.Text(*store.Find(id, 1)->memory), Pattern(50, 2));
  // One that is replaced while it is filled.
  const auto slow = store.BeginPut(id, 2, Bytes(100), 0).value();
  ASSERT_TRUE(store.BeginPut(id, 2, Bytes(100), 1).ok());
  ExpectError(Write(slow, 0, Pattern(100, 0)), absl::StatusCode::kNotFound, reason::kTensorNotFound);
  EXPECT_FALSE(store.ProgressOf(slow).ok());
}

TEST_F(SessionStoreTest, QuotasRefuseAndOthersAreUnharmed) {
  const SessionId greedy = Session(), other = Session();
  std::vector<SessionStore::Upload> half_open;
  for (std::uint64_t i = 0; i < 4; ++i)
    half_open.push_back(store.BeginPut(greedy, i, Bytes(8 * kKiB - kRecord), 0).value());
  const absl::Status full = store.BeginPut(greedy, 9, Bytes(1), 0).status();
  ExpectError(full, absl::StatusCode::kResourceExhausted, reason::kQuotaFull);
  EXPECT_EQ(DetailOf(full).metadata.at("available_bytes"), "0");
  PutWhole(other, 9, 32 * kKiB - kRecord);
  const SessionId third = Session();
  const absl::Status none_left = store.BeginPut(third, 1, Bytes(1), 0).status();
  ExpectError(none_left, absl::StatusCode::kResourceExhausted, reason::kMemoryFull);
  EXPECT_TRUE(DetailOf(none_left).retry_after.has_value());
  EXPECT_EQ(store.Close(greedy).value(), 32 * kKiB);
  EXPECT_TRUE(store.BeginPut(third, 1, Bytes(1), 0).ok());
  EXPECT_EQ(device.used(), 32 * kKiB + TensorCharge::kUnit + kRecord);
}

TEST_F(SessionStoreTest, WhatCanNeverFitIsToldSo) {
  const SessionId id = Session();
  for (const std::int64_t bytes : {32 * kKiB - kRecord + 1, std::int64_t{1'000'000'000'000'000'000}, kMost}) {
    ExpectError(store.BeginPut(id, 1, Bytes(bytes), 0).status(), absl::StatusCode::kResourceExhausted,
                reason::kTooLarge);
  }
  EXPECT_TRUE(store.List(id)->tensors.empty());
  EXPECT_EQ(device.used(), 0);
  EXPECT_EQ(tensors.allocations(), 0);
}

TEST_F(SessionStoreTest, TheDevicesMemoryIsSharedWithCalls) {
  const SessionId id = Session();
  ByteBudget::Lease calls;
  ASSERT_TRUE(device.Reserve(120 * kKiB, calls));
  ExpectError(store.BeginPut(id, 1, Bytes(16 * kKiB), 0).status(), absl::StatusCode::kResourceExhausted,
              reason::kMemoryFull);
  EXPECT_EQ(store.List(id)->used, 0) << "a refused tensor charges nothing";
  calls.Reset();
  PutWhole(id, 1, 16 * kKiB);
  EXPECT_EQ(device.used(), 16 * kKiB + kRecord);
}

TEST_F(SessionStoreTest, AReplacementMayTakeTheOldOnesPlace) {
  const SessionId id = Session();
  PutWhole(id, 1, 20 * kKiB, 0);
  PutWhole(id, 1, 30 * kKiB, 1);  // both together would pass the quota
  {
    const auto in_use = store.Find(id, 1).value();
    ExpectError(store.BeginPut(id, 1, Bytes(30 * kKiB), 2).status(), absl::StatusCode::kResourceExhausted,
                reason::kQuotaFull);
  }
  EXPECT_EQ(Facts(id, 1).state, TensorState::kReady) << "refused: the old one stays";
  ExpectError(store.BeginPut(id, 1, Bytes(33 * kKiB), 2).status(), absl::StatusCode::kResourceExhausted,
              reason::kTooLarge);
  EXPECT_EQ(Facts(id, 1).state, TensorState::kReady);
}

TEST_F(SessionStoreTest, TensorsInUseOutliveDeleteAndClose) {
  const SessionId id = Session();
  PutWhole(id, 1, 10 * kKiB, 0, 1);
  PutWhole(id, 2, 1 * kKiB, 0, 2);
  auto one = store.Find(id, 1).value();
  auto two = store.Find(id, 2).value();
  auto again = store.Find(id, 1).value();
  EXPECT_EQ(Facts(id, 1).users, 2);
  EXPECT_EQ(store.Delete(id, {1, 99}).value(), kRecord) << "no byte of it is free yet";
  ExpectError(store.Find(id, 1).status(), absl::StatusCode::kNotFound, reason::kTensorNotFound);
  EXPECT_EQ(store.List(id)->used, 11 * kKiB + kRecord) << "charged as long as it is used";
  EXPECT_EQ(tensors.Text(*one.memory), Pattern(10 * kKiB, 1));
  one = {};
  EXPECT_EQ(store.List(id)->used, 11 * kKiB + kRecord);
  again = {};
  EXPECT_EQ(store.List(id)->used, 1 * kKiB + kRecord);
  EXPECT_EQ(store.Close(id).value(), kRecord);
  ExpectError(store.Find(id, 2).status(), absl::StatusCode::kNotFound, reason::kSessionNotFound);
  EXPECT_EQ(tensors.Text(*two.memory), Pattern(1 * kKiB, 2));
  EXPECT_EQ(device.used(), 1 * kKiB);
  two = {};
  EXPECT_EQ(device.used(), 0);
  EXPECT_EQ(tensors.alive(), 0);
}

TEST_F(SessionStoreTest, EveryUseRenewsTheLease) {
  const SessionId id = Session();
  PutWhole(id, 1, 100);
  const auto upload = store.BeginPut(id, 2, Bytes(100), 0).value();
  const std::vector<std::pair<const char*, std::function<absl::Status()>>> uses = {
      {"BeginPut", [&] { return store.BeginPut(id, 3, Bytes(100), 0).status(); }},
      {"Write", [&] { return Write(upload, 0, Pattern(10, 0)); }},
      {"Find", [&] { return store.Find(id, 1).status(); }},
      {"NewResult", [&] { return store.NewResult(id, Bytes(10)).status(); }},
      {"Publish", [&] { return Publish(id, 4, store.NewResult(id, Bytes(10)).value()); }},
      {"Delete", [&] { return store.Delete(id, {4}).status(); }},
      {"KeepOpen", [&] { return store.KeepOpen(id).status(); }},
      {"List", [&] { return store.List(id).status(); }},
      {"Describe", [&] { return store.Describe(id, 1).status(); }},
  };
  for (const auto& [name, use] : uses) {
    Pass(absl::Seconds(10) - absl::Nanoseconds(1));
    EXPECT_TRUE(use().ok()) << name << " in the last moment: " << use();
  }
  Pass(absl::Seconds(4));
  EXPECT_EQ(store.List(id)->lease_left, absl::Seconds(6));
  Pass(absl::Seconds(10));
  for (const auto& [name, use] : uses) {
    if (std::string_view(name) == "Publish") continue;
    ExpectError(use(), absl::StatusCode::kNotFound, reason::kSessionNotFound);
  }
  ExpectError(store.Close(id).status(), absl::StatusCode::kNotFound, reason::kSessionNotFound);
  EXPECT_EQ(device.used(), 0) << "what it held is free without a sweep, once somebody asks";
}

TEST_F(SessionStoreTest, ExpiryFreesWithoutAnybodyAsking) {
  const SessionId short_lease = Session(0, absl::Seconds(5)), long_lease = Session(0, absl::Seconds(50));
  PutWhole(short_lease, 1, 2 * kKiB);
  PutWhole(long_lease, 1, 4 * kKiB);
  Pass(absl::Seconds(5) - absl::Nanoseconds(1));
  store.Sweep();
  EXPECT_EQ(device.used(), 6 * kKiB + 2 * kRecord);
  Pass(absl::Nanoseconds(1));
  store.Sweep();
  EXPECT_EQ(device.used(), 4 * kKiB + kRecord);
  EXPECT_EQ(store.use().sessions, 1);
  EXPECT_EQ(store.use().expired, 1);
}

TEST_F(SessionStoreTest, UploadsWithoutChunksFail) {
  const SessionId id = Session();
  const auto upload = store.BeginPut(id, 1, Bytes(2 * kKiB), 0).value();
  Pass(absl::Seconds(2));
  ASSERT_TRUE(Write(upload, 0, Pattern(100, 0)).ok());
  Pass(absl::Seconds(2));
  store.Sweep();
  EXPECT_EQ(Facts(id, 1).state, TensorState::kFilling) << "a chunk came 2 s ago";
  Pass(absl::Seconds(1));
  store.Sweep();
  EXPECT_EQ(Facts(id, 1).state, TensorState::kFailed);
  EXPECT_EQ(device.used(), kRecord) << "and its memory is given back";
  EXPECT_EQ(store.use().abandoned, 1);
  ExpectError(Write(upload, 100, Pattern(100, 0)), absl::StatusCode::kFailedPrecondition, reason::kFillFailed);
  ExpectError(store.Find(id, 1).status(), absl::StatusCode::kFailedPrecondition, reason::kFillFailed);
  PutWhole(id, 1, kKiB, 0, 5);  // the same version begins again, with any spec
  EXPECT_EQ(tensors.Text(*store.Find(id, 1)->memory), Pattern(kKiB, 5));
  store.Sweep();
  EXPECT_EQ(store.use().filling, 0);
}

TEST_F(SessionStoreTest, FailuresOfTheDeviceLeaveNothingBehind) {
  const SessionId id = Session();
  tensors.FailNext(absl::InternalError("no memory today"));
  EXPECT_TRUE(absl::IsInternal(store.BeginPut(id, 1, Bytes(100), 0).status()));
  EXPECT_TRUE(store.List(id)->tensors.empty());
  EXPECT_EQ(device.used(), 0);
  tensors.FailNext(absl::InternalError("nor results"));
  EXPECT_TRUE(absl::IsInternal(store.NewResult(id, Bytes(100)).status()));
  EXPECT_EQ(device.used(), 0);
  for (const bool with_the_last : {false, true}) {
    const auto upload = store.BeginPut(id, 1, Bytes(100), 0).value();
    tensors.FailNextWrite(absl::InternalError("the copy failed"));
    EXPECT_TRUE(absl::IsInternal(Write(upload, 0, Pattern(with_the_last ? 100 : 50, 0))));
    EXPECT_EQ(Facts(id, 1).state, TensorState::kFailed);
    EXPECT_EQ(device.used(), kRecord) << "of what became of it";
  }
  const auto upload = store.BeginPut(id, 1, Bytes(100), 0).value();
  tensors.FailNextSettle(absl::InternalError("the copies did not end well"));
  EXPECT_TRUE(absl::IsInternal(Write(upload, 0, Pattern(100, 0))));
  EXPECT_EQ(Facts(id, 1).state, TensorState::kFailed);
  EXPECT_EQ(store.use().filling, 0);
}

TEST_F(SessionStoreTest, ResultsAreSeenOncePublished) {
  const SessionId id = Session();
  auto result = store.NewResult(id, Bytes(kKiB)).value();
  EXPECT_EQ(tensors.settled(), 1) << "any stream of the device may use it";
  EXPECT_EQ(store.List(id)->used, kKiB + kRecord);
  ExpectError(store.Find(id, 1).status(), absl::StatusCode::kNotFound, reason::kTensorNotFound);
  ASSERT_TRUE(Publish(id, 1, std::move(result)).ok());
  EXPECT_EQ(Facts(id, 1).state, TensorState::kReady);
  EXPECT_EQ(Facts(id, 1).users, 0);
  // In the place of the one before, whose readers keep it.
  const auto reader = store.Find(id, 1).value();
  ASSERT_TRUE(Publish(id, 1, store.NewResult(id, Bytes(2 * kKiB)).value()).ok());
  EXPECT_EQ(store.Find(id, 1)->spec, Bytes(2 * kKiB));
  EXPECT_EQ(reader.spec, Bytes(kKiB));
  // One whose call failed.
  store.NewResult(id, Bytes(4 * kKiB)).value();
  EXPECT_EQ(store.List(id)->used, 3 * kKiB + kRecord);
  // One whose session ended meanwhile.
  auto late = store.NewResult(id, Bytes(kKiB)).value();
  ASSERT_TRUE(store.Close(id).ok());
  ExpectError(Publish(id, 2, std::move(late)), absl::StatusCode::kNotFound, reason::kSessionNotFound);
  EXPECT_EQ(device.used(), kKiB) << "the reader's";
}

TEST_F(SessionStoreTest, SessionsDoNotSeeEachOther) {
  const SessionId mine = Session(), theirs = Session();
  PutWhole(mine, 1, 100, 0, 1);
  PutWhole(theirs, 1, 100, 0, 2);
  EXPECT_EQ(tensors.Text(*store.Find(mine, 1)->memory), Pattern(100, 1));
  ASSERT_TRUE(store.Delete(theirs, {1}).ok());
  EXPECT_TRUE(store.Find(mine, 1).ok());
  EXPECT_FALSE(store.Find(theirs, 1).ok());
  EXPECT_FALSE(store.Find(SessionId{}, 1).ok());
}

TEST_F(SessionStoreTest, ThoseWhoJoinWaitForTheAllocation) {
  const SessionId id = Session();
  tensors.Block();
  std::thread first([&] { EXPECT_TRUE(store.BeginPut(id, 1, Bytes(100), 0).ok()); });
  tensors.AwaitBlocked();
  std::atomic<bool> joined = false;
  std::thread second([&] {
    const auto upload = store.BeginPut(id, 1, Bytes(100), 0);
    joined = true;
    ASSERT_TRUE(upload.ok()) << upload.status();
    EXPECT_TRUE(Write(*upload, 0, Pattern(100, 1)).ok());
  });
  EXPECT_TRUE(store.Find(Session(), 1).status().code() == absl::StatusCode::kNotFound) << "others go on meanwhile";
  EXPECT_FALSE(joined);
  tensors.Unblock();
  first.join();
  second.join();
  EXPECT_EQ(tensors.Text(*store.Find(id, 1)->memory), Pattern(100, 1));
}

TEST_F(SessionStoreTest, ManyStreamsFillWhileOthersReadAndDelete) {
  const SessionId id = Session();
  constexpr int kStreams = 4, kChunks = 64, kChunk = 400, kRounds = 20;
  const std::string data = Pattern(kChunks * kChunk, 3);
  for (int round = 0; round < kRounds; ++round) {
    std::vector<std::thread> threads;
    for (int s = 0; s < kStreams; ++s) {
      threads.emplace_back([&, s] {
        const auto upload = store.BeginPut(id, 1, Bytes(kChunks * kChunk), static_cast<std::uint64_t>(round)).value();
        // Every chunk comes from two streams.
        for (int i = 0; i < kChunks; ++i) {
          if (i % kStreams != s && (i + 1) % kStreams != s) continue;
          EXPECT_TRUE(Write(upload, i * kChunk, data.substr(static_cast<std::size_t>(i * kChunk), kChunk)).ok());
        }
      });
    }
    threads.emplace_back([&] {
      if (const auto found = store.Find(id, 1); found.ok()) {
        EXPECT_EQ(tensors.Text(*found->memory), data);
      }
      store.Sweep();
      (void)store.List(id);
    });
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(tensors.Text(*store.Find(id, 1)->memory), data) << "round " << round;
  }
  ASSERT_TRUE(store.Delete(id, {1}).ok());
  EXPECT_EQ(device.used(), 0);
}

}  // namespace
}  // namespace kernd::core
