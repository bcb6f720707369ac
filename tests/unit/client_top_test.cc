// kernctl top without a terminal: snapshots, rates, and lines that fit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/cli/top/snapshot.h"
#include "client/cli/top/view.h"
#include "nlohmann/json.hpp"

namespace kernd::cli::top {
namespace {

using nlohmann::json;
using testing::HasSubstr;

json Status() {
  json status = json::parse(R"({
    "schema": 1, "time_seconds": 1000.0,
    "program": {"version": "0.1.0", "revision": "abc", "compiler": "GNU", "cuda_toolkit": "none", "backend": "cpu"},
    "process": {"start_time_seconds": 100.0, "uptime_seconds": 900.0, "cpu_seconds": 90.0, "resident_bytes": 1048576,
                "threads": 9, "open_fds": 31, "max_fds": 1024},
    "state": {"name": "ready", "why": "", "time_to_ready_seconds": 0.5},
    "devices": [{"name": "Some CPU"}],
    "pools": [{"name": "memory", "used_bytes": 512, "peak_bytes": 1024, "limit_bytes": 2048}],
    "load": {"calls_in_flight": 3, "calls_queued": 1, "body_budget_used_bytes": 0, "body_budget_limit_bytes": 4096},
    "recent_seconds": 60.0,
    "calls": {"total": 1000, "failed_total": 10, "recent": 120, "failed_recent": 6, "by_method": [
      {"method": "Compute/Attention", "code": "OK", "total": 900, "recent": 20},
      {"method": "Compute/Matmul", "code": "OK", "total": 90, "recent": 94},
      {"method": "Compute/Matmul", "code": "INVALID_ARGUMENT", "total": 10, "recent": 6}]},
    "latency": [{"stage": "total", "recent": 120, "p50_seconds": 0.00085, "p90_seconds": 0.0012, "p99_seconds": 0.15,
                 "max_seconds": 2.5},
                {"stage": "kernel", "recent": 0, "p50_seconds": 0, "p90_seconds": 0, "p99_seconds": 0, "max_seconds": 0}],
    "kernels": [{"name": "unused_kernel", "total": 0}, {"name": "busy_kernel", "total": 77}],
    "errors": [{"time_seconds": 10.0, "method": "Compute/Matmul", "code": "INTERNAL", "fault": true, "message": "older"},
               {"time_seconds": 20.0, "method": "Compute/Matmul", "code": "INVALID_ARGUMENT", "fault": false,
                "message": "newer"}]
  })");
  return status;
}

Snapshot Now() {
  const absl::StatusOr<Snapshot> snapshot = SnapshotOf(Status());
  EXPECT_TRUE(snapshot.ok()) << snapshot.status();
  return *snapshot;
}

std::string Joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

TEST(TopTest, SnapshotsOfOtherProgramsAreRefused) {
  json other = Status();
  other["schema"] = 2;
  EXPECT_THAT(std::string(SnapshotOf(other).status().message()), HasSubstr("another version"));
  for (const char* key : {"process", "calls", "latency", "load"}) {
    json less = Status();
    less.erase(key);
    EXPECT_FALSE(SnapshotOf(less).ok()) << key;
    less[key] = "text";
    EXPECT_FALSE(SnapshotOf(less).ok()) << key;
  }
  EXPECT_FALSE(SnapshotOf(json::array()).ok());
}

TEST(TopTest, RatesAreOfTheTimeBetweenOrOfTheRecentTime) {
  const Snapshot now = Now();
  const Rates alone = RatesOf(now, nullptr);
  EXPECT_DOUBLE_EQ(alone.calls, 2);
  EXPECT_DOUBLE_EQ(alone.failed, 0.1);
  EXPECT_DOUBLE_EQ(alone.cpu, 0.1);

  Snapshot earlier = now;
  earlier.time -= 2;
  earlier.calls -= 50;
  earlier.failed -= 4;
  earlier.cpu_seconds -= 3;
  const Rates between = RatesOf(now, &earlier);
  EXPECT_DOUBLE_EQ(between.calls, 25);
  EXPECT_DOUBLE_EQ(between.failed, 2);
  EXPECT_DOUBLE_EQ(between.cpu, 1.5);

  earlier.start_time -= 1;  // it was another process
  EXPECT_DOUBLE_EQ(RatesOf(now, &earlier).calls, 2);
  Snapshot young = now;
  young.uptime = 10;
  EXPECT_DOUBLE_EQ(RatesOf(young, nullptr).calls, 12);
}

TEST(TopTest, ShowsWhatThereIs) {
  const std::string text = Joined(View(Now(), {.calls = 2}, {.width = 100, .height = 0, .address = "127.0.0.1:9464"}));
  EXPECT_THAT(text, HasSubstr("kernd 0.1.0, Some CPU, 127.0.0.1:9464, ready, up 15 min"));
  EXPECT_THAT(text, HasSubstr("2.0 a second, 1000 since the start, 10 failed; 3 in flight, 1 queued"));
  EXPECT_THAT(text, HasSubstr("memory   [#####...............] 512 B of 2.0 KiB, at most 1.0 KiB"));
  EXPECT_THAT(text, HasSubstr("total         850 us   1.20 ms    150 ms     2.5 s       120"));
  EXPECT_THAT(text, HasSubstr("busy_kernel"));
  EXPECT_THAT(text, testing::Not(HasSubstr("unused_kernel")));
  EXPECT_LT(text.find("Compute/Matmul"), text.find("Compute/Attention")) << "the busiest first";
  EXPECT_LT(text.find("newer"), text.find("older"));
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
}

TEST(TopTest, ANarrowScreenHasWhatMattersMost) {
  Snapshot now = Now();
  now.kernels.push_back({"matmul_f8e4m3_cpu_packed", 5});
  const std::string text = Joined(View(now, {}, {.width = 40, .height = 0, .address = "127.0.0.1:9464"}));
  EXPECT_THAT(text, HasSubstr("kernd 0.1.0, ready, up 15 min"));
  EXPECT_THAT(text, HasSubstr("] 512 B of 2.0 KiB"));
  EXPECT_THAT(text, HasSubstr("\nCompute/Matmul OK"));
  EXPECT_THAT(text, HasSubstr("\nmatmul_f8e4m3_cpu_packed "));
}

TEST(TopTest, FitsEveryScreenAndKeepsEachPart) {
  Snapshot now = Now();
  for (int i = 0; i < 100; ++i) {
    now.methods.push_back({"Compute/Method" + std::to_string(i), "OK", 1, 1});
    now.kernels.push_back({"kernel_" + std::to_string(i), 1});
    now.errors.push_back({5, "Compute/Matmul", "INTERNAL", std::string(500, 'x'), true});
    now.latency.push_back({"stage" + std::to_string(i), 1, 1, 1, 1, 1});
  }
  for (const int width : {1, 20, 40, 80, 200}) {
    for (const int height : {1, 2, 5, 10, 24, 60}) {
      const std::vector<std::string> lines = View(now, {}, {.width = width, .height = height, .address = "a"});
      EXPECT_EQ(lines.size(), static_cast<std::size_t>(height)) << width;
      for (const std::string& line : lines) EXPECT_LE(line.size(), static_cast<std::size_t>(width)) << line;
    }
  }
  const std::string small = Joined(View(now, {}, {.width = 80, .height = 24, .address = "a"}));
  for (const char* part :
       {"kernd 0.1.0", "stage ", "method", "kernel ", "errors", "busy_kernel", "Compute/Matmul", "newer"}) {
    EXPECT_THAT(small, HasSubstr(part));
  }
}

TEST(TopTest, ForeignTextDoesNotReachTheTerminal) {
  json status = Status();
  const std::string evil = "\x1b[2J\x9b\nmore";
  status["program"]["version"] = status["state"]["why"] = status["devices"][0]["name"] = evil;
  status["state"]["name"] = evil;
  status["pools"][0]["name"] = status["kernels"][1]["name"] = status["latency"][0]["stage"] = evil;
  status["calls"]["by_method"][0]["method"] = status["calls"]["by_method"][0]["code"] = evil;
  status["errors"][0]["message"] = evil;
  const absl::StatusOr<Snapshot> now = SnapshotOf(status);
  ASSERT_TRUE(now.ok());
  for (const std::string& line : View(*now, {}, {.width = 200, .height = 0, .address = "a"})) {
    for (const char c : line) EXPECT_TRUE(c >= 0x20 && c < 0x7f) << line;
  }
}

TEST(TopTest, Seconds) {
  EXPECT_EQ(SecondsText(0), "0 us");
  EXPECT_EQ(SecondsText(0.0009994), "999 us");
  EXPECT_EQ(SecondsText(0.00123), "1.23 ms");
  EXPECT_EQ(SecondsText(0.9994), "999 ms");
  EXPECT_EQ(SecondsText(12.34), "12.3 s");
}

}  // namespace
}  // namespace kernd::cli::top
