// server/telemetry: what the metrics page says after which calls, what a log line may hold, and the HTTP pages over a
// real connection.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "kernd/kernels/error.h"
#include "server/telemetry/http_server.h"
#include "server/telemetry/log.h"
#include "server/telemetry/metrics.h"
#include "server/telemetry/process_stats.h"
#include "spdlog/sinks/ostream_sink.h"
#include "spdlog/spdlog.h"

namespace kernd::telemetry {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

// ---- metrics

Gauges SomeGauges() {
  return {.requests_in_flight = 3,
          .queue_depth = 2,
          .body_budget_used_bytes = 1000,
          .body_budget_limit_bytes = 2000,
          .pools = {{"tensors", 10, 20, 15}},
          .log_lines_dropped = 4,
          .ready = true,
          .time_to_ready = absl::Milliseconds(250)};
}

Metrics MakeMetrics() {
  return Metrics({"Compute/Attention", "Compute/Matmul"}, {"matmul_f32_cpu_onednn"},
                 {.version = "1.2.3", .revision = "abc", .backend = "cpu", .compiler = "GNU 12"}, SomeGauges);
}

// The value behind "name{labels} " on the page; NaN where there is none.
double ValueOf(const Metrics& metrics, const std::string& series) {
  std::istringstream page(metrics.Text());
  for (std::string line; std::getline(page, line);) {
    if (line.starts_with(series + " ")) return std::stod(line.substr(series.size() + 1));
  }
  return std::nan("");
}

core::CallRecord SomeCall() {
  core::CallRecord record;
  record.request_id = "id-1";
  record.peer = "ipv4:127.0.0.1:40000";
  record.method = "Compute/Matmul";
  record.shapes = "a=F32[2,3] b=F32[3,4]";
  record.kernel = "matmul_f32_cpu_onednn";
  record.stages.Add(core::Stage::kKernel, absl::Microseconds(30));
  record.total = absl::Microseconds(400);
  record.request_bytes = 72;
  record.reply_bytes = 32;
  record.peak_bytes = 104;
  return record;
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
  for (const char* reason :
       {"STARTING", "DRAINING", "TOO_LARGE", "BODY_BUDGET_FULL", "MEMORY_FULL", "QUEUE_FULL", "unknown"}) {
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
  EXPECT_EQ(ValueOf(metrics, R"(kernd_build_info{backend="cpu",compiler="GNU 12",revision="abc",version="1.2.3"})"), 1);
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

// ---- log

// Runs `write` under a log and returns the lines it wrote.
std::vector<std::string> LinesOf(bool json, const std::string& level, const std::function<void(Log&)>& write) {
  std::ostringstream out;
  {
    Log log({.level = level, .json = json, .sink = std::make_shared<spdlog::sinks::ostream_sink_mt>(out)});
    write(log);
  }
  std::vector<std::string> lines;
  std::istringstream in(out.str());
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::vector<std::string> CallLines(bool json, const core::CallRecord& record, const std::string& level = "info") {
  return LinesOf(json, level, [&](Log& log) { CallLog(log).CallEnded(record); });
}

// Things that have broken logs before.
const std::vector<std::string> kHostile = {"",
                                           "a\nlevel=error code=INTERNAL",
                                           "a\r\nb",
                                           "quote\" back\\slash",
                                           std::string("nul\0inside", 10),
                                           "\x1b[31mred\x1b[0m",
                                           "\xff\xfe not utf-8",
                                           "cut \xe2\x82",
                                           "\xc2\x9b"
                                           "31m C1",
                                           "right \xe2\x80\xae left",
                                           "{} {0} %s %n",
                                           "\x7f del",
                                           "\xed\xa0\x80 surrogate",
                                           std::string(100000, 'x')};

TEST(CallLog, JsonHasTheFields) {
  const auto lines = CallLines(true, SomeCall());
  ASSERT_EQ(lines.size(), 1);
  const Json line = Json::parse(lines[0]);
  EXPECT_EQ(line["level"], "info");
  EXPECT_EQ(line["event"], "call");
  EXPECT_EQ(line["id"], "id-1");
  EXPECT_EQ(line["peer"], "ipv4:127.0.0.1:40000");
  EXPECT_EQ(line["method"], "Compute/Matmul");
  EXPECT_EQ(line["code"], "OK");
  EXPECT_EQ(line["shapes"], "a=F32[2,3] b=F32[3,4]");
  EXPECT_EQ(line["kernel"], "matmul_f32_cpu_onednn");
  EXPECT_EQ(line["total_us"], 400);
  EXPECT_EQ(line["kernel_us"], 30);
  EXPECT_EQ(line["request_bytes"], 72);
  EXPECT_EQ(line["reply_bytes"], 32);
  EXPECT_EQ(line["peak_bytes"], 104);
  EXPECT_FALSE(line.contains("h2d_us"));
  EXPECT_FALSE(line.contains("message"));
  EXPECT_TRUE(std::string(line["time"]).ends_with("Z")) << line["time"];
}

TEST(CallLog, TextHasTheFields) {
  const auto lines = CallLines(false, SomeCall());
  ASSERT_EQ(lines.size(), 1);
  EXPECT_THAT(lines[0], HasSubstr(" info event=call id=id-1 peer=ipv4:127.0.0.1:40000 method=Compute/Matmul code=OK "
                                  "total_us=400 request_bytes=72 reply_bytes=32 kernel_us=30 peak_bytes=104 "
                                  "kernel=matmul_f32_cpu_onednn shapes=\"a=F32[2,3] b=F32[3,4]\""));
}

TEST(CallLog, LevelFollowsTheCode) {
  for (int code = 0; code <= 16; ++code) {
    core::CallRecord record = SomeCall();
    record.status = absl::Status(static_cast<absl::StatusCode>(code), "why");
    const bool fault =
        absl::IsInternal(record.status) || absl::IsUnknown(record.status) || absl::IsDataLoss(record.status);
    const auto lines = CallLines(true, record);
    ASSERT_EQ(lines.size(), 1);
    const Json line = Json::parse(lines[0]);
    EXPECT_EQ(line["level"], fault ? "error" : "info") << record.status;
    EXPECT_EQ(line["code"], absl::StatusCodeToString(record.status.code()));
    EXPECT_EQ(line.contains("message"), code != 0);
    EXPECT_EQ(CallLines(true, record, "error").size(), fault ? 1 : 0) << record.status;
  }
}

TEST(CallLog, ReasonAndMessage) {
  core::CallRecord record = SomeCall();
  record.status = InvalidField("a.shape", "[2]", "must have two dimensions");
  const Json line = Json::parse(CallLines(true, record).at(0));
  EXPECT_EQ(line["reason"], "INVALID_FIELD");
  EXPECT_EQ(line["message"], "a.shape is [2]: must have two dimensions");
}

TEST(CallLog, HostileTextStaysInItsField) {
  for (const bool json : {true, false}) {
    for (const std::string& text : kHostile) {
      core::CallRecord record = SomeCall();
      record.request_id = record.peer = record.method = record.shapes = text;
      record.status = absl::InvalidArgumentError(text);
      const auto lines = CallLines(json, record);
      ASSERT_EQ(lines.size(), 1) << "json " << json << ": " << text;
      EXPECT_LT(lines[0].size(), 8 * 1024u);
      for (const char c : lines[0]) ASSERT_TRUE(c >= 0x20 && c < 0x7f) << "json " << json << ": byte " << int{c};
      if (json) {
        const Json line = Json::parse(lines[0]);
        EXPECT_EQ(line["code"], "INVALID_ARGUMENT") << text;
        EXPECT_EQ(line["level"], "info") << text;
      } else {
        EXPECT_THAT(lines[0], Not(HasSubstr(" level=error"))) << "an unquoted field was forged";
      }
    }
  }
}

TEST(CallLog, ValidTextComesBack) {
  for (const std::string& text :
       {std::string("a\nb"), std::string("quote\" back\\slash"), std::string("gr\xc3\xbc\xc3\x9f")}) {
    core::CallRecord record = SomeCall();
    record.request_id = text;
    EXPECT_EQ(Json::parse(CallLines(true, record).at(0))["id"], text);
  }
}

TEST(Log, OrdinaryLinesAreEscapedToo) {
  for (const bool json : {true, false}) {
    for (const std::string& text : kHostile) {
      const auto lines = LinesOf(json, "info", [&](Log&) {
        spdlog::info(text);
        spdlog::debug("below the level");
      });
      ASSERT_EQ(lines.size(), 1) << text;
      for (const char c : lines[0]) ASSERT_TRUE(c >= 0x20 && c < 0x7f) << "json " << json << ": byte " << int{c};
      if (json) {
        EXPECT_TRUE(Json::parse(lines[0]).contains("message")) << text;
      }
    }
  }
}

TEST(Log, WritesAllThatIsQueuedWhenItGoes) {
  constexpr int kLines = 4000;  // fewer than the queue holds
  const auto lines = LinesOf(true, "info", [](Log& log) {
    for (int i = 0; i < kLines; ++i) spdlog::info(std::to_string(i));
    EXPECT_EQ(log.lines_dropped(), 0);
  });
  ASSERT_EQ(lines.size(), kLines);
  EXPECT_EQ(Json::parse(lines.back())["message"], std::to_string(kLines - 1));
}

// A sink that stands still until it is told to go on.
class StuckSink : public spdlog::sinks::base_sink<std::mutex> {
 public:
  void Release() {
    released_ = true;
    released_.notify_all();
  }
  int lines() const { return lines_; }

 protected:
  void sink_it_(const spdlog::details::log_msg&) override {
    released_.wait(false);
    ++lines_;
  }
  void flush_() override {}

 private:
  std::atomic<bool> released_ = false;
  std::atomic<int> lines_ = 0;
};

TEST(Log, AStuckReaderBlocksNobodyAndLossesAreCounted) {
  constexpr int kLines = static_cast<int>(Log::kQueueLines) + 1000;
  const auto sink = std::make_shared<StuckSink>();
  std::int64_t dropped = 0;
  {
    Log log({.sink = sink});
    for (int i = 0; i < kLines; ++i) spdlog::info("line");  // would hang here if it waited for the sink
    dropped = log.lines_dropped();
    EXPECT_GE(dropped, 999);  // one line may be in the sink already
    sink->Release();
  }
  EXPECT_EQ(sink->lines() + dropped, kLines);
}

// ---- HTTP

struct Fixture {
  explicit Fixture(absl::Duration connection_time = absl::Seconds(5)) {
    auto started =
        HttpServer::Start("127.0.0.1", 0,
                          {.title = "kernd 1.2.3",
                           .metrics = [] { return std::string("# HELP kernd_ready x\n"); },
                           .ready = [this] { return ready ? absl::OkStatus() : absl::UnavailableError("draining"); }},
                          connection_time);
    EXPECT_TRUE(started.ok()) << started.status();
    if (started.ok()) server = *std::move(started);
  }

  httplib::Result Get(const std::string& path) const {
    httplib::Client client("127.0.0.1", server->port());
    return client.Get(path.c_str());
  }

  std::atomic<bool> ready = true;
  std::unique_ptr<HttpServer> server;
};

void ConnectTo(int fd, int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
}

int Connect(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  ConnectTo(fd, port);
  return fd;
}

void Send(int fd, const std::string& text) {
  EXPECT_EQ(send(fd, text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
}

// All that the other side sends until it closes.
std::string ReadAll(int fd) {
  std::string text;
  char buffer[4096];
  for (ssize_t got; (got = recv(fd, buffer, sizeof(buffer), 0)) > 0;)
    text.append(buffer, static_cast<std::size_t>(got));
  return text;
}

TEST(Http, Pages) {
  const Fixture http;
  ASSERT_NE(http.server, nullptr);
  EXPECT_EQ(http.server->address(), "127.0.0.1:" + std::to_string(http.server->port()));
  const auto metrics = http.Get("/metrics");
  ASSERT_TRUE(metrics);
  EXPECT_EQ(metrics->status, 200);
  EXPECT_EQ(metrics->body, "# HELP kernd_ready x\n");
  EXPECT_EQ(metrics->get_header_value("Content-Type"), "text/plain; version=0.0.4; charset=utf-8");
  const auto health = http.Get("/healthz");
  ASSERT_TRUE(health);
  EXPECT_EQ(health->status, 200);
  const auto index = http.Get("/");
  ASSERT_TRUE(index);
  EXPECT_THAT(index->body, HasSubstr("kernd 1.2.3\n"));
  EXPECT_THAT(index->body, HasSubstr("/metrics"));
  const auto none = http.Get("/etc/passwd");
  ASSERT_TRUE(none);
  EXPECT_EQ(none->status, 404);
}

TEST(Http, ReadinessSaysWhyNot) {
  Fixture http;
  ASSERT_NE(http.server, nullptr);
  EXPECT_EQ(http.Get("/readyz")->status, 200);
  http.ready = false;
  const auto answer = http.Get("/readyz");
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 503);
  EXPECT_EQ(answer->body, "draining\n");
}

TEST(Http, HeadHasNoBodyAndPostIsRefused) {
  const Fixture http;
  httplib::Client client("127.0.0.1", http.server->port());
  const auto head = client.Head("/metrics");
  ASSERT_TRUE(head);
  EXPECT_EQ(head->status, 200);
  EXPECT_EQ(head->body, "");
  const auto post = client.Post("/metrics", "x=1", "text/plain");
  ASSERT_TRUE(post);
  EXPECT_EQ(post->status, 404);
}

TEST(Http, APortIsTakenOnce) {
  const Fixture http;
  const auto second = HttpServer::Start("127.0.0.1", http.server->port(), {});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable) << second.status();
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(http.server->address()));
}

TEST(Http, NonsenseAndEndlessRequestsEndTheirConnectionAlone) {
  const Fixture http;
  for (const std::string& request :
       {std::string("\r\n\r\n"), std::string("GET\r\n\r\n"), std::string("GET / HTTP/9.9\r\n\r\n"),
        std::string(64, '\0') + "\r\n\r\n", "GET /" + std::string(100000, 'a') + " HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\n" + std::string(200000, 'h')}) {
    const int fd = Connect(http.server->port());
    for (std::size_t sent = 0; sent < request.size();) {
      const ssize_t now = send(fd, request.data() + sent, request.size() - sent, MSG_NOSIGNAL);
      if (now <= 0) break;  // cut off already
      sent += static_cast<std::size_t>(now);
    }
    EXPECT_THAT(ReadAll(fd), Not(HasSubstr(" 200 OK"))) << request.substr(0, 20);
    close(fd);
  }
  EXPECT_EQ(http.Get("/healthz")->status, 200);
}

// Connections may last an hour here: without cutting them off, Stop would not come back.
TEST(Http, StopCutsOffWhoHasSentHalfARequest) {
  Fixture http(absl::Hours(1));
  std::vector<int> fds;
  for (int i = 0; i < 8; ++i) {
    fds.push_back(Connect(http.server->port()));
    Send(fds.back(), "GET /met");
  }
  http.server->Stop();
  for (const int fd : fds) {
    EXPECT_EQ(ReadAll(fd), "");
    close(fd);
  }
  http.server->Stop();
}

TEST(Http, TimeIsCountedForTheWholeConnection) {
  const Fixture http(absl::Milliseconds(50));
  const int fd = Connect(http.server->port());
  // A byte at a time, for ever: a limit for each read would never be reached.
  while (send(fd, "a", 1, MSG_NOSIGNAL) == 1) std::this_thread::yield();
  close(fd);
  EXPECT_EQ(http.Get("/healthz")->status, 200);
}

TEST(Http, AFloodOfConnectionsIsShedAndForgotten) {
  const Fixture http(absl::Hours(1));
  std::vector<int> fds;
  // Two are being served, 64 wait, and from the next on each is closed unanswered.
  for (int i = 0; i < 2 + 64 + 4; ++i) fds.push_back(Connect(http.server->port()));
  EXPECT_EQ(ReadAll(fds.back()), "");
  for (const int fd : fds) close(fd);
  EXPECT_EQ(http.Get("/healthz")->status, 200);
}

TEST(Http, ManyStartsAndStopsLeaveNothingBehind) {
  { const Fixture once; }  // what the library opens once
  const ProcessStats before = ReadProcessStats();
  for (int i = 0; i < 50; ++i) {
    Fixture http;
    if (i % 2 == 0) {
      EXPECT_EQ(http.Get("/healthz")->status, 200);
    }
  }
  EXPECT_EQ(ReadProcessStats().open_fds, before.open_fds);
  EXPECT_EQ(ReadProcessStats().threads, before.threads);
}

TEST(Http, RunningOutOfFileDescriptorsDelaysAnswersOnly) {
  const Fixture http;
  const int first = Connect(http.server->port());
  const int second = socket(AF_INET, SOCK_STREAM, 0);
  std::vector<int> rest;
  rlimit old = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &old), 0);
  const rlimit low = {static_cast<rlim_t>(second + 8), old.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  for (int fd; (fd = dup(first)) >= 0;) rest.push_back(fd);
  ASSERT_FALSE(rest.empty());
  // One descriptor for two connections: the second waits for the first to end, and the server must not give up
  // meanwhile.
  close(rest.back());
  rest.pop_back();
  ConnectTo(second, http.server->port());
  Send(second, "GET /healthz HTTP/1.1\r\n\r\n");
  Send(first, "GET /healthz HTTP/1.1\r\n\r\n");
  EXPECT_THAT(ReadAll(first), HasSubstr(" 200 OK"));
  EXPECT_THAT(ReadAll(second), HasSubstr(" 200 OK"));
  for (const int fd : rest) close(fd);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &old), 0);
  close(first);
  close(second);
}

// Failures of accept other than a full table of descriptors make the library close its socket and return.
TEST(Http, AListenerThatFailsIsBoundAgain) {
  const Fixture http;
  for (int fd = 0; fd < 1024; ++fd) {
    int listening = 0;
    socklen_t size = sizeof(listening);
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) == 0 && listening) shutdown(fd, SHUT_RDWR);
  }
  auto answer = http.Get("/healthz");
  while (!answer) answer = http.Get("/healthz");
  EXPECT_EQ(answer->status, 200);
}

}  // namespace
}  // namespace kernd::telemetry
