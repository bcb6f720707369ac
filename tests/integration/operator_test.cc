// kernctl doctor and kernctl top against a real kernd.
#include <algorithm>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/cli/app.h"
#include "client/cli/context.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/daemon.h"

namespace kernd::testing {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

class OperatorTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { daemon_ = Daemon::Start(); }
  static void TearDownTestSuite() { daemon_.reset(); }
  void SetUp() override { ASSERT_NE(daemon_, nullptr); }

  // The exit code; what was printed goes to `out`.
  static int Kernctl(std::vector<std::string> arguments, std::string* out) {
    arguments.insert(arguments.begin(), {"--endpoint", daemon_->endpoint()});
    std::ostringstream stream, err;
    const int code = cli::Run(std::move(arguments), stream, err);
    EXPECT_EQ(err.str(), "");
    *out = stream.str();
    return code;
  }

  static std::unique_ptr<Daemon> daemon_;
};

std::unique_ptr<Daemon> OperatorTest::daemon_;

TEST_F(OperatorTest, DoctorFindsTheDaemonWell) {
  std::string out;
  EXPECT_EQ(Kernctl({"doctor", "--http", daemon_->http(), "--json"}, &out), 0) << out;
  int seen = 0;
  const json report = json::parse(out);
  for (const json& check : report.at("checks")) {
    // What is said of the machine is not the daemon's to make well.
    for (const char* name : {"versions", "port", "health", "backend", "call", "http", "options", "clock"}) {
      if (check.at("name") != name) continue;
      EXPECT_EQ(check.at("status"), "ok") << check;
      ++seen;
    }
  }
  EXPECT_EQ(seen, 8);
  EXPECT_EQ(Kernctl({"doctor", "--http", daemon_->http()}, &out), 0) << out;
  EXPECT_THAT(out, HasSubstr("matmul F32 4x4x4 in "));
  EXPECT_THAT(out, HasSubstr("\nproblems: 0, "));
}

TEST_F(OperatorTest, DoctorTakesTheHttpPortForWhatItIs) {
  std::ostringstream out, err;
  EXPECT_EQ(cli::Run({"--endpoint", daemon_->http(), "doctor", "--http", daemon_->http()}, out, err), 1);
  EXPECT_THAT(out.str(), HasSubstr("an HTTP/1 server answers there"));
  EXPECT_THAT(out.str(), HasSubstr("name kernd's gRPC port"));
}

TEST_F(OperatorTest, TopShowsTheCallsMade) {
  std::string out;
  ASSERT_EQ(Kernctl({"matmul", "--random", "8x8x8", "--json"}, &out), 0) << out;
  const std::string kernel = json::parse(out).at("kernel").at("name");
  std::ostringstream refused, err;
  EXPECT_EQ(cli::Run({"--endpoint", daemon_->endpoint(), "matmul", "--random", "8x8x8", "--kernel", "none_such"},
                     refused, err),
            cli::kCallFailed);
  // A client has its reply before the daemon has counted the call. The last of the calls is the refused one.
  const absl::Time end = absl::Now() + absl::Seconds(20);
  do {
    ASSERT_EQ(Kernctl({"top", "--http", daemon_->http(), "--once"}, &out), 0) << out;
  } while (out.find("none_such") == std::string::npos && absl::Now() < end);
  EXPECT_THAT(out, HasSubstr(", ready, up "));
  EXPECT_THAT(out, HasSubstr("Compute/Matmul"));
  EXPECT_THAT(out, HasSubstr("\n" + kernel + " "));
  EXPECT_THAT(out, HasSubstr("none_such"));
  EXPECT_EQ(Kernctl({"top", "--http", daemon_->http()}, &out), 0) << "no terminal: as --once";
  EXPECT_EQ(Kernctl({"top", "--http", daemon_->http(), "--once", "--json"}, &out), 0);
  EXPECT_EQ(json::parse(out).at("schema"), 1);
  EXPECT_EQ(std::count(out.begin(), out.end(), '\n'), 1) << "one object on one line";
}

TEST_F(OperatorTest, TopSaysWhoDoesNotAnswer) {
  std::ostringstream out, err;
  EXPECT_EQ(cli::Run({"top", "--once", "--http", "unix:/nowhere"}, out, err), cli::kNotConnected);
  EXPECT_THAT(err.str(), HasSubstr("no kernd's HTTP port at unix:/nowhere (No such file or directory)"));
  err.str("");
  EXPECT_NE(cli::Run({"top", "--once", "--http", daemon_->endpoint()}, out, err), 0);
  EXPECT_THAT(err.str(), HasSubstr(daemon_->endpoint()));
}

}  // namespace
}  // namespace kernd::testing
