// Ends and beginnings of the daemon under load: a drain with callers and watchers, kill -9 and a start on the same
// port; and what a long life keeps.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "grpc/health/v1/health.grpc.pb.h"
#include "kernd/client/client.h"
#include "kernd/v1/device.pb.h"
#include "tests/faults/ordeal.h"
#include "tests/support/raw_client.h"
#include "tests/support/requests.h"

namespace kernd::testing {
namespace {

namespace health = grpc::health::v1;
using Clock = std::chrono::steady_clock;
using grpc::StatusCode;

struct Drained {
  int answered = 0, refused = 0, watches_ended = 0;
  double took_s = 0;
};

// SIGTERM while so many callers call and so many watchers watch.
Drained DrainUnderLoad(int callers, int watchers) {
  const auto daemon = Daemon::Start({"--cpu-threads", "1", "--drain-timeout", "30s"});
  if (daemon == nullptr) return {};
  std::atomic<int> answered = 0, refused = 0, watching = 0, watches_ended = 0;
  std::atomic<bool> stop = false;
  std::vector<std::thread> threads;
  for (int i = 0; i < callers; ++i) {
    threads.emplace_back([&, i] {
      const auto channel = Connect(daemon->endpoint());
      v1::MatmulRequest cube;
      *cube.mutable_matmul()->mutable_a() = *cube.mutable_matmul()->mutable_b() = F32({128, 128});
      const std::string request = (i % 2 == 0 ? cube : SmallMatmul()).SerializeAsString();
      while (!stop) {
        const RawReply reply = RawCall(channel, kMatmul, request, {.timeout = std::chrono::seconds(60)});
        if (reply.status.ok()) {
          ++answered;
          continue;
        }
        ++refused;
        EXPECT_EQ(reply.status.error_code(), StatusCode::UNAVAILABLE) << reply.reason << reply.status.error_message();
        if (reply.reason.empty()) return;  // nobody there any more
        EXPECT_EQ(reply.reason, "DRAINING");
      }
    });
  }
  for (int i = 0; i < watchers; ++i) {
    threads.emplace_back([&] {
      const auto stub = health::Health::NewStub(Connect(daemon->endpoint()));
      grpc::ClientContext context;
      const auto watch = stub->Watch(&context, health::HealthCheckRequest());
      health::HealthCheckResponse response;
      std::vector<int> seen;
      while (watch->Read(&response)) {
        if (seen.empty()) ++watching;
        seen.push_back(response.status());
      }
      EXPECT_EQ(watch->Finish().error_code(), StatusCode::UNAVAILABLE);
      EXPECT_EQ(seen,
                (std::vector<int>{health::HealthCheckResponse::SERVING, health::HealthCheckResponse::NOT_SERVING}));
      ++watches_ended;
    });
  }
  for (int tries = 0; tries < 4000 && (watching < watchers || answered < 10 * callers); ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_EQ(watching, watchers);
  EXPECT_GE(answered, 10 * callers);
  const auto start = Clock::now();
  EXPECT_EQ(daemon->Stop(40), 0) << daemon->Log();
  const double took_s = std::chrono::duration<double>(Clock::now() - start).count();
  stop = true;
  for (std::thread& thread : threads) thread.join();
  return {answered, refused, watches_ended, took_s};
}

// Every call ends with its answer or with a refusal that says that the daemon drains; the connection of a client may be
// gone by then, which gRPC tells as UNAVAILABLE, too. No call is lost otherwise, no watch is left, and the exit code is
// 0.
TEST(Life, DrainUnderLoadWithWatchers) {
  constexpr int kCallers = 50, kWatchers = 50;
  double longest_s = 0;
  int answered = 0, refused = 0;
  for (int round = 0, rounds = Size(3, 30); round < rounds && !HasFailure(); ++round) {
    const Drained drained = DrainUnderLoad(kCallers, kWatchers);
    EXPECT_EQ(drained.watches_ended, kWatchers);
    longest_s = std::max(longest_s, drained.took_s);
    answered += drained.answered;
    refused += drained.refused;
  }
  RecordProperty("longest_drain_s", std::to_string(longest_s));
  RecordProperty("answered_calls", answered);
  RecordProperty("refused_calls", refused);
}

std::uint64_t Epoch(const std::string& endpoint) {
  v1::GetCapabilitiesReply capabilities;
  EXPECT_TRUE(Call(Connect(endpoint), "/kernd.v1.Device/GetCapabilities", v1::GetCapabilitiesRequest(), capabilities)
                  .status.ok());
  return capabilities.server_epoch();
}

// Clients of the library go on through it, as their retry policy carries them: no call fails, the answers are right.
TEST(Life, KilledAndStartedAgainOnTheSamePort) {
  auto daemon = Daemon::Start();
  ASSERT_NE(daemon, nullptr);
  const std::string endpoint = daemon->endpoint();
  const int clients = Size(4, 16), rounds = Size(2, 20);
  std::atomic<bool> stop = false;
  std::atomic<int> good = 0;
  std::mutex mutex;
  double worst_ms = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < clients; ++i) {
    threads.emplace_back([&] {
      const auto client =
          client::Client::Connect({.endpoint = endpoint,
                                   .timeout = absl::Seconds(60),
                                   .retry = {.max_attempts = 1000, .max_backoff = absl::Milliseconds(200)}});
      const std::vector<float> a = {1, 2, 3, 4}, b = {5, 6, 7, 8};
      while (!stop) {
        const auto start = Clock::now();
        const auto reply = client->Matmul({.a = client::View(a, {2, 2}), .b = client::View(b, {2, 2})});
        const std::chrono::duration<double, std::milli> took = Clock::now() - start;
        ASSERT_TRUE(reply.ok()) << reply.status();
        EXPECT_EQ(reply->d.values<float>()[3], 50);
        ++good;
        const std::lock_guard lock(mutex);
        worst_ms = std::max(worst_ms, took.count());
      }
    });
  }
  // Answers from every client's connection again, as far as chance lets.
  const auto await_answers = [&] {
    const int before = good;
    for (int tries = 0; tries < 6000 && good < before + 20 * clients; ++tries) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return good >= before + 20 * clients;
  };
  for (int round = 0; round < rounds; ++round) {
    SCOPED_TRACE(round);
    EXPECT_TRUE(await_answers());
    const std::uint64_t epoch = Epoch(endpoint);
    daemon->Signal(SIGKILL);
    EXPECT_EQ(daemon->Wait(10), 128 + SIGKILL);
    // At once, while connections of the old one are in TIME_WAIT or not yet gone.
    daemon = Daemon::Start({"--listen", endpoint});  // beside a free port
    if (daemon == nullptr) break;
    EXPECT_NE(Epoch(endpoint), epoch);
    EXPECT_EQ(Epoch(endpoint), Epoch(daemon->endpoint())) << "the port file names the new daemon";
  }
  EXPECT_TRUE(await_answers());
  stop = true;
  for (std::thread& thread : threads) thread.join();
  RecordProperty("answered_calls", good.load());
  RecordProperty("worst_ms", std::to_string(worst_ms));
}

// Small calls, one after the other on each of four connections: what the daemon holds does not grow with their number.
TEST(Life, SmallCallsKeepNothing) {
  const auto daemon = Daemon::Start({"--log-calls", "false"});
  ASSERT_NE(daemon, nullptr);
  constexpr int kCallers = 4;
  const int calls = Size(20'000, 1'000'000) / kCallers;
  std::vector<float> all_us;
  double after_warm_up = 0;
  const auto harm = [&] {
    std::vector<std::vector<float>> took_us(kCallers);
    std::vector<std::thread> callers;
    for (int c = 0; c < kCallers; ++c) {
      callers.emplace_back([&, c] {
        const auto channel = Connect(daemon->endpoint());
        const std::string request = SmallMatmul().SerializeAsString();
        for (int i = 0; i < calls; ++i) {
          const auto start = Clock::now();
          const RawReply reply = RawCall(channel, kMatmul, request);
          took_us[c].push_back(std::chrono::duration<float, std::micro>(Clock::now() - start).count());
          ASSERT_TRUE(reply.status.ok()) << reply.status.error_message();
        }
      });
    }
    for (std::thread& caller : callers) caller.join();
    all_us.clear();
    for (const auto& some : took_us) all_us.insert(all_us.end(), some.begin(), some.end());
    if (after_warm_up == 0) after_warm_up = static_cast<double>(daemon->ResidentBytes());
  };
  Endure(*daemon, {.act = harm, .peak_bytes = 16 * kMiB, .kept_bytes = 4 * kMiB});
  const double grown = static_cast<double>(daemon->ResidentBytes()) - after_warm_up;
  std::sort(all_us.begin(), all_us.end());
  ASSERT_EQ(all_us.size(), static_cast<std::size_t>(calls) * kCallers);
  RecordProperty("calls_count", static_cast<int>(all_us.size()));
  RecordProperty("p50_us", std::to_string(all_us[all_us.size() / 2]));
  RecordProperty("p999_us", std::to_string(all_us[all_us.size() * 999 / 1000]));
  RecordProperty("growth_bytes_per_call", std::to_string(grown / static_cast<double>(all_us.size())));
}

}  // namespace
}  // namespace kernd::testing
