// How the daemon starts and what it asks of the system: limits, environment, configuration, the log of its libraries.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <utility>

#include "tests/support/daemon.h"
#include "tests/support/paths.h"
#include "tests/support/raw_client.h"
#include "tests/support/requests.h"

namespace kernd::testing {
namespace {

using grpc::StatusCode;
using ::testing::HasSubstr;
using ::testing::Not;

// Sets or, with a null value, unsets a variable as long as it lives.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* const old = getenv(name)) old_ = old;
    value == nullptr ? unsetenv(name) : setenv(name, value, 1);
  }
  ~Variable() { old_ ? setenv(name_, old_->c_str(), 1) : unsetenv(name_); }

 private:
  const char* const name_;
  std::optional<std::string> old_;
};

std::string ReadProc(pid_t pid, const std::string& name) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/" + name);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Exit code and standard error of a shell command, in which $KERND is the program.
std::pair<int, std::string> Shell(const std::string& command) {
  FILE* const pipe = popen(("KERND=" + ProgramPath("kernd") + "; { " + command + "; } 2>&1 >/dev/null").c_str(), "r");
  std::string text;
  std::array<char, 4096> buffer;
  for (std::size_t got; (got = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) text.append(buffer.data(), got);
  return {WEXITSTATUS(pclose(pipe)), text};
}

// Beneath this, gRPC would abort in the middle of the start.
TEST(Start, TooFewDescriptorsEndItWithOneLine) {
  const auto [code, text] = Shell("ulimit -n 8; exec \"$KERND\" --listen 127.0.0.1:0 --http-listen off --io-threads 1");
  EXPECT_EQ(code, 2);
  EXPECT_EQ(text, "kernd: the limit of open files (ulimit -Hn) is 8: must be at least 69\n");
}

TEST(Start, AsManyDescriptorsAsItAsksForSuffice) {
  const auto [code, text] = Shell(
      "ulimit -n 69; timeout -s TERM 20 \"$KERND\" --listen 127.0.0.1:0 --http-listen off --io-threads 1 "
      "--port-file /proc/self/fd/none");
  EXPECT_EQ(code, 1) << "it comes as far as its port file";
  EXPECT_THAT(text, HasSubstr("port-file"));
}

TEST(Start, TheSoftLimitOfDescriptorsIsRaised) {
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &old), 0);
  const rlimit low = {.rlim_cur = 64, .rlim_max = old.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  const auto daemon = Daemon::Start();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &old), 0);
  ASSERT_NE(daemon, nullptr);
  rlimit now{};
  ASSERT_EQ(prlimit(daemon->pid(), RLIMIT_NOFILE, nullptr, &now), 0);
  EXPECT_EQ(now.rlim_cur, old.rlim_max);
}

TEST(Start, AConfigurationThatNeverEndsIsRefused) {
  const auto [code, text] = Shell("exec \"$KERND\" --config /dev/zero");
  EXPECT_EQ(code, 2);
  EXPECT_EQ(text, "kernd: --config is /dev/zero: must be a regular file that can be read\n");
}

TEST(Start, IdleTeamsSleepUnlessTheUserWantsThemToSpin) {
  {
    const Variable policy("OMP_WAIT_POLICY", nullptr), spin("GOMP_SPINCOUNT", nullptr);
    const auto daemon = Daemon::Start();
    ASSERT_NE(daemon, nullptr);
    EXPECT_THAT(ReadProc(daemon->pid(), "environ"), HasSubstr("OMP_WAIT_POLICY=passive"));
    EXPECT_EQ(ReadProc(daemon->pid(), "comm"), "kernd\n");
  }
  const Variable policy("OMP_WAIT_POLICY", "active");
  const auto daemon = Daemon::Start();
  ASSERT_NE(daemon, nullptr);
  EXPECT_THAT(ReadProc(daemon->pid(), "environ"), HasSubstr("OMP_WAIT_POLICY=active"));
}

TEST(Start, VariablesThatSetNothingAreTold) {
  const Variable slip("KERND_LOGLEVEL", "debug"), service("KERND_SERVICE_HOST", "10.0.0.1"),
      of_the_tests("KERND_TEST_SOMETHING", "1");
  const auto daemon = Daemon::Start();
  ASSERT_NE(daemon, nullptr);
  EXPECT_EQ(daemon->Stop(), 0);
  EXPECT_THAT(daemon->Log(), HasSubstr("warning KERND_LOGLEVEL is not an option"));
  EXPECT_THAT(daemon->Log(), Not(HasSubstr("KERND_SERVICE_HOST")));
  EXPECT_THAT(daemon->Log(), Not(HasSubstr("KERND_TEST_"))) << "Daemon keeps what is for the tests to itself";
}

// A signal that comes while the daemon starts ends it in order, once it has started.
TEST(Start, ASignalDuringTheStartIsNotLost) {
  const auto daemon = Daemon::Start({}, /*wait_ready=*/false);
  ASSERT_NE(daemon, nullptr);
  EXPECT_EQ(daemon->Stop(), 0);
}

// Text that is no UTF-8 makes protobuf complain; a client must not be able to fill the log with that.
TEST(Start, ComplaintsOfLibrariesAreLinesOfTheLogAndFew) {
  const auto daemon = Daemon::Start({"--log-format", "json"});
  ASSERT_NE(daemon, nullptr);
  const auto channel = Connect(daemon->endpoint());
  // MatmulRequest { options: { request_id: "\xff" } }, whose numbers the generated code knows.
  v1::MatmulRequest request = SmallMatmul();
  request.mutable_options()->set_request_id("@@@@");
  std::string bytes = request.SerializeAsString();
  bytes.replace(bytes.find("@@@@"), 4, "\xff\xff\xff\xff");
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(RawCall(channel, "/kernd.v1.Compute/Matmul", bytes).status.error_code(), StatusCode::INVALID_ARGUMENT);
  }
  EXPECT_EQ(daemon->Stop(), 0);
  const std::string log = daemon->Log();
  EXPECT_THAT(log, Not(HasSubstr("[libprotobuf")));
  int complaints = 0;
  for (std::size_t at = 0; (at = log.find("invalid UTF-8", at)) != std::string::npos; ++at) ++complaints;
  EXPECT_GE(complaints, 1);
  EXPECT_LE(complaints, 10);
}

}  // namespace
}  // namespace kernd::testing
