// A session store for tests, on a clock of their own.
#pragma once

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernd/kernels/error.h"
#include "server/core/session_store.h"
#include "tests/support/fake_tensors.h"

namespace kernd::core {

using testing::Bytes;
using testing::FakeTensors;
using testing::Pattern;

inline constexpr std::int64_t kKiB = 1024;
// What a tensor is charged for beside its bytes.
inline constexpr std::int64_t kRecord = TensorCharge::kRecordBytes;
inline constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

// A store with 64 KiB of tensors, 32 KiB a session, a lease of 10 s and a fill timeout of 3 s.
class SessionStoreTest : public ::testing::Test {
 protected:
  SessionId Session(std::int64_t quota = 0, absl::Duration lease = absl::ZeroDuration()) {
    return store.Open(lease, quota).value().id;
  }
  // A tensor of `bytes`, READY, whose bytes are Pattern(seed).
  void PutWhole(const SessionId& id, std::uint64_t tensor, std::int64_t bytes, std::uint64_t version = 0,
                int seed = 0) {
    const auto upload = store.BeginPut(id, tensor, Bytes(bytes), version);
    ASSERT_TRUE(upload.ok()) << upload.status();
    ASSERT_TRUE(Write(*upload, 0, Pattern(bytes, seed)).ok());
  }
  absl::Status Write(const SessionStore::Upload& upload, std::int64_t offset, const std::string& bytes) {
    const absl::Span<const std::byte> run(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size());
    return store.Write(upload, offset, {run});
  }
  absl::Status Publish(const SessionId& id, std::uint64_t tensor, SessionStore::Result result) {
    std::vector<std::pair<std::uint64_t, SessionStore::Result>> results;
    results.emplace_back(tensor, std::move(result));
    return store.Publish(id, std::move(results));
  }
  SessionStore::TensorFacts Facts(const SessionId& id, std::uint64_t tensor) {
    return store.Describe(id, tensor).value();
  }
  std::string ReasonOf(const absl::Status& status) { return DetailOf(status).reason; }
  void ExpectError(const absl::Status& status, absl::StatusCode code, std::string_view why) {
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_EQ(ReasonOf(status), why) << status;
  }

  ByteBudget device{128 * kKiB};
  FakeTensors tensors;
  SteadyTime now = SteadyTime() + std::chrono::hours(1);
  void Pass(absl::Duration time) { now += absl::ToChronoNanoseconds(time); }
  SessionStore store{{.resident_limit = 64 * kKiB,
                      .session_quota = 32 * kKiB,
                      .max_sessions = 4,
                      .default_lease = absl::Seconds(10),
                      .max_lease = absl::Seconds(60),
                      .fill_timeout = absl::Seconds(3)},
                     {.memory = device,
                      .allocate = [this](std::int64_t bytes) { return tensors.Allocate(bytes); },
                      .now = [this] { return now; }}};
};

}  // namespace kernd::core
