#include "client/src/retry.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmath>
#include <string>
#include <thread>

#include "client/src/status.h"
#include "kernd/client/client.h"
#include "kernd/client/error.h"
#include "tests/unit/client_fake_daemon.h"

namespace kernd::client {
namespace {

const absl::Status kUnavailable = absl::UnavailableError("down");

constexpr absl::Duration kLeft = absl::Hours(10);  // more than any wait here

RetryPolicy Policy() {
  RetryPolicy policy;
  policy.max_attempts = 5;
  policy.initial_backoff = absl::Milliseconds(100);
  policy.max_backoff = absl::Milliseconds(350);
  policy.multiplier = 2;
  policy.jitter = 0.5;
  return policy;
}

TEST(RetryTest, BackoffGrowsUpToItsLimitAndEndsWithTheAttempts) {
  const double middle = 0.5;  // no jitter either way
  EXPECT_EQ(RetryDelay(Policy(), 1, kUnavailable, {}, middle, kLeft), absl::Milliseconds(100));
  EXPECT_EQ(RetryDelay(Policy(), 2, kUnavailable, {}, middle, kLeft), absl::Milliseconds(200));
  EXPECT_EQ(RetryDelay(Policy(), 3, kUnavailable, {}, middle, kLeft), absl::Milliseconds(350));
  EXPECT_EQ(RetryDelay(Policy(), 4, kUnavailable, {}, middle, kLeft), absl::Milliseconds(350));
  EXPECT_EQ(RetryDelay(Policy(), 5, kUnavailable, {}, middle, kLeft), std::nullopt);
}

TEST(RetryTest, JitterSpreadsBackoffBothWays) {
  EXPECT_EQ(RetryDelay(Policy(), 1, kUnavailable, {}, 0.0, kLeft), absl::Milliseconds(50));
  EXPECT_EQ(RetryDelay(Policy(), 1, kUnavailable, {}, 0.75, kLeft), absl::Milliseconds(125));
}

TEST(RetryTest, AHugeNumberOfAttemptsStaysAtTheLimit) {
  RetryPolicy policy = Policy();
  policy.max_attempts = 1 << 30;
  EXPECT_EQ(RetryDelay(policy, 1'000'000, kUnavailable, {}, 0.5, kLeft), absl::Milliseconds(350));
}

TEST(RetryTest, TheDaemonsWordGoesBeforeBackoffAndIsNeverShortened) {
  const absl::Status told = FromGrpc(Refusal(grpc::UNAVAILABLE, "starting", "STARTING", "", 5000));
  EXPECT_EQ(RetryDelay(Policy(), 1, told, {}, 0.0, kLeft), absl::Seconds(5));
  EXPECT_EQ(RetryDelay(Policy(), 1, told, {}, 0.5, kLeft), absl::Milliseconds(6250));
  EXPECT_EQ(RetryDelay(Policy(), 1, told, {.delay = absl::Seconds(1)}, 0.0, kLeft), absl::Seconds(1));
  EXPECT_EQ(RetryDelay(Policy(), 1, told, {.never = true}, 0.0, kLeft), std::nullopt);
}

TEST(RetryTest, AWaitThatWouldTakeAllOfTheTimeLeftIsNotBegun) {
  const absl::Status told = FromGrpc(Refusal(grpc::UNAVAILABLE, "starting", "STARTING", "", 5000));
  const absl::Duration moment = absl::Nanoseconds(1);
  EXPECT_EQ(RetryDelay(Policy(), 1, told, {}, 0.0, absl::Seconds(5) + moment), absl::Seconds(5));
  EXPECT_EQ(RetryDelay(Policy(), 1, told, {}, 0.0, absl::Seconds(5)), std::nullopt);
  EXPECT_EQ(RetryDelay(Policy(), 1, kUnavailable, {}, 0.5, absl::Milliseconds(100) + moment), absl::Milliseconds(100));
  EXPECT_EQ(RetryDelay(Policy(), 1, kUnavailable, {}, 0.5, absl::Milliseconds(100)), std::nullopt);
  EXPECT_EQ(RetryDelay(Policy(), 1, kUnavailable, {.delay = absl::ZeroDuration()}, 0.5, -absl::Seconds(1)),
            std::nullopt);
}

TEST(RetryTest, OnlyUnavailableIsRetriedUnasked) {
  for (const auto code :
       {absl::StatusCode::kInvalidArgument, absl::StatusCode::kDeadlineExceeded, absl::StatusCode::kInternal,
        absl::StatusCode::kCancelled, absl::StatusCode::kUnimplemented, absl::StatusCode::kResourceExhausted}) {
    EXPECT_EQ(RetryDelay(Policy(), 1, absl::Status(code, "no"), {}, 0.5, kLeft), std::nullopt)
        << static_cast<int>(code);
  }
}

TEST(RetryTest, AFullDaemonIsRetriedOnlyWhenAskedForAndToldWhen) {
  const absl::Status full = FromGrpc(Refusal(grpc::RESOURCE_EXHAUSTED, "full", "MEMORY_FULL", "", 70));
  const absl::Status never_fits = FromGrpc(Refusal(grpc::RESOURCE_EXHAUSTED, "large", "TOO_LARGE"));
  RetryPolicy policy = Policy();
  EXPECT_EQ(RetryDelay(policy, 1, full, {}, 0.0, kLeft), std::nullopt);
  policy.on_resource_exhausted = true;
  EXPECT_EQ(RetryDelay(policy, 1, full, {}, 0.0, kLeft), absl::Milliseconds(70));
  EXPECT_EQ(RetryDelay(policy, 1, never_fits, {}, 0.0, kLeft), std::nullopt);
}

// A port of the loopback. Where it listens, it hangs up on whoever comes.
class BarePort {
 public:
  explicit BarePort(bool listens) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    socklen_t size = sizeof address;
    ::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size);
    endpoint_ = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
    if (!listens) return;
    EXPECT_EQ(::listen(fd_, 8), 0);
    thread_ = std::thread([this] {
      for (int peer; (peer = ::accept(fd_, nullptr, nullptr)) >= 0;) ::close(peer);
    });
  }
  ~BarePort() {
    ::shutdown(fd_, SHUT_RDWR);
    if (thread_.joinable()) thread_.join();
    ::close(fd_);
  }

  const std::string& endpoint() const { return endpoint_; }

 private:
  const int fd_;
  std::string endpoint_;
  std::thread thread_;
};

// What one attempt there ends with.
absl::Status TryOnce(const std::string& endpoint) {
  ClientOptions options;
  options.endpoint = endpoint;
  options.retry.max_attempts = 1;
  const absl::Status status = Client::Connect(options)->Health().status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_EQ(DetailsOf(status).reason, "NOT_CONNECTED") << status;
  return status;
}

TEST(RetryTest, ALostConnectionIsTriedAgainAfterASecondOrTwo) {
  const BarePort hangs_up(true);
  const absl::Status lost = TryOnce(hangs_up.endpoint());
  for (const double uniform : {0.0, 0.5, 0.999}) {
    SCOPED_TRACE(uniform);
    absl::Duration all;
    int failed = 0;
    while (const auto delay = RetryDelay(RetryPolicy(), ++failed, lost, {}, uniform, kLeft)) all += *delay;
    EXPECT_EQ(failed, 4);
    EXPECT_GT(all, absl::Seconds(1.1)) << lost;
    EXPECT_LT(all, absl::Seconds(2));
    EXPECT_EQ(RetryDelay(RetryPolicy(), 1, lost, {}, uniform, kLeft),
              RetryDelay(RetryPolicy(), 1, kUnavailable, {}, uniform, kLeft))
        << "only the last attempt waits";
  }
  RetryPolicy slow = Policy();
  slow.initial_backoff = slow.max_backoff = absl::Seconds(8);
  EXPECT_EQ(RetryDelay(slow, 4, lost, {}, 0.5, kLeft), absl::Seconds(8)) << "never shortened";
  EXPECT_EQ(RetryDelay(Policy(), 4, lost, {}, 0.5, absl::Seconds(1)), std::nullopt) << "the deadline";
}

TEST(RetryTest, WhereNothingListensTheAttemptsEndSoon) {
  const BarePort closed(false);
  for (const std::string& endpoint : {closed.endpoint(), std::string("unix:/nonexistent/kernd.sock")}) {
    const absl::Status refused = TryOnce(endpoint);
    EXPECT_EQ(RetryDelay(Policy(), 4, refused, {}, 0.5, kLeft), absl::Milliseconds(350)) << refused;
  }
}

TEST(RetryTest, ValidationNamesTheOption) {
  EXPECT_TRUE(ValidateRetryPolicy(RetryPolicy()).ok());
  const auto field = [](auto change) {
    RetryPolicy policy;
    change(policy);
    return DetailsOf(ValidateRetryPolicy(policy)).field;
  };
  EXPECT_EQ(field([](RetryPolicy& p) { p.max_attempts = 0; }), "retry.max_attempts");
  EXPECT_EQ(field([](RetryPolicy& p) { p.max_backoff = absl::ZeroDuration(); }), "retry.max_backoff");
  EXPECT_EQ(field([](RetryPolicy& p) { p.multiplier = std::nan(""); }), "retry.multiplier");
  EXPECT_EQ(field([](RetryPolicy& p) { p.multiplier = 0.5; }), "retry.multiplier");
  EXPECT_EQ(field([](RetryPolicy& p) { p.jitter = 1.5; }), "retry.jitter");
}

TEST(DetailsTest, OfADaemonsRefusal) {
  const absl::Status status =
      FromGrpc(Refusal(grpc::RESOURCE_EXHAUSTED, "memory is full", "MEMORY_FULL", "attention.q", 1500));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(), "memory is full");
  const ErrorDetails details = DetailsOf(status);
  EXPECT_EQ(details.reason, "MEMORY_FULL");
  EXPECT_EQ(details.field, "attention.q");
  EXPECT_EQ(details.retry_after, absl::Milliseconds(1500));
  EXPECT_EQ(details.metadata.at("limit_bytes"), "1024");
}

TEST(DetailsTest, DamagedOrAbsentDetailsLeaveCodeAndMessage) {
  for (const std::string& trailer : {std::string(), std::string("\xff\xff\xff"), std::string(1, '\0')}) {
    const absl::Status status = FromGrpc(grpc::Status(grpc::NOT_FOUND, "gone", trailer));
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
    EXPECT_EQ(status.message(), "gone");
    EXPECT_TRUE(DetailsOf(status).reason.empty());
    EXPECT_FALSE(DetailsOf(status).retry_after);
  }
  EXPECT_EQ(FromGrpc(grpc::Status(static_cast<grpc::StatusCode>(20), "?")).code(), absl::StatusCode::kUnknown);
  EXPECT_TRUE(DetailsOf(absl::OkStatus()).reason.empty());
}

}  // namespace
}  // namespace kernd::client
