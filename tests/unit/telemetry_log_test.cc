// server/telemetry: what a log line may hold, whatever the text in it, and what happens when nobody reads the log.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "kernd/kernels/error.h"
#include "server/telemetry/log.h"
#include "server/telemetry/throttle.h"
#include "spdlog/sinks/ostream_sink.h"
#include "spdlog/spdlog.h"
#include "tests/unit/telemetry_call.h"

namespace kernd::telemetry {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

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

TEST(CallLog, FindingsAreAWarning) {
  core::CallRecord record = SomeCall();
  record.findings = {{.tensor = "a", .nan = 3}, {.tensor = "d", .nan = 12, .inf = 1, .overrun = true}};
  Json line = Json::parse(CallLines(true, record).at(0));
  EXPECT_EQ(line["level"], "warning");
  EXPECT_EQ(line["findings"], "a 3 NaN; d 12 NaN, 1 Inf, overrun");
  record.status = absl::InternalError("x");
  EXPECT_EQ(Json::parse(CallLines(true, record).at(0))["level"], "error");
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

TEST(Throttle, LetsSoManyPassInAPeriodAndCountsTheRest) {
  Throttle throttle(2, absl::Minutes(1));
  const absl::Time start = absl::UnixEpoch();
  EXPECT_EQ(throttle.Admit(start), 0);
  EXPECT_EQ(throttle.Admit(start + absl::Seconds(1)), 0);
  for (int i = 2; i < 60; ++i) EXPECT_EQ(throttle.Admit(start + absl::Seconds(i)), std::nullopt) << i;
  EXPECT_EQ(throttle.Admit(start + absl::Seconds(60)), 58);
  EXPECT_EQ(throttle.Admit(start + absl::Seconds(61)), 0) << "told once";
  EXPECT_EQ(throttle.Admit(start + absl::Seconds(62)), std::nullopt);
  EXPECT_EQ(throttle.Admit(start + absl::Hours(1)), 1);
}

}  // namespace
}  // namespace kernd::telemetry
