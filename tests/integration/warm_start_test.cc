// What an operator declares for the start: shapes to have ready, a file of tuned kernels, checks of every call.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <string>

#include "tests/support/daemon.h"
#include "tests/support/paths.h"
#include "tests/support/raw_client.h"
#include "tests/support/requests.h"

namespace kernd::testing {
namespace {

using grpc::StatusCode;
using ::testing::HasSubstr;

std::pair<int, std::string> RunKernd(const std::string& flags) {
  FILE* const pipe = popen((ProgramPath("kernd") + " " + flags + " 2>&1 >/dev/null").c_str(), "r");
  std::string text;
  std::array<char, 4096> buffer;
  for (std::size_t got; (got = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) text.append(buffer.data(), got);
  return {WEXITSTATUS(pclose(pipe)), text};
}

TEST(Prewarm, DeclaredShapesAreReadyBeforeTheDaemonIs) {
  const auto plain = Daemon::Start();
  ASSERT_NE(plain, nullptr);
  const double kernels = plain->Metrics().at("kernd_prewarm_steps");
  EXPECT_GT(plain->Metrics().at("kernd_prewarm_seconds"), 0);
  ASSERT_EQ(plain->Stop(), 0);

  const auto daemon = Daemon::Start({"--log-level", "debug", "--prewarm",
                                     "matmul:f32:64x65x66:bias:gelu,attention:f16:1x8/2x100x64:causal:lse", "--prewarm",
                                     "matmul:f32:1000000x1000000x1000000"});
  ASSERT_NE(daemon, nullptr);
  const auto metrics = daemon->Metrics();
  EXPECT_EQ(metrics.at("kernd_prewarm_steps"), kernels + 3);
  EXPECT_EQ(metrics.at("kernd_prewarm_steps_done"), kernels + 3);
  EXPECT_EQ(metrics.at("kernd_prewarm_refused"), 1);
  EXPECT_EQ(metrics.at("kernd_memory_used_bytes{pool=\"memory\"}"), 0);
  EXPECT_EQ(metrics.at("kernd_requests_total{code=\"OK\",method=\"Compute/Matmul\"}"), 0) << "these are no calls";
  EXPECT_EQ(daemon->Stop(), 0);
  EXPECT_THAT(daemon->Log(), HasSubstr("attention:f16:1x8/2x100x64:causal:lse"));
  EXPECT_THAT(daemon->Log(), HasSubstr("warning --prewarm matmul:f32:1000000x1000000x1000000 cannot be run here: "));
  EXPECT_THAT(daemon->Log(), HasSubstr("3 shapes of which 1 cannot be run here"));
}

TEST(Prewarm, WhatIsNoShapeIsABadOption) {
  for (const char* rest : {"", " --check-config"}) {
    const auto [code, text] = RunKernd(std::string("--prewarm matmul:f32:1x2x3,conv:f32:1x2x3") + rest);
    EXPECT_EQ(code, 2);
    EXPECT_EQ(text, "kernd: --prewarm is conv:f32:1x2x3: must begin with matmul: or attention:\n");
  }
}

TEST(TuningFile, OneThatCannotBeUsedIsToldAndCounted) {
  const struct {
    const char *path, *state, *line;
  } kCases[] = {{"/proc/self/no_such", "missing", "info --tuning-file is not there yet: the first tuning writes it"},
                {"/dev/null", "damaged", "warning --tuning-file is not used: "}};
  for (const auto& [path, state, line] : kCases) {
    const auto daemon = Daemon::Start({"--tuning-file", path});
    ASSERT_NE(daemon, nullptr);
    EXPECT_EQ(daemon->Metrics().at(std::string("kernd_tuning_file{state=\"") + state + "\"}"), 1);
    EXPECT_EQ(daemon->Stop(), 0);
    EXPECT_THAT(daemon->Log(), HasSubstr(line));
  }
}

TEST(DebugChecks, TellWhatIsNoNumber) {
  v1::MatmulRequest request = SmallMatmul();
  request.mutable_options()->set_request_id("with-a-nan");
  std::string& data = *request.mutable_matmul()->mutable_a()->mutable_data();
  const float nan = std::nanf("");
  std::memcpy(data.data(), &nan, sizeof(nan));
  for (const bool on : {true, false}) {
    const auto daemon = Daemon::Start({"--debug-checks", on ? "true" : "false"});
    ASSERT_NE(daemon, nullptr);
    const auto channel = Connect(daemon->endpoint());
    EXPECT_EQ(RawCall(channel, "/kernd.v1.Compute/Matmul", SmallMatmul().SerializeAsString()).status.error_code(),
              StatusCode::OK);
    EXPECT_EQ(RawCall(channel, "/kernd.v1.Compute/Matmul", request.SerializeAsString()).status.error_code(),
              StatusCode::OK);
    EXPECT_TRUE(daemon->WaitForMetric("kernd_requests_total{code=\"OK\",method=\"Compute/Matmul\"}", 2));
    EXPECT_EQ(daemon->Metrics().at("kernd_debug_findings_total{kind=\"nan\"}"), on ? 2 : 0) << "an operand, the result";
    EXPECT_EQ(daemon->Stop(), 0);
    const std::string log = daemon->Log();
    EXPECT_EQ(log.find("findings=") != std::string::npos, on);
    if (on) {
      EXPECT_THAT(log,
                  ::testing::ContainsRegex("warning event=call id=with-a-nan .*findings=\"a 1 NaN; d [0-9]+ NaN\""));
    }
  }
}

}  // namespace
}  // namespace kernd::testing
