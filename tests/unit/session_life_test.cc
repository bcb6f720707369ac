// server/core: how long sessions live, and what takes a tensor's place, or does not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "server/core/session_records.h"
#include "tests/unit/session_store_case.h"

namespace kernd::core {
namespace {

using ::testing::HasSubstr;

constexpr std::uint64_t kHighest = std::numeric_limits<std::uint64_t>::max();

TEST_F(SessionStoreTest, NoSessionExpiresUnderWhatIsUnderWay) {
  const SessionId id = Session();
  Session();  // one that nobody uses
  PutWhole(id, 1, kKiB);
  auto call = store.KeepOpen(id).value(), transfer = store.KeepOpen(id).value();
  Pass(absl::Seconds(100));
  store.Sweep();
  EXPECT_EQ(store.use().sessions, 1) << "the idle one is over";
  EXPECT_EQ(store.List(id)->lease_left, absl::Seconds(10)) << "it has not begun";
  call = nullptr;
  Pass(absl::Seconds(100));
  store.Sweep();
  EXPECT_TRUE(store.Describe(id, 1).ok()) << "one of them is still under way";
  Pass(absl::Seconds(100));
  transfer = nullptr;
  Pass(absl::Seconds(10) - absl::Nanoseconds(1));
  store.Sweep();
  EXPECT_EQ(store.use().sessions, 1) << "the lease begins with the end of the last";
  Pass(absl::Nanoseconds(1));
  store.Sweep();
  EXPECT_EQ(store.use().sessions, 0);
  EXPECT_EQ(store.use().expired, 2);
  ExpectError(store.KeepOpen(id).status(), absl::StatusCode::kNotFound, reason::kSessionNotFound);
}

TEST_F(SessionStoreTest, WhatIsUnderWayDoesNotKeepASessionFromBeingClosed) {
  const SessionId id = Session();
  PutWhole(id, 1, kKiB);
  const auto call = store.KeepOpen(id).value();
  EXPECT_EQ(store.Close(id).value(), kKiB + kRecord);
  ExpectError(store.Find(id, 1).status(), absl::StatusCode::kNotFound, reason::kSessionNotFound);
  EXPECT_EQ(store.use().sessions, 0);
}

TEST_F(SessionStoreTest, LateStreamsOfADeletedUploadDoNotReviveIt) {
  const SessionId id = Session();
  const auto first = store.BeginPut(id, 1, Bytes(200), 7).value();
  ASSERT_TRUE(Write(first, 0, Pattern(100, 0)).ok());
  ASSERT_TRUE(store.Delete(id, {1}).ok());
  ExpectError(Write(first, 100, Pattern(100, 0)), absl::StatusCode::kNotFound, reason::kTensorNotFound);
  const absl::Status late = store.BeginPut(id, 1, Bytes(200), 7).status();
  ExpectError(late, absl::StatusCode::kNotFound, reason::kTensorNotFound);
  EXPECT_EQ(DetailOf(late).field, "id");
  EXPECT_THAT(std::string(late.message()), HasSubstr("version 7"));
  ExpectError(store.BeginPut(id, 1, Bytes(200), 6).status(), absl::StatusCode::kNotFound, reason::kTensorNotFound);
  EXPECT_TRUE(store.List(id)->tensors.empty());
  EXPECT_EQ(device.used(), 0);
  // What is put anew under the id has a higher version, or none; and no late stream takes it for its own.
  PutWhole(id, 1, 200, 0, 5);
  ExpectError(store.BeginPut(id, 1, Bytes(200), 7).status(), absl::StatusCode::kNotFound, reason::kTensorNotFound);
  EXPECT_EQ(tensors.Text(*store.Find(id, 1)->memory), Pattern(200, 5));
  PutWhole(id, 1, 200, 8, 6);
  EXPECT_EQ(tensors.Text(*store.Find(id, 1)->memory), Pattern(200, 6));
  // Others are not meant: another id, another session.
  PutWhole(id, 2, 200, 7);
  PutWhole(Session(), 1, 200, 7);
}

TEST_F(SessionStoreTest, UploadsWithoutAVersionEndWithoutATrace) {
  const SessionId id = Session();
  ASSERT_TRUE(store.BeginPut(id, 1, Bytes(200), 0).ok());
  ASSERT_TRUE(store.Delete(id, {1}).ok());
  PutWhole(id, 1, 100, 0, 3);
  EXPECT_EQ(tensors.Text(*store.Find(id, 1)->memory), Pattern(100, 3));
}

// A result takes the place of an upload, and is deleted: streams of that upload are still late.
TEST_F(SessionStoreTest, ResultsRememberTheUploadsBeforeThem) {
  const SessionId id = Session();
  ASSERT_TRUE(store.BeginPut(id, 1, Bytes(200), 7).ok());
  ASSERT_TRUE(Publish(id, 1, store.NewResult(id, Bytes(100)).value()).ok());
  EXPECT_EQ(Facts(id, 1).version, 8u);
  ASSERT_TRUE(store.Delete(id, {1}).ok());
  ExpectError(store.BeginPut(id, 1, Bytes(200), 7).status(), absl::StatusCode::kNotFound, reason::kTensorNotFound);
  // And a result that comes after the Delete is later than what was deleted.
  ASSERT_TRUE(Publish(id, 1, store.NewResult(id, Bytes(100)).value()).ok());
  EXPECT_EQ(Facts(id, 1).version, 8u);
  ExpectError(store.BeginPut(id, 1, Bytes(200), 7).status(), absl::StatusCode::kNotFound, reason::kTensorNotFound);
  EXPECT_EQ(Facts(id, 1).state, TensorState::kReady);
  // A result alone leaves no trace.
  ASSERT_TRUE(Publish(id, 2, store.NewResult(id, Bytes(100)).value()).ok());
  ASSERT_TRUE(store.Delete(id, {2}).ok());
  PutWhole(id, 2, 100, 1);
}

TEST_F(SessionStoreTest, VersionsOfResultsDoNotWrap) {
  const SessionId id = Session();
  PutWhole(id, 1, 100, kHighest);
  ASSERT_TRUE(Publish(id, 1, store.NewResult(id, Bytes(100)).value()).ok());
  EXPECT_EQ(Facts(id, 1).version, kHighest);
  ExpectError(store.BeginPut(id, 1, Bytes(100), 1).status(), absl::StatusCode::kFailedPrecondition,
              reason::kOldVersion);
}

TEST(DeletedUploads, RememberTheLatest) {
  DeletedUploads deleted;
  const std::uint64_t most = DeletedUploads::kMost;
  for (std::uint64_t id = 0; id < most; ++id) deleted.Add(id, id + 1);
  for (std::uint64_t id = 0; id < most; ++id) ASSERT_EQ(deleted.VersionOf(id), id + 1);
  EXPECT_EQ(deleted.VersionOf(most), 0u);
  deleted.Add(3, 2);
  EXPECT_EQ(deleted.VersionOf(3), 4u) << "the highest counts";
  deleted.Add(3, 99);
  EXPECT_EQ(deleted.VersionOf(3), 99u);
  for (std::uint64_t id = most; id < most + 3; ++id) deleted.Add(id, 1);
  EXPECT_EQ(deleted.VersionOf(2), 0u) << "the oldest go";
  EXPECT_EQ(deleted.VersionOf(3), 99u);
  EXPECT_EQ(deleted.VersionOf(most + 2), 1u);
}

TEST_F(SessionStoreTest, TheOldTensorStaysUntilTheNewOneHasItsMemory) {
  const SessionId id = Session();
  PutWhole(id, 1, kKiB, 1, 1);
  tensors.Block();
  std::thread replacing([&] { EXPECT_TRUE(store.BeginPut(id, 1, Bytes(2 * kKiB), 2).ok()); });
  tensors.AwaitBlocked();
  EXPECT_EQ(tensors.Text(*store.Find(id, 1)->memory), Pattern(kKiB, 1));
  EXPECT_EQ(Facts(id, 1).version, 1u);
  EXPECT_EQ(store.List(id)->tensors.at(0).version, 1u);
  ExpectError(store.BeginPut(id, 1, Bytes(kKiB), 1).status(), absl::StatusCode::kFailedPrecondition,
              reason::kOldVersion);
  tensors.Unblock();
  replacing.join();
  EXPECT_EQ(Facts(id, 1).version, 2u);
  EXPECT_EQ(store.List(id)->used, 2 * kKiB + kRecord) << "the old one is gone";
}

TEST_F(SessionStoreTest, AReplacementThatGetsNoMemoryLeavesTheOldTensor) {
  const SessionId id = Session();
  PutWhole(id, 1, kKiB, 1, 1);
  tensors.FailNext(absl::ResourceExhaustedError("the device has none"));
  EXPECT_TRUE(absl::IsResourceExhausted(store.BeginPut(id, 1, Bytes(2 * kKiB), 2).status()));
  EXPECT_EQ(tensors.Text(*store.Find(id, 1)->memory), Pattern(kKiB, 1));
  EXPECT_EQ(store.List(id)->used, kKiB + kRecord);
  EXPECT_EQ(store.use().tensors, 1);
  EXPECT_EQ(store.use().filling, 0);
  PutWhole(id, 1, kKiB, 2, 2);  // the version that failed may come again
  EXPECT_EQ(tensors.Text(*store.Find(id, 1)->memory), Pattern(kKiB, 2));
}

TEST_F(SessionStoreTest, WhoWaitsForMemoryIsDeletedAndReplacedWithTheOldTensor) {
  for (const bool deleted : {true, false}) {
    const SessionId id = Session();
    PutWhole(id, 1, kKiB, 1, 1);
    tensors.Block();
    absl::Status replaced;
    std::thread replacing([&] { replaced = store.BeginPut(id, 1, Bytes(2 * kKiB), 2).status(); });
    tensors.AwaitBlocked();
    if (deleted) {
      ASSERT_EQ(store.Delete(id, {1}).value(), kKiB + 2 * kRecord);
    } else {
      ASSERT_TRUE(Publish(id, 1, {.spec = Bytes(0)}).ok());
      EXPECT_EQ(Facts(id, 1).version, 3u);
    }
    tensors.Unblock();
    replacing.join();
    ExpectError(replaced, absl::StatusCode::kNotFound, reason::kTensorNotFound);
    EXPECT_EQ(store.List(id)->tensors.size(), deleted ? 0u : 1u);
    EXPECT_EQ(store.List(id)->used, 0);
    ASSERT_TRUE(store.Close(id).ok());
  }
  EXPECT_EQ(device.used(), 0);
}

// Two versions wait for memory at once, and one of them gets none: that is nothing to the other.
TEST_F(SessionStoreTest, OfTwoThatWaitForMemoryOneMayFail) {
  for (int round = 0; round < 8; ++round) {
    const SessionId id = Session();
    const int before = tensors.allocations();
    tensors.Block();
    absl::Status first, second;
    std::thread one([&] { first = store.BeginPut(id, 1, Bytes(100), 1).status(); });
    while (tensors.allocations() < before + 1) std::this_thread::yield();
    std::thread two([&] { second = store.BeginPut(id, 1, Bytes(200), 2).status(); });
    while (tensors.allocations() < before + 2) std::this_thread::yield();
    tensors.FailNext(absl::InternalError("no memory for one of them"));
    tensors.Unblock();
    one.join();
    two.join();
    if (second.ok()) {
      EXPECT_EQ(Facts(id, 1).version, 2u);
      EXPECT_TRUE(first.ok() || absl::IsInternal(first) || absl::IsNotFound(first)) << first;
    } else {
      EXPECT_TRUE(absl::IsInternal(second)) << second;
      ASSERT_TRUE(first.ok()) << first;
      EXPECT_EQ(Facts(id, 1).version, 1u);
    }
    EXPECT_EQ(store.List(id)->tensors.size(), 1u);
    EXPECT_EQ(store.List(id)->used, TensorCharge::kUnit + kRecord);
    ASSERT_TRUE(store.Close(id).ok());
  }
  EXPECT_EQ(device.used(), 0);
}

TEST_F(SessionStoreTest, ResultsOfACallArePublishedTogether) {
  const SessionId id = Session();
  const auto results = [&] {
    std::vector<std::pair<std::uint64_t, SessionStore::Result>> made;
    made.emplace_back(1, store.NewResult(id, Bytes(kKiB)).value());
    made.emplace_back(2, store.NewResult(id, Bytes(kKiB)).value());
    return made;
  };
  // The session fills up while the call runs: places and memory of its results are its own already.
  auto made = results();
  for (std::uint64_t i = 10; store.BeginPut(id, i, Bytes(4 * kKiB), 0).ok(); ++i) {
  }
  EXPECT_TRUE(store.Publish(id, std::move(made)).ok());
  EXPECT_EQ(Facts(id, 1).state, TensorState::kReady);
  EXPECT_EQ(Facts(id, 2).state, TensorState::kReady);
  // One that is dropped gives back its place as well.
  ASSERT_TRUE(store.Delete(id, {1, 2}).ok());
  results();
  results();
  EXPECT_TRUE(absl::IsNotFound(store.Describe(id, 1).status()));
}

}  // namespace
}  // namespace kernd::core
