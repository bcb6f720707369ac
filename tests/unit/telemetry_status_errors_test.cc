// server/telemetry: which errors are kept, and what the history makes of calls.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "server/telemetry/call_history.h"
#include "server/telemetry/recent_errors.h"
#include "tests/unit/telemetry_call.h"

namespace kernd::telemetry {
namespace {

using ::testing::SizeIs;

core::CallRecord Failed(absl::Status status, const std::string& id) {
  core::CallRecord record = SomeCall();
  record.status = std::move(status);
  record.request_id = id;
  return record;
}

std::vector<std::string> Ids(const std::vector<CallError>& errors) {
  std::vector<std::string> ids;
  for (const CallError& error : errors) ids.push_back(error.request_id);
  return ids;
}

TEST(RecentErrors, TheNewestAreKeptNewestFirst) {
  RecentErrors errors;
  EXPECT_THAT(errors.Read(), SizeIs(0));
  std::vector<std::string> added;
  for (std::size_t i = 0; i < 3 * RecentErrors::kRefusals; ++i) {
    added.insert(added.begin(), std::to_string(i));
    // The clock is set back all the time: the order is that in which they came.
    errors.Add(Failed(absl::InvalidArgumentError("bad"), added.front()), absl::UnixEpoch() - absl::Seconds(i));
    added.resize(std::min(added.size(), RecentErrors::kRefusals));
    ASSERT_EQ(Ids(errors.Read()), added);
  }
  EXPECT_EQ(errors.Read().front().number, 3 * RecentErrors::kRefusals);
}

TEST(RecentErrors, AFloodOfRefusalsLeavesTheDaemonsFaults) {
  RecentErrors errors;
  errors.Add(Failed(absl::InternalError("a kernel failed"), "fault"), absl::Now());
  for (int i = 0; i < 1000; ++i) errors.Add(Failed(absl::ResourceExhaustedError("full"), "refusal"), absl::Now());
  EXPECT_THAT(errors.Read(), SizeIs(RecentErrors::kRefusals + 1));
  EXPECT_EQ(errors.Read().back().request_id, "fault");
  EXPECT_EQ(errors.Read().back().number, 1u);
  for (int i = 0; i < 1000; ++i) errors.Add(Failed(absl::UnknownError("?"), "fault"), absl::Now());
  EXPECT_THAT(errors.Read(), SizeIs(RecentErrors::kRefusals + RecentErrors::kFaults));
}

TEST(RecentErrors, LongTextsAreClipped) {
  RecentErrors errors;
  core::CallRecord record = Failed(absl::NotFoundError("x"), std::string(100000, 'i'));
  record.method = std::string(100000, 'm');
  record.peer = std::string(100000, 'p');
  errors.Add(record, absl::Now());
  const CallError error = errors.Read().front();
  EXPECT_EQ(error.request_id, std::string(RecentErrors::kMaxTextBytes, 'i'));
  EXPECT_EQ(error.method, std::string(RecentErrors::kMaxTextBytes, 'm'));
  EXPECT_EQ(error.peer, std::string(RecentErrors::kMaxTextBytes, 'p'));
}

// Readers see whole errors, in order, each once.
TEST(RecentErrors, ManyThreads) {
  constexpr int kThreads = 4, kAdds = 3000;
  RecentErrors errors;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&errors, i] {
      for (int j = 0; j < kAdds; ++j) {
        const std::string text = std::to_string(i) + " " + std::to_string(j) + " a text that no short string holds";
        errors.Add(Failed(j % 7 == 0 ? absl::InternalError(text) : absl::AbortedError(text), text), absl::Now());
      }
    });
  }
  for (int i = 0; i < 2000; ++i) {
    const std::vector<CallError> all = errors.Read();
    ASSERT_LE(all.size(), RecentErrors::kRefusals + RecentErrors::kFaults);
    for (std::size_t j = 0; j < all.size(); ++j) {
      ASSERT_EQ(std::string(all[j].status.message()), all[j].request_id);
      ASSERT_TRUE(j == 0 || all[j].number < all[j - 1].number) << j;
    }
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(errors.Read().front().number, kThreads * kAdds);
}

TEST(CallHistory, CountsByMethodAndCode) {
  CallHistory history({"Compute/Matmul", "Compute/Attention"});
  const core::SteadyTime now = core::SteadyNow();
  core::CallRecord record = SomeCall();
  history.Add(record, now);
  history.Add(record, now);
  history.Add(Failed(absl::InvalidArgumentError("bad"), "a"), now);
  record.method = "Made/Up";
  record.status = absl::Status(static_cast<absl::StatusCode>(99), "no such code");
  history.Add(record, now);
  const RecentCalls recent = history.Read(now);
  ASSERT_THAT(recent.calls, SizeIs(3));
  const auto expect = [](const CallCount& count, const char* method, absl::StatusCode code, std::uint64_t calls) {
    EXPECT_EQ(count.method, method);
    EXPECT_EQ(count.code, code);
    EXPECT_EQ(count.calls, calls);
  };
  expect(recent.calls[0], "Compute/Matmul", absl::StatusCode::kOk, 2);
  expect(recent.calls[1], "Compute/Matmul", absl::StatusCode::kInvalidArgument, 1);
  expect(recent.calls[2], "unknown", absl::StatusCode::kUnknown, 1);
  EXPECT_EQ(recent.slots.back().ok, 2u);
  EXPECT_EQ(recent.slots.back().failed, 2u);
  EXPECT_THAT(recent.errors, SizeIs(2));
  EXPECT_LT(recent.window, absl::Seconds(60)) << "not longer than it has lived";
}

TEST(CallHistory, SlotsAreOldestFirstAndWhatIsOldIsForgotten) {
  CallHistory history({"Compute/Matmul"});
  const core::SteadyTime start = core::SteadyNow();
  for (int slot = 0; slot <= SlidingCounts::kSlots; ++slot) {
    for (int i = 0; i <= slot; ++i) history.Add(SomeCall(), start + slot * SlidingCounts::kSlot);
  }
  const RecentCalls recent = history.Read(start + SlidingCounts::kSlots * SlidingCounts::kSlot);
  for (std::size_t i = 0; i < recent.slots.size(); ++i) EXPECT_EQ(recent.slots[i].ok, i + 2) << "slot " << i;
  EXPECT_GE(recent.window, absl::Seconds(60));
  EXPECT_LE(recent.window, absl::Seconds(65));
  EXPECT_EQ(history.Read(start + std::chrono::hours(1)).calls.size(), 0u);
}

TEST(CallHistory, AStageThatNoCallEnteredHasNoTimes) {
  CallHistory history({"Compute/Matmul"});
  const core::SteadyTime now = core::SteadyNow();
  history.Add(SomeCall(), now);
  const RecentCalls recent = history.Read(now);
  EXPECT_EQ(recent.total.count, 1u);
  EXPECT_NEAR(absl::ToDoubleMicroseconds(recent.total.p50), 400, 400 * LatencyWindow::kMaxRelativeError);
  for (std::size_t i = 0; i < core::kNumStages; ++i) {
    const bool entered = core::kStageNames[i] == "kernel";
    EXPECT_EQ(recent.stages[i].count, entered ? 1u : 0u) << core::kStageNames[i];
  }
}

}  // namespace
}  // namespace kernd::telemetry
