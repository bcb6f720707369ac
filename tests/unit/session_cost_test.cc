// server/core: what a client can make the daemon keep is no more than what it is charged for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <functional>

#include "server/core/byte_ranges.h"
#include "server/core/session_records.h"
#include "tests/unit/session_store_case.h"

namespace kernd::core {
namespace {

using ::testing::HasSubstr;

constexpr int kTensors = 1000;

// Bytes of the heap in use, those of the allocator's own bookkeeping included; the page-sized blocks beside it, too.
std::int64_t HeapInUse() {
  const struct mallinfo2 info = mallinfo2();
  return static_cast<std::int64_t>(info.uordblks + info.hblkhd);
}

bool HeapIsMeasured() {
  const std::int64_t before = HeapInUse();
  const auto block = std::make_unique<char[]>(100'000);
  return HeapInUse() - before >= 100'000;  // not so with the allocator of a sanitizer
}

class SessionCostTest : public ::testing::Test {
 protected:
  SessionCostTest() : roomy_(std::int64_t{1} << 40) {}
  SessionStore::Options Roomy() {
    return {.resident_limit = std::int64_t{1} << 40,
            .session_quota = std::int64_t{1} << 40,
            .max_sessions = 10'000,
            .default_lease = absl::Hours(1),
            .max_lease = absl::Hours(1),
            .fill_timeout = absl::Seconds(1)};
  }
  FakeTensors tensors_;
  ByteBudget roomy_;
  SteadyTime now_ = SteadyTime() + std::chrono::hours(1);
  SessionStore store_{Roomy(),
                      {.memory = roomy_,
                       .allocate = [this](std::int64_t bytes) { return tensors_.Allocate(bytes); },
                       .now = [this] { return now_; }}};
  absl::Status Write(const SessionStore::Upload& upload, std::int64_t offset, std::int64_t bytes) {
    const std::string data(static_cast<std::size_t>(bytes), 'x');
    return store_.Write(upload, offset,
                        {absl::MakeConstSpan(reinterpret_cast<const std::byte*>(data.data()), data.size())});
  }
};

// Of each state that a tensor can be in, the dearest: what 1000 of them add to the heap is what they are charged for.
TEST_F(SessionCostTest, ATensorCostsNoMoreThanItIsChargedFor) {
  if (!HeapIsMeasured()) GTEST_SKIP() << "SKIPPED: needs the heap of glibc";
  const auto in_pieces = [this](const SessionId& id, std::uint64_t tensor, std::int64_t bytes) {
    const TensorSpec deep = {.dtype = DataType::kU8,
                             .shape = {1, 1, 1, 1, 1, 1, 1, bytes}};  // its dimensions have a block
    const auto upload = store_.BeginPut(id, tensor, deep, ~std::uint64_t{0} - 1).value();
    const auto pieces = static_cast<std::int64_t>(ByteRanges::PiecesFor(bytes));
    for (std::int64_t i = 0; i < pieces; ++i) ASSERT_TRUE(Write(upload, 2 * i, 1).ok());
  };
  const std::vector<std::pair<const char*, std::function<void(const SessionId&, std::uint64_t)>>> kinds = {
      {"empty", [&](auto& id, auto tensor) { ASSERT_TRUE(store_.BeginPut(id, tensor, Bytes(0), 0).ok()); }},
      {"READY, one byte",
       [&](auto& id, auto tensor) { ASSERT_TRUE(Write(store_.BeginPut(id, tensor, Bytes(1), 0).value(), 0, 1).ok()); }},
      {"FILLING, small, in pieces", [&](auto& id, auto tensor) { in_pieces(id, tensor, 100); }},
      {"FILLING, 64 KiB, in pieces", [&](auto& id, auto tensor) { in_pieces(id, tensor, 64 * kKiB); }},
      {"FAILED, in pieces", [&](auto& id, auto tensor) { in_pieces(id, tensor, 100); }},
      {"results",
       [&](auto& id, auto tensor) {
         std::vector<std::pair<std::uint64_t, SessionStore::Result>> results;
         results.emplace_back(tensor, store_.NewResult(id, Bytes(1)).value());
         ASSERT_TRUE(store_.Publish(id, std::move(results)).ok());
       }},
  };
  for (const auto& [name, make] : kinds) {
    const SessionId id = store_.Open(absl::ZeroDuration(), 0).value().id;
    make(id, 0);  // tables grow in leaps
    const std::int64_t heap = HeapInUse(), charged = roomy_.used();
    for (std::uint64_t tensor = 1; tensor <= kTensors; ++tensor) make(id, tensor);
    if (std::string_view(name).starts_with("FAILED")) {
      now_ += std::chrono::seconds(2);
      store_.Sweep();
      ASSERT_EQ(store_.Describe(id, 1)->state, TensorState::kFailed);
    }
    const std::int64_t cost = (HeapInUse() - heap) / kTensors, charge = (roomy_.used() - charged) / kTensors;
    RecordProperty(std::string("heap bytes of a tensor, ") + name, std::to_string(cost));
    EXPECT_GT(cost, 100) << name << ": nothing was measured";
    EXPECT_LE(cost, charge + charge / 64) << name;  // a piece, 64 bytes, for each 4 KiB
    ASSERT_TRUE(store_.Close(id).ok());
  }
}

TEST_F(SessionCostTest, ASessionCostsLittle) {
  if (!HeapIsMeasured()) GTEST_SKIP() << "SKIPPED: needs the heap of glibc";
  constexpr int kSessions = 500;
  const std::int64_t heap = HeapInUse();
  for (int i = 0; i < kSessions; ++i) {
    const SessionId id = store_.Open(absl::ZeroDuration(), 0).value().id;
    for (std::uint64_t tensor = 0; tensor < 2 * DeletedUploads::kMost; ++tensor) {
      ASSERT_TRUE(store_.BeginPut(id, tensor, Bytes(0), 1).ok());
      ASSERT_TRUE(store_.Delete(id, {tensor}).ok());
    }
  }
  EXPECT_LE((HeapInUse() - heap) / kSessions, 6 * kKiB) << "what server/README.md says";
}

TEST_F(SessionCostTest, TensorsAreLimitedInNumber) {
  const SessionId id = store_.Open(absl::ZeroDuration(), 0).value().id;
  const std::uint64_t most = SessionStore::kMaxTensorsOfSession;
  for (std::uint64_t tensor = 0; tensor + 1 < most; ++tensor) {
    ASSERT_TRUE(store_.BeginPut(id, tensor, Bytes(0), 0).ok());
  }
  {
    const auto result = store_.NewResult(id, Bytes(0)).value();  // the last place, until its call has ended
    const absl::Status full = store_.BeginPut(id, most, Bytes(0), 0).status();
    EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(DetailOf(full).reason, reason::kQuotaFull);
    EXPECT_EQ(DetailOf(full).field, "id");
    EXPECT_EQ(DetailOf(full).metadata.at("limit_tensors"), std::to_string(most));
    EXPECT_THAT(std::string(full.message()), HasSubstr("65536"));
    EXPECT_EQ(DetailOf(store_.NewResult(id, Bytes(0)).status()).reason, reason::kQuotaFull);
  }
  EXPECT_TRUE(store_.BeginPut(id, most, Bytes(0), 0).ok());
  EXPECT_TRUE(store_.BeginPut(id, most, Bytes(0), 1).ok()) << "one in the place of another";
  EXPECT_TRUE(store_.BeginPut(store_.Open(absl::ZeroDuration(), 0).value().id, 1, Bytes(0), 0).ok());
}

}  // namespace
}  // namespace kernd::core
