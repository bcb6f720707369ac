// server/telemetry: what the metrics page says after which calls, and what of the process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "kernd/kernels/error.h"
#include "server/telemetry/metrics.h"
#include "server/telemetry/process_stats.h"
#include "tests/unit/telemetry_call.h"

namespace kernd::telemetry {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Gauges SomeGauges() {
  return {.requests_in_flight = 3,
          .queue_depth = 2,
          .body_budget_used_bytes = 1000,
          .body_budget_limit_bytes = 2000,
          .pools = {{"tensors", 10, 20, 15}},
          .log_lines_dropped = 4,
          .ready = true,
          .time_to_ready = absl::Milliseconds(250),
          .prewarm_time = absl::Milliseconds(125),
          .prewarm_steps = 9,
          .prewarm_done = 7,
          .prewarm_refused = 2,
          .tuning_file = "stale",
          .tuning = {.running = true,
                     .choices = 5,
                     .writes_failed = 6,
                     .candidates = {{"measured", 7}, {"wrong", 0}},
                     .shapes = {{"tuned", 8}}}};
}

Metrics MakeMetrics() {
  return Metrics(
      {"Compute/Attention", "Compute/Matmul"}, {"matmul_f32_cpu_onednn"},
      {.version = "1.2.3", .revision = "abc", .backend = "cpu", .compiler = "GNU 12", .cuda_toolkit = "13.0"},
      SomeGauges);
}

// The value behind "name{labels} " on the page; NaN where there is none.
double ValueOf(const Metrics& metrics, const std::string& series) {
  std::istringstream page(metrics.Text());
  for (std::string line; std::getline(page, line);) {
    if (line.starts_with(series + " ")) return std::stod(line.substr(series.size() + 1));
  }
  return std::nan("");
}

TEST(Metrics, FindingsCountTensors) {
  Metrics metrics = MakeMetrics();
  for (const char* kind : {"nan", "inf", "overrun"}) {
    EXPECT_EQ(ValueOf(metrics, std::string("kernd_debug_findings_total{kind=\"") + kind + "\"}"), 0);
  }
  core::CallRecord record = SomeCall();
  record.findings = {{.tensor = "a", .nan = 3}, {.tensor = "d", .nan = 12, .inf = 1, .overrun = true}};
  metrics.CallEnded(record);
  EXPECT_EQ(ValueOf(metrics, "kernd_debug_findings_total{kind=\"nan\"}"), 2);
  EXPECT_EQ(ValueOf(metrics, "kernd_debug_findings_total{kind=\"inf\"}"), 1);
  EXPECT_EQ(ValueOf(metrics, "kernd_debug_findings_total{kind=\"overrun\"}"), 1);
}

TEST(Metrics, PrewarmAndTuningFile) {
  const Metrics metrics = MakeMetrics();
  EXPECT_EQ(ValueOf(metrics, "kernd_prewarm_seconds"), 0.125);
  EXPECT_EQ(ValueOf(metrics, "kernd_prewarm_steps"), 9);
  EXPECT_EQ(ValueOf(metrics, "kernd_prewarm_steps_done"), 7);
  EXPECT_EQ(ValueOf(metrics, "kernd_prewarm_refused"), 2);
  for (const std::string_view state : kTuningFileStates) {
    EXPECT_EQ(ValueOf(metrics, "kernd_tuning_file{state=\"" + std::string(state) + "\"}"), state == "stale");
  }
}

TEST(Metrics, Tuning) {
  const Metrics metrics = MakeMetrics();
  EXPECT_EQ(ValueOf(metrics, "kernd_tuning_running"), 1);
  EXPECT_EQ(ValueOf(metrics, "kernd_tuned_choices"), 5);
  EXPECT_EQ(ValueOf(metrics, "kernd_tuning_writes_failed_total"), 6);
  EXPECT_EQ(ValueOf(metrics, "kernd_tuning_candidates_total{verdict=\"measured\"}"), 7);
  EXPECT_EQ(ValueOf(metrics, "kernd_tuning_candidates_total{verdict=\"wrong\"}"), 0);
  EXPECT_EQ(ValueOf(metrics, "kernd_tuning_shapes_total{outcome=\"tuned\"}"), 8);
}

TEST(Metrics, KnownSeriesStartAtZero) {
  const Metrics metrics = MakeMetrics();
  for (const char* method : {"Compute/Attention", "Compute/Matmul", "unknown"}) {
    const std::string label = std::string("method=\"") + method + "\"";
    for (int code = 0; code <= 16; ++code) {
      const std::string name = absl::StatusCodeToString(static_cast<absl::StatusCode>(code));
      EXPECT_EQ(ValueOf(metrics, "kernd_requests_total{code=\"" + name + "\"," + label + "}"), 0) << method << code;
    }
    EXPECT_EQ(ValueOf(metrics, "kernd_request_seconds_count{" + label + "}"), 0);
    EXPECT_EQ(ValueOf(metrics, "kernd_request_bytes_total{" + label + "}"), 0);
    EXPECT_EQ(ValueOf(metrics, "kernd_reply_bytes_total{" + label + "}"), 0);
  }
  for (const std::string_view stage : core::kStageNames) {
    EXPECT_EQ(ValueOf(metrics, "kernd_stage_seconds_count{stage=\"" + std::string(stage) + "\"}"), 0) << stage;
  }
  for (const char* reason : {"STARTING", "DRAINING", "TOO_LARGE", "BODY_BUDGET_FULL", "MEMORY_FULL", "QUEUE_FULL",
                             "TUNING_BUSY", "unknown"}) {
    EXPECT_EQ(ValueOf(metrics, std::string("kernd_rejected_total{reason=\"") + reason + "\"}"), 0) << reason;
  }
  EXPECT_EQ(ValueOf(metrics, "kernd_kernel_calls_total{kernel=\"matmul_f32_cpu_onednn\"}"), 0);
  EXPECT_EQ(ValueOf(metrics, "kernd_request_peak_memory_bytes_count"), 0);
}

TEST(Metrics, ACallCountsOnce) {
  Metrics metrics = MakeMetrics();
  metrics.CallEnded(SomeCall());
  EXPECT_EQ(ValueOf(metrics, R"(kernd_requests_total{code="OK",method="Compute/Matmul"})"), 1);
  EXPECT_EQ(ValueOf(metrics, R"(kernd_requests_total{code="OK",method="Compute/Attention"})"), 0);
  EXPECT_EQ(ValueOf(metrics, R"(kernd_request_seconds_count{method="Compute/Matmul"})"), 1);
  EXPECT_DOUBLE_EQ(ValueOf(metrics, R"(kernd_request_seconds_sum{method="Compute/Matmul"})"), 400e-6);
  EXPECT_EQ(ValueOf(metrics, R"(kernd_request_bytes_total{method="Compute/Matmul"})"), 72);
  EXPECT_EQ(ValueOf(metrics, R"(kernd_copied_bytes_total{method="Compute/Matmul"})"), 64);
  EXPECT_EQ(ValueOf(metrics, R"(kernd_reply_bytes_total{method="Compute/Matmul"})"), 32);
  EXPECT_EQ(ValueOf(metrics, R"(kernd_stage_seconds_count{stage="kernel"})"), 1);
  EXPECT_EQ(ValueOf(metrics, R"(kernd_stage_seconds_count{stage="h2d"})"), 0) << "a stage not entered is no 0 s";
  EXPECT_EQ(ValueOf(metrics, R"(kernd_kernel_calls_total{kernel="matmul_f32_cpu_onednn"})"), 1);
  EXPECT_EQ(ValueOf(metrics, R"(kernd_request_peak_memory_bytes_sum)"), 104);
}

TEST(Metrics, BucketsHoldTheirUpperBound) {
  Metrics metrics = MakeMetrics();
  core::CallRecord record = SomeCall();
  record.total = absl::Milliseconds(250);  // exactly a bound
  metrics.CallEnded(record);
  EXPECT_EQ(ValueOf(metrics, R"(kernd_request_seconds_bucket{method="Compute/Matmul",le="0.1"})"), 0);
  EXPECT_EQ(ValueOf(metrics, R"(kernd_request_seconds_bucket{method="Compute/Matmul",le="0.25"})"), 1);
  EXPECT_EQ(ValueOf(metrics, R"(kernd_request_seconds_bucket{method="Compute/Matmul",le="+Inf"})"), 1);
}

TEST(Metrics, UnknownNamesShareOneLabel) {
  Metrics metrics = MakeMetrics();
  for (const char* name : {"Evil/\"}\nmetric 1", "Compute/matmul", ""}) {
    core::CallRecord record = SomeCall();
    record.method = name;
    record.kernel = std::string("k") + name;
    metrics.CallEnded(record);
  }
  EXPECT_EQ(ValueOf(metrics, R"(kernd_requests_total{code="OK",method="unknown"})"), 3);
  EXPECT_EQ(ValueOf(metrics, R"(kernd_kernel_calls_total{kernel="unknown"})"), 3);
  EXPECT_THAT(metrics.Text(), Not(HasSubstr("Evil")));
}

TEST(Metrics, RejectionsAreCountedByReason) {
  Metrics metrics = MakeMetrics();
  const auto end_with = [&](absl::Status status, std::string_view reason) {
    core::CallRecord record = SomeCall();
    record.status = WithDetail(std::move(status), {.reason = std::string(reason)});
    metrics.CallEnded(record);
  };
  end_with(absl::ResourceExhaustedError("full"), reason::kMemoryFull);
  end_with(absl::UnavailableError("later"), reason::kDraining);
  end_with(absl::UnavailableError("who knows"), "");
  end_with(absl::InvalidArgumentError("bad"), reason::kInvalidField);
  end_with(absl::DeadlineExceededError("late"), reason::kDeadline);
  EXPECT_EQ(ValueOf(metrics, R"(kernd_rejected_total{reason="MEMORY_FULL"})"), 1);
  EXPECT_EQ(ValueOf(metrics, R"(kernd_rejected_total{reason="DRAINING"})"), 1);
  EXPECT_EQ(ValueOf(metrics, R"(kernd_rejected_total{reason="unknown"})"), 1);
  EXPECT_EQ(ValueOf(metrics, R"(kernd_rejected_total{reason="STARTING"})"), 0);
  EXPECT_EQ(ValueOf(metrics, R"(kernd_requests_total{code="INVALID_ARGUMENT",method="Compute/Matmul"})"), 1);
}

TEST(Metrics, StateIsAskedForAtEachScrape) {
  int scrapes = 0;
  const Metrics metrics({}, {}, {}, [&] { return Gauges{.queue_depth = ++scrapes}; });
  EXPECT_EQ(ValueOf(metrics, "kernd_queue_depth"), 1);
  EXPECT_EQ(ValueOf(metrics, "kernd_queue_depth"), 2);
}

TEST(Metrics, StateAndBuild) {
  const Metrics metrics = MakeMetrics();
  EXPECT_EQ(ValueOf(metrics, "kernd_requests_in_flight"), 3);
  EXPECT_EQ(ValueOf(metrics, "kernd_queue_depth"), 2);
  EXPECT_EQ(ValueOf(metrics, "kernd_body_budget_used_bytes"), 1000);
  EXPECT_EQ(ValueOf(metrics, "kernd_body_budget_limit_bytes"), 2000);
  EXPECT_EQ(ValueOf(metrics, R"(kernd_memory_used_bytes{pool="tensors"})"), 10);
  EXPECT_EQ(ValueOf(metrics, R"(kernd_memory_limit_bytes{pool="tensors"})"), 20);
  EXPECT_EQ(ValueOf(metrics, R"(kernd_memory_peak_bytes{pool="tensors"})"), 15);
  EXPECT_EQ(ValueOf(metrics, "kernd_log_lines_dropped_total"), 4);
  EXPECT_EQ(ValueOf(metrics, "kernd_ready"), 1);
  EXPECT_EQ(ValueOf(metrics, "kernd_time_to_ready_seconds"), 0.25);
  constexpr char kBuild[] =
      R"(kernd_build_info{backend="cpu",compiler="GNU 12",cuda_toolkit="13.0",revision="abc",version="1.2.3"})";
  EXPECT_EQ(ValueOf(metrics, kBuild), 1);
}

TEST(Metrics, ManyThreadsLoseNothing) {
  constexpr int kThreads = 4;
  constexpr int kCalls = 2000;
  Metrics metrics = MakeMetrics();
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int call = 0; call < kCalls; ++call) metrics.CallEnded(SomeCall());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ValueOf(metrics, R"(kernd_requests_total{code="OK",method="Compute/Matmul"})"), kThreads * kCalls);
  EXPECT_EQ(ValueOf(metrics, R"(kernd_stage_seconds_count{stage="kernel"})"), kThreads * kCalls);
}

TEST(Metrics, PromtoolFindsNothing) {
  const char* const variable = std::getenv("PROMTOOL");
  const std::string promtool = variable != nullptr ? variable : "promtool";
  if (std::system((promtool + " --version >/dev/null 2>&1").c_str()) != 0) GTEST_SKIP() << "promtool is not installed";
  Metrics metrics = MakeMetrics();
  metrics.CallEnded(SomeCall());
  FILE* const pipe = popen((promtool + " check metrics 2>&1").c_str(), "w");
  ASSERT_NE(pipe, nullptr);
  const std::string page = metrics.Text();
  EXPECT_EQ(fwrite(page.data(), 1, page.size(), pipe), page.size());
  EXPECT_EQ(pclose(pipe), 0) << "promtool's complaints are above";
}

TEST(Process, TellsOfThisProcess) {
  const ProcessStats before = ReadProcessStats();
  EXPECT_GT(before.cpu_seconds, 0);
  EXPECT_GT(before.resident_bytes, 1 << 20);
  EXPECT_GE(before.virtual_bytes, before.resident_bytes);
  EXPECT_GE(before.threads, 1);
  EXPECT_GT(before.max_fds, before.open_fds);
  const double now = absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch());
  EXPECT_GT(before.start_time_seconds, now - 3600);
  EXPECT_LT(before.start_time_seconds, now + 2);
  const int fd = dup(0);
  EXPECT_EQ(ReadProcessStats().open_fds, before.open_fds + 1);
  close(fd);
}

}  // namespace
}  // namespace kernd::telemetry
