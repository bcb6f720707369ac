// server/telemetry: what /status.json says, and of hostile text; what the page may do.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "kernd/kernels/error.h"
#include "server/telemetry/printable.h"
#include "server/telemetry/status_json.h"
#include "server/telemetry/status_page.h"
#include "tests/unit/telemetry_call.h"

namespace kernd::telemetry {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::Le;
using ::testing::Not;

struct Fixture {
  Fixture() {
    facts.build = {
        .version = "1.2.3", .revision = "abc", .backend = "cpu", .compiler = "GNU 12", .cuda_toolkit = "13.0"};
    facts.devices = {{.uuid = "GPU-1",
                      .name = "NVIDIA H200",
                      .tier = "advanced",
                      .compute_capability = "9.0",
                      .pci = "0000:01:00.0",
                      .driver = "580",
                      .runtime = "13000",
                      .processors = 132,
                      .memory_bytes = 150000000000,
                      .hardware_has = {"wgmma", "tma"},
                      .build_has = {"wgmma"},
                      .kernels_use = {"wgmma"}}};
    facts.devices_not_used = {"NVIDIA T4: no kernels for it"};
    facts.options_not_used = {"--tuning-file has no effect: the CPU serves"};
    facts.kernels = {{.name = "matmul_f32_cpu_onednn", .operation = "matmul", .how = "by oneDNN"},
                     {.name = "idle", .operation = "attention", .how = "never asked for"}};
    state = {.name = "ready",
             .why = "",
             .gauges = {.requests_in_flight = 3,
                        .queue_depth = 2,
                        .body_budget_used_bytes = 1000,
                        .body_budget_limit_bytes = 2000,
                        .pools = {{"memory", 10, 20, 15}},
                        .log_lines_dropped = 4,
                        .ready = true,
                        .time_to_ready = absl::Milliseconds(250)}};
  }

  void End(const core::CallRecord& record) {
    metrics.CallEnded(record);
    history.CallEnded(record);
  }
  std::string Text() const { return StatusJson(facts, state, metrics, history.Read()); }
  json Status() const { return json::parse(Text()); }

  DaemonFacts facts;
  DaemonState state;
  Metrics metrics{{"Compute/Matmul"}, {"matmul_f32_cpu_onednn", "idle"}, {}, [] { return Gauges{}; }};
  CallHistory history{{"Compute/Matmul"}};
};

std::vector<std::string> Keys(const json& object) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : object.items()) keys.push_back(key);
  return keys;
}

// README.md describes these names, and pages and scripts read them: a change needs another "schema".
TEST(StatusJson, SchemaOne) {
  Fixture fixture;
  core::CallRecord record = SomeCall();
  fixture.End(record);
  record.status = absl::InternalError("broken");
  fixture.End(record);
  const json status = fixture.Status();
  EXPECT_EQ(status["schema"], 1);
  EXPECT_THAT(Keys(status), ElementsAre("calls", "devices", "devices_not_used", "errors", "kernels", "latency",
                                        "latency_max_relative_error", "load", "options_not_used", "pools", "process",
                                        "program", "recent_seconds", "schema", "state", "time_seconds"));
  EXPECT_THAT(Keys(status["program"]), ElementsAre("backend", "compiler", "cuda_toolkit", "revision", "version"));
  EXPECT_THAT(Keys(status["process"]), ElementsAre("cpu_seconds", "max_fds", "open_fds", "resident_bytes",
                                                   "start_time_seconds", "threads", "uptime_seconds"));
  EXPECT_THAT(Keys(status["state"]), ElementsAre("name", "time_to_ready_seconds", "why"));
  EXPECT_THAT(Keys(status["devices"][0]),
              ElementsAre("build_has", "compute_capability", "driver", "hardware_has", "kernels_use", "memory_bytes",
                          "name", "pci", "processors", "runtime", "tier", "uuid"));
  EXPECT_THAT(Keys(status["pools"][0]), ElementsAre("limit_bytes", "name", "peak_bytes", "used_bytes"));
  EXPECT_THAT(Keys(status["load"]), ElementsAre("body_budget_limit_bytes", "body_budget_used_bytes", "calls_in_flight",
                                                "calls_queued", "log_lines_dropped"));
  EXPECT_THAT(Keys(status["calls"]),
              ElementsAre("by_method", "failed_recent", "failed_total", "recent", "slot_seconds", "slots", "total"));
  EXPECT_THAT(Keys(status["calls"]["by_method"][0]), ElementsAre("code", "method", "recent", "total"));
  EXPECT_THAT(Keys(status["calls"]["slots"][0]), ElementsAre("failed", "ok"));
  EXPECT_THAT(Keys(status["latency"][0]),
              ElementsAre("max_seconds", "p50_seconds", "p90_seconds", "p99_seconds", "recent", "stage"));
  EXPECT_THAT(Keys(status["kernels"][0]), ElementsAre("how", "name", "operation", "total"));
  EXPECT_THAT(Keys(status["errors"][0]), ElementsAre("code", "fault", "field", "message", "method", "number", "peer",
                                                     "reason", "request_id", "time_seconds"));
}

TEST(StatusJson, SaysWhatItWasTold) {
  Fixture fixture;
  fixture.state.name = "starting";
  fixture.state.why = "warming up, 3 of 10";
  const json status = fixture.Status();
  EXPECT_EQ(status["program"]["version"], "1.2.3");
  EXPECT_EQ(status["program"]["cuda_toolkit"], "13.0");
  EXPECT_EQ(status["state"]["name"], "starting");
  EXPECT_EQ(status["state"]["why"], "warming up, 3 of 10");
  EXPECT_EQ(status["state"]["time_to_ready_seconds"], 0.25);
  EXPECT_EQ(status["devices"][0]["name"], "NVIDIA H200");
  EXPECT_EQ(status["devices"][0]["hardware_has"], json({"wgmma", "tma"}));
  EXPECT_EQ(status["devices"][0]["kernels_use"], json::array({"wgmma"}));
  EXPECT_EQ(status["devices_not_used"], json::array({"NVIDIA T4: no kernels for it"}));
  EXPECT_EQ(status["options_not_used"], json::array({"--tuning-file has no effect: the CPU serves"}));
  EXPECT_EQ(status["pools"],
            json::parse(R"([{"name": "memory", "used_bytes": 10, "peak_bytes": 15, "limit_bytes": 20}])"));
  EXPECT_EQ(status["load"]["calls_in_flight"], 3);
  EXPECT_EQ(status["load"]["calls_queued"], 2);
  EXPECT_EQ(status["load"]["body_budget_used_bytes"], 1000);
  EXPECT_EQ(status["load"]["log_lines_dropped"], 4);
  const double now = absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch());
  EXPECT_THAT(status["time_seconds"].get<double>(), AllOf(Ge(now - 60), Le(now)));
  EXPECT_GE(status["process"]["uptime_seconds"], 0);
  EXPECT_EQ(status["calls"]["by_method"], json::array());
  EXPECT_EQ(status["errors"], json::array());
}

TEST(StatusJson, CallsAreCountedRecentlyAndSinceTheStart) {
  Fixture fixture;
  core::CallRecord record = SomeCall();
  for (int i = 0; i < 5; ++i) fixture.metrics.CallEnded(record);  // long ago: the history has forgotten them
  fixture.End(record);
  record.status = absl::DeadlineExceededError("late");
  fixture.End(record);
  const json status = fixture.Status();
  EXPECT_EQ(status["calls"]["total"], 7);
  EXPECT_EQ(status["calls"]["failed_total"], 1);
  EXPECT_EQ(status["calls"]["recent"], 2);
  EXPECT_EQ(status["calls"]["failed_recent"], 1);
  EXPECT_EQ(status["calls"]["by_method"], json::parse(R"([
      {"method": "Compute/Matmul", "code": "OK", "total": 6, "recent": 1},
      {"method": "Compute/Matmul", "code": "DEADLINE_EXCEEDED", "total": 1, "recent": 1}])"));
  EXPECT_EQ(status["kernels"][0]["total"], 7);
  EXPECT_EQ(status["kernels"][1]["total"], 0);
  ASSERT_EQ(status["latency"].size(), 1 + core::kNumStages);
  EXPECT_EQ(status["latency"][0]["stage"], "total");
  EXPECT_EQ(status["latency"][0]["recent"], 2);
  for (std::size_t i = 0; i < core::kNumStages; ++i) EXPECT_EQ(status["latency"][i + 1]["stage"], core::kStageNames[i]);
}

TEST(StatusJson, AnErrorHasItsDetails) {
  Fixture fixture;
  core::CallRecord record = SomeCall();
  record.status = InvalidField("matmul.a.shape", "[2, -1]", "sizes must not be negative");
  fixture.End(record);
  const json error = fixture.Status()["errors"][0];
  EXPECT_EQ(error["method"], "Compute/Matmul");
  EXPECT_EQ(error["code"], "INVALID_ARGUMENT");
  EXPECT_EQ(error["fault"], false);
  EXPECT_EQ(error["reason"], "INVALID_FIELD");
  EXPECT_EQ(error["field"], "matmul.a.shape");
  EXPECT_EQ(error["message"], "matmul.a.shape is [2, -1]: sizes must not be negative");
  EXPECT_EQ(error["request_id"], "id-1");
  EXPECT_EQ(error["peer"], "ipv4:127.0.0.1:40000");
  record.status = absl::InternalError("broken");
  fixture.End(record);
  EXPECT_EQ(fixture.Status()["errors"][0]["fault"], true);
}

// Whatever a client sends: the answer is JSON of printable ASCII, its texts have an end, and they say what was sent.
TEST(StatusJson, HostileTextsAreInert) {
  std::string every;
  for (int c = 0; c < 256; ++c) every += static_cast<char>(c);
  for (const std::string& text :
       {every, std::string("</script><script>alert(1)</script>"), std::string("\"},\"state\":{\"name\":\"ready\"}"),
        std::string("\\u202e\xe2\x80\xae\xc0\xaf\xed\xa0\x80"), std::string(100000, '"'), std::string(100000, '\0')}) {
    Fixture fixture;
    core::CallRecord record = SomeCall();
    record.request_id = record.method = record.peer = record.shapes = record.kernel = text;
    record.status = WithDetail(absl::InvalidArgumentError(text), {.reason = text, .field = text});
    fixture.End(record);
    fixture.state.why = text;
    fixture.facts.devices_not_used = fixture.facts.options_not_used = {text};
    const std::string page = fixture.Text();
    EXPECT_THAT(page.substr(0, page.size() - 1), Each(AllOf(Ge(' '), Le('~'))));
    EXPECT_LT(page.size(), 40000u);
    const json status = json::parse(page);
    const json error = status["errors"][0];
    for (const char* field : {"message", "reason", "field"}) {
      EXPECT_EQ(error[field], Printable(text, kMaxStatusTextBytes)) << field;
    }
    EXPECT_THAT(std::string(error["request_id"]), HasSubstr(Printable(text.substr(0, 30))));
    EXPECT_EQ(status["state"]["name"], "ready");
    EXPECT_EQ(status["calls"]["by_method"][0]["method"], "unknown");
  }
}

TEST(Printable, ClipsAndEscapes) {
  EXPECT_EQ(Printable("a b~"), "a b~");
  EXPECT_EQ(Printable(std::string("\n\0\x7f\xff", 4)), "\\x0a\\x00\\x7f\\xff");
  EXPECT_EQ(Printable("abcdef", 3), "abc...");
  EXPECT_EQ(Printable("abc", 3), "abc");
}

TEST(StatusPage, IsOnItsOwn) {
  const std::string page(kStatusPage), policy(kStatusPagePolicy);
  EXPECT_TRUE(page.starts_with("<!doctype html>"));
  EXPECT_TRUE(page.ends_with("</html>\n"));
  for (const char* never : {"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "<script src",
                            "<link rel=\"stylesheet\"", "style=\"", "onclick", "https://", "url(", "@import"}) {
    EXPECT_THAT(page, Not(HasSubstr(never)));
  }
  EXPECT_THAT(policy, HasSubstr("default-src 'none'; script-src 'sha256-"));
  EXPECT_THAT(policy, HasSubstr("style-src 'sha256-"));
  EXPECT_THAT(policy, Not(HasSubstr("unsafe")));
  EXPECT_THAT(policy, Not(HasSubstr("@")));
}

}  // namespace
}  // namespace kernd::telemetry
