// kernctl bench against daemons that stand still, refuse, and are wrong. Against a real one:
// tests/integration/bench_test.cc.
#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <fstream>
#include <mutex>
#include <thread>

#include "tests/unit/client_cli_fixture.h"

namespace kernd::cli {
namespace {

// The rows of a run with --json that must end with `code`.
json RowsOf(const Outcome& outcome, int code = kOk) {
  EXPECT_EQ(outcome.code, code) << outcome.err;
  return outcome.out.empty() ? json() : json::parse(outcome.out).at("rows");
}

class BenchTest : public CliTest {
 protected:
  BenchTest() {
    // Call 0 is the one before all loads.
    daemon_.matmul = [this](grpc::ServerContext&, const v1::MatmulRequest& request, v1::MatmulReply& reply) {
      const int call = calls_++;
      *reply.mutable_d() = request.matmul().a();
      Fill(reply);
      return on_call_ ? on_call_(call, reply) : grpc::Status::OK;
    };
  }

  Outcome Bench(std::vector<std::string> more) {
    calls_ = 0;
    std::vector<std::string> line = {"bench", "--shape", "4x4x4", "--dtype", "F32", "--warmup", "0"};
    line.insert(line.end(), more.begin(), more.end());
    return Kernctl(daemon_, line);
  }

  // Closed loops run by the clock, and a busy machine may leave few calls to a short one: runs again, for longer, until
  // `enough`. The last run.
  Outcome BenchUntil(const std::function<bool()>& enough, std::vector<std::string> more) {
    more.insert(more.end(), {"--duration", ""});
    for (absl::Duration duration = absl::Milliseconds(100);; duration *= 4) {
      more.back() = absl::FormatDuration(duration);
      Outcome outcome = Bench(more);
      if (enough() || duration > absl::Seconds(5)) return outcome;
    }
  }

  // Enough is `calls` after the first one.
  Outcome BenchCalls(int calls, std::vector<std::string> more) {
    return BenchUntil([this, calls] { return calls_ > calls; }, std::move(more));
  }

  std::atomic<int> calls_{0};
  std::function<grpc::Status(int, v1::MatmulReply&)> on_call_;
};

// A daemon that answers at once, but stands still for 200 ms once. At 200 calls/s 40 calls are due meanwhile, a fifth
// of the run: a user would see it in every quantile from p90 on. One who times calls from when they are sent sees one
// slow call in 200, which no p99 has. A busy machine makes calls later still, so every bound holds there too.
TEST_F(BenchTest, AnOpenLoopCountsFromTheTimeACallWasDue) {
  constexpr double kStallUs = 200e3;
  std::mutex daemon;  // one call at a time
  on_call_ = [&daemon](int call, v1::MatmulReply&) {
    const std::lock_guard lock(daemon);
    if (call == 50) std::this_thread::sleep_for(std::chrono::microseconds(static_cast<int>(kStallUs)));
    return grpc::Status::OK;
  };
  for (const char* concurrency : {"1", "64"}) {
    const absl::Time begin = absl::Now();
    const json row = RowsOf(Bench({"--rate", "200", "--arrivals", "constant", "--duration", "1s", "--concurrency",
                                   concurrency, "--json"}))
                         .at(0);
    const double all_us = absl::ToDoubleMicroseconds(absl::Now() - begin);
    EXPECT_EQ(row.at("latency_us").at("count"), 200) << concurrency;
    EXPECT_GE(row.at("latency_us").at("p99"), 0.9 * kStallUs) << concurrency;
    EXPECT_GE(row.at("latency_us").at("p90"), 0.4 * kStallUs) << concurrency;
    EXPECT_GE(row.at("latency_us").at("max"), kStallUs * 0.99) << concurrency;
    if (std::string(concurrency) == "1") {
      const json& roundtrip = row.at("roundtrip_us");
      EXPECT_LE(roundtrip.at("mean").get<double>() * roundtrip.at("count").get<int>(), all_us)
          << "from sending on: one after the other, they take no longer than all; the 40 late ones alone would have 4 "
             "s";
      EXPECT_GE(row.at("roundtrip_us").at("max"), kStallUs * 0.99);
      EXPECT_GE(row.at("lateness_us").at("p99"), 0.85 * kStallUs) << "all threads are busy: that is told too";
    }
  }
}

TEST_F(BenchTest, WhatAnOverloadLeavesIsCounted) {
  on_call_ = [](int call, v1::MatmulReply&) {
    if (call > 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return grpc::Status::OK;
  };
  const json row =
      RowsOf(Bench({"--rate", "1000", "--arrivals", "constant", "--duration", "200ms", "--concurrency", "1", "--json"}))
          .at(0);
  const int replies = row.at("roundtrip_us").at("count"), cut_off = row.at("cut_off");
  EXPECT_EQ(replies + cut_off, 200) << "calls that were due";
  EXPECT_GE(cut_off, 178) << "no more than 400 ms / 20 ms, and the one in flight then, can have been sent";
  EXPECT_EQ(row.at("latency_us").at("count"), 200);
  EXPECT_GE(row.at("latency_us").at("p50"), 200e3) << "half of them have waited for more than the window";
  EXPECT_LE(row.at("calls_per_second"), 50.1);
  const Outcome text = Bench({"--rate", "1000", "--duration", "100ms", "--concurrency", "1"});
  EXPECT_THAT(text.out, HasSubstr(" without a reply when the run ended, counted with the time until then\n"));
}

TEST_F(BenchTest, AClosedLoopKeepsAsManyCallsInFlight) {
  std::atomic<int> in_flight{0}, most{0};
  on_call_ = [&](int, v1::MatmulReply&) {
    const int now = ++in_flight;
    for (int seen = most; seen < now && !most.compare_exchange_weak(seen, now);) {
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    --in_flight;
    return grpc::Status::OK;
  };
  const json rows = RowsOf(BenchUntil([&most] { return most >= 3; }, {"--concurrency", "1,3", "--json"}));
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(most, 3);
  EXPECT_LE(rows.at(0).at("calls_per_second"), 200.1);
  EXPECT_GT(rows.at(0).at("calls_per_second"), 0);
  EXPECT_LE(rows.at(1).at("calls_per_second"), 600.1);
  for (const json& row : rows) {
    EXPECT_EQ(row.at("roundtrip_us").at("count"), row.at("latency_us").at("count"));
    EXPECT_EQ(row.at("server_us").at("max"), 100) << "as the replies say";
    EXPECT_EQ(row.at("stages_mean_us").at("kernel"), 75.25);
  }
}

TEST_F(BenchTest, ErrorsAreCountedByCodeAndEndWithThree) {
  on_call_ = [](int call, v1::MatmulReply&) {
    if (call % 3 == 1) return Refusal(grpc::StatusCode::RESOURCE_EXHAUSTED, "the queue is full", "QUEUE_FULL");
    if (call % 3 == 2) return Refusal(grpc::StatusCode::UNAVAILABLE, "draining", "DRAINING", "", 1);
    return grpc::Status::OK;
  };
  const json row = RowsOf(BenchCalls(3, {"--json"}), kCallFailed).at(0);
  EXPECT_GT(row.at("errors").at("RESOURCE_EXHAUSTED (QUEUE_FULL)"), 0);
  EXPECT_GT(row.at("errors").at("UNAVAILABLE (DRAINING)"), 0) << "not hidden by a retry";
  EXPECT_EQ(row.at("roundtrip_us").at("count").get<int>() + row.at("num_errors").get<int>(), calls_ - 1);
  EXPECT_EQ(row.at("first_error"), "the queue is full");
  const Outcome text = BenchCalls(3, {});
  EXPECT_EQ(text.code, kCallFailed);
  EXPECT_THAT(text.out, HasSubstr(" x RESOURCE_EXHAUSTED (QUEUE_FULL)\n"));
  EXPECT_EQ(BenchCalls(3, {"--allow-errors"}).code, kOk);
  EXPECT_EQ(BenchCalls(3, {"--until-p99", "1h", "--allow-errors"}).code, kWrong) << "errors keep no limit";
}

TEST_F(BenchTest, WrongRepliesAreFound) {
  on_call_ = [](int call, v1::MatmulReply& reply) {
    if (call == 7) reply.mutable_d()->mutable_data()->back() ^= 1;
    return grpc::Status::OK;
  };
  EXPECT_EQ(RowsOf(BenchCalls(7, {"--check", "1", "--allow-errors", "--json"}), kWrong).at(0).at("errors"),
            json({{"WRONG RESULT", 1}}));
  EXPECT_THAT(BenchCalls(7, {"--check", "1"}).out,
              HasSubstr("first: matmul F32 4x4x4: byte 63 of 64 is not what it was in the first reply\n"));
  EXPECT_EQ(BenchCalls(7, {"--check", "0"}).code, kOk) << "bits were not asked for";
  on_call_ = [](int call, v1::MatmulReply& reply) {
    if (call == 7) reply.mutable_d()->set_shape(0, 2), reply.mutable_d()->mutable_data()->resize(32);
    return grpc::Status::OK;
  };
  EXPECT_EQ(BenchCalls(7, {"--check", "0"}).code, kWrong) << "shapes always";
}

// One call is due in the first row, two in the second. No row is overloaded.
TEST_F(BenchTest, TheSweepEndsWhereP99IsTooLong) {
  on_call_ = [](int call, v1::MatmulReply&) {
    if (call > 1) std::this_thread::sleep_for(std::chrono::seconds(1));
    return grpc::Status::OK;
  };
  const Outcome text = Bench({"--rate", "10,20,40", "--arrivals", "constant", "--duration", "100ms", "--until-p99",
                              "1s", "--concurrency", "4", "--plot", Path("p.svg")});
  EXPECT_EQ(text.code, kOk) << text.out;
  EXPECT_THAT(text.out, HasSubstr("p99 within 1s: up to 10/s ("));
  EXPECT_THAT(text.out, HasSubstr("\n       20  "));
  EXPECT_THAT(text.out, testing::Not(HasSubstr("\n       40  ")));
  std::ostringstream svg;
  svg << std::ifstream(Path("p.svg")).rdbuf();
  EXPECT_THAT(svg.str(), testing::StartsWith("<svg "));
  EXPECT_EQ(Bench({"--rate", "20", "--arrivals", "constant", "--duration", "100ms", "--until-p99", "1s"}).code, kWrong)
      << "at no load";
}

TEST_F(BenchTest, ControlCShowsWhatThereIs) {
  on_call_ = [](int call, v1::MatmulReply&) {
    if (call == 40) std::raise(SIGINT);
    return grpc::Status::OK;
  };
  const Outcome text = Bench({"--duration", "1h", "--concurrency", "1,2"});
  EXPECT_EQ(text.code, 130);
  EXPECT_THAT(text.out, HasSubstr("interrupted: "));
  EXPECT_THAT(text.out, HasSubstr("\nclient "));
  EXPECT_EQ(RowsOf(Bench({"--duration", "1h", "--rate", "500", "--json"}), 130).at(0).at("num_errors"), 0);
}

TEST_F(BenchTest, MixesAreDrawnByWeight) {
  std::atomic<int> small{0}, large{0};
  daemon_.matmul = [&](grpc::ServerContext&, const v1::MatmulRequest& request, v1::MatmulReply& reply) {
    ++(request.matmul().a().shape(0) == 2 ? small : large);
    *reply.mutable_d() = request.matmul().a();
    return grpc::Status::OK;
  };
  std::ofstream(Path("mix")) << "9 matmul 2x2x2\n1 matmul 3x3x3 F32\n";
  const Outcome text = Kernctl(daemon_, {"bench", "--mix", Path("mix"), "--duration", "300ms", "--warmup", "0"});
  EXPECT_EQ(text.code, kOk) << text.err;
  const int drawn = small + large - 2;  // each is called once before
  EXPECT_GT(drawn, 0);
  EXPECT_NEAR(large - 1, 0.1 * drawn, 1 + 4 * std::sqrt(0.09 * drawn)) << "of " << drawn;
  EXPECT_THAT(text.out, HasSubstr("90 %  matmul F16 2x2x2  16 B sent, 8 B back"));
}

TEST_F(BenchTest, BadArgumentsAndRefusalsBeforeAnyLoad) {
  const std::vector<std::vector<std::string>> lines = {{"--rate", "0"},
                                                       {"--rate", "x"},
                                                       {"--rate", "nan"},
                                                       {"--rate", "1e7"},
                                                       {"--concurrency", "0"},
                                                       {"--duration", "0"},
                                                       {"--warmup", "-1s"},
                                                       {"--arrivals", "constant"},
                                                       {"--shape", "4x4"},
                                                       {"--dtype", "BOOL"},
                                                       {"--causal"},
                                                       {"--place", "elsewhere"},
                                                       {"--mix", Path("nowhere")},
                                                       {"--connections", "0"},
                                                       {"--rate", "5", "--concurrency", "1,2"},
                                                       {"--concurrency", "2,1", "--until-p99", "1s"}};
  for (std::vector<std::string> line : lines) {
    line.insert(line.begin(), "bench");
    const Outcome outcome = Kernctl(daemon_, line);
    EXPECT_EQ(outcome.code, kBadArguments) << testing::PrintToString(line);
    EXPECT_EQ(outcome.out, "") << testing::PrintToString(line);
  }
  EXPECT_EQ(calls_, 0);
  on_call_ = [](int, v1::MatmulReply&) { return Refusal(grpc::StatusCode::INVALID_ARGUMENT, "no", "INVALID_FIELD"); };
  EXPECT_EQ(Bench({}).code, kCallFailed) << "the first call already says so";
  EXPECT_EQ(Kernctl({"--endpoint", "127.0.0.1:1", "--timeout", "2s", "bench"}).code, kNotConnected);
}

}  // namespace
}  // namespace kernd::cli
