// /status.json of a daemon that serves, refuses and drains.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <nlohmann/json.hpp>
#include <string>

#include "tests/support/daemon.h"
#include "tests/support/pending_call.h"
#include "tests/support/raw_client.h"
#include "tests/support/requests.h"

namespace kernd::testing {
namespace {

using grpc::StatusCode;
using nlohmann::json;
using ::testing::HasSubstr;

constexpr char kMatmul[] = "/kernd.v1.Compute/Matmul";

json Status(const Daemon& daemon) {
  const auto [code, body] = HttpGet(daemon.http(), "/status.json");
  EXPECT_EQ(code, 200);
  return json::parse(body, nullptr, /*allow_exceptions=*/false);
}

// The entry of `list` whose `key` is `value`; null where there is none.
json Entry(const json& list, const std::string& key, const json& value) {
  for (const json& entry : list) {
    if (entry[key] == value) return entry;
  }
  return {};
}

TEST(Status, SaysWhatServes) {
  const auto daemon = Daemon::Start({"--memory-limit", "64MiB", "--body-budget", "128MiB"});
  ASSERT_NE(daemon, nullptr);
  const json status = Status(*daemon);
  EXPECT_EQ(status["state"]["name"], "ready");
  EXPECT_EQ(status["state"]["why"], "");
  EXPECT_GT(status["state"]["time_to_ready_seconds"], 0);
  EXPECT_GT(status["process"]["uptime_seconds"], 0);
  ASSERT_EQ(status["devices"].size(), 1u);
  EXPECT_FALSE(status["devices"][0]["kernels_use"].empty());
  EXPECT_GE(status["devices"][0]["processors"], 1);
  EXPECT_GT(status["kernels"].size(), 1u);
  EXPECT_EQ(status["load"]["body_budget_limit_bytes"], 128 << 20);
  EXPECT_EQ(status["errors"], json::array());
  EXPECT_EQ(status["calls"]["total"], 0);
  if (status["program"]["backend"] == "cpu") {
    EXPECT_EQ(status["devices"][0]["tier"], "cpu");
    EXPECT_EQ(status["devices_not_used"].size(), 1u);
    EXPECT_EQ(Entry(status["pools"], "name", "memory")["limit_bytes"], 64 << 20);
  }
}

TEST(Status, NamesOptionsWithoutEffectThere) {
  const auto daemon = Daemon::Start({"--pinned-memory", "1MiB", "--shared-memory-limit", "1MiB"});
  ASSERT_NE(daemon, nullptr);
  std::vector<std::string> lines = {"--shared-memory-limit has no effect: there is no --shared-memory-socket"};
  if (!OnGpu()) lines.insert(lines.begin(), "--pinned-memory has no effect: the CPU serves");
  EXPECT_EQ(Status(*daemon)["options_not_used"], json(lines));
  for (const std::string& line : lines) EXPECT_THAT(daemon->Log(), HasSubstr(" warning " + line + "\n"));
}

TEST(Status, CountsCallsAndKeepsErrors) {
  const auto daemon = Daemon::Start();
  ASSERT_NE(daemon, nullptr);
  const auto channel = Connect(daemon->endpoint());
  v1::MatmulReply reply;
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(Call(channel, kMatmul, SmallMatmul(), reply).status.ok());
  const std::string kernel = reply.kernel().name();
  v1::MatmulRequest bad = SmallMatmul();
  bad.mutable_options()->set_request_id("<script>alert('id')</script>");
  bad.mutable_matmul()->mutable_a()->mutable_shape()->Set(1, 3);
  EXPECT_EQ(Call(channel, kMatmul, bad, reply).status.error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(RawCall(channel, "/kernd.v1.Made/<Up>", "").status.error_code(), StatusCode::UNIMPLEMENTED);
  ASSERT_TRUE(daemon->WaitForMetric(R"(kernd_requests_total{code="UNIMPLEMENTED",method="unknown"})", 1));
  ASSERT_TRUE(daemon->WaitForMetric(R"(kernd_requests_total{code="INVALID_ARGUMENT",method="Compute/Matmul"})", 1));
  ASSERT_TRUE(daemon->WaitForMetric(R"(kernd_requests_total{code="OK",method="Compute/Matmul"})", 3));

  json status = Status(*daemon);
  // The metrics count a call just before the history does.
  for (int i = 0; i < 1000 && status["calls"]["recent"] != 5; ++i) status = Status(*daemon);
  EXPECT_EQ(status["calls"]["total"], 5);
  EXPECT_EQ(status["calls"]["failed_total"], 2);
  EXPECT_EQ(status["calls"]["recent"], 5);
  EXPECT_EQ(status["calls"]["failed_recent"], 2);
  const json ok = Entry(status["calls"]["by_method"], "code", "OK");
  EXPECT_EQ(ok["method"], "Compute/Matmul");
  EXPECT_EQ(ok["total"], 3);
  EXPECT_EQ(ok["recent"], 3);
  EXPECT_EQ(Entry(status["kernels"], "name", kernel)["total"], 3) << kernel;
  const json stage = Entry(status["latency"], "stage", "kernel");
  EXPECT_EQ(stage["recent"], 3);
  EXPECT_GT(stage["p50_seconds"], 0);
  EXPECT_LE(stage["p50_seconds"], stage["p90_seconds"]);
  EXPECT_LE(stage["p90_seconds"], stage["p99_seconds"]);
  EXPECT_LE(stage["p99_seconds"], stage["max_seconds"]);
  EXPECT_GE(Entry(status["latency"], "stage", "total")["max_seconds"], stage["p50_seconds"]);
  EXPECT_GT(Entry(status["pools"], "name", "memory")["peak_bytes"], 0);

  ASSERT_EQ(status["errors"].size(), 2u);
  const json error = Entry(status["errors"], "code", "INVALID_ARGUMENT");
  EXPECT_EQ(error["method"], "Compute/Matmul");
  EXPECT_EQ(error["reason"], "INVALID_FIELD");
  EXPECT_THAT(std::string(error["field"]), HasSubstr("matmul."));
  EXPECT_THAT(std::string(error["message"]), HasSubstr(std::string(error["field"])));
  EXPECT_EQ(error["request_id"], "<script>alert('id')</script>");
  EXPECT_EQ(error["fault"], false);
  EXPECT_EQ(Entry(status["errors"], "code", "UNIMPLEMENTED")["method"], "unknown");
}

TEST(Status, ShowsWhatIsInFlightWhileItDrains) {
  const auto daemon = Daemon::Start({"--cpu-threads", "1", "--drain-delay", "60s"});
  ASSERT_NE(daemon, nullptr);
  PendingCall call(Connect(daemon->endpoint()), EndlessCall());
  ASSERT_TRUE(daemon->WaitForMetric("kernd_requests_in_flight", 1));
  EXPECT_EQ(Status(*daemon)["load"]["calls_in_flight"], 1);
  daemon->Signal(SIGTERM);
  json state = Status(*daemon)["state"];
  for (int i = 0; i < 1000 && state["name"] == "ready"; ++i) state = Status(*daemon)["state"];
  EXPECT_EQ(state["name"], "draining");
  EXPECT_NE(state["why"], "");
  call.Cancel();
  EXPECT_EQ(call.Finish().error_code(), StatusCode::CANCELLED);
  daemon->Signal(SIGTERM);
  EXPECT_EQ(daemon->Wait(10), 128 + SIGTERM);
}

}  // namespace
}  // namespace kernd::testing
