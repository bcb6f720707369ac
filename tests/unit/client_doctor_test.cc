// kernctl doctor as a whole: all checks on machines that were made up, and the command. The rooms that it looks into
// have files of their own: client_doctor_{daemon,machine,gpu}_test.cc.
#include <algorithm>
#include <cstdlib>

#include "tests/unit/client_cli_fixture.h"
#include "tests/unit/client_doctor_case.h"

namespace kernd::cli::doctor {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

TEST(DoctorTest, AllIsWell) {
  for (const Check& check : Examine(Well())) {
    const bool proxy = std::string(check.name) == "proxy";
    EXPECT_EQ(check.status, proxy ? Status::kNotApplicable : Status::kOk) << check.name << ": " << check.found;
    EXPECT_NE(check.found, "") << check.name;
    EXPECT_EQ(check.todo, "") << check.name;
  }
}

TEST(DoctorTest, WithoutGpuOrDaemonChecksDoNotApply) {
  for (const Check& check : Examine(NoGpu())) {
    EXPECT_THAT(check.status, testing::AnyOf(Status::kOk, Status::kNotApplicable)) << check.name << ": " << check.found;
  }
  int problems = 0;
  for (const Check& check : Examine(NoDaemon())) problems += check.status == Status::kProblem;
  EXPECT_EQ(problems, 1) << "what follows from the one problem is no other";
}

// That the check is ok, or does not apply, before is AllIsWell's and the next one's.
TEST_P(SpoiltTest, IsFoundAndSaysWhatToDo) {
  const Case& c = GetParam();
  Facts facts = c.start();
  c.spoil(facts);
  const Check check = c.check(facts);
  EXPECT_EQ(check.status, c.status) << Name(check.status) << ": " << check.found;
  EXPECT_THAT(check.found, HasSubstr(c.found));
  EXPECT_THAT(check.todo, AllOf(HasSubstr(c.todo), Not(HasSubstr("\n"))));
  EXPECT_EQ(check.todo.empty(), check.status == Status::kOk || check.status == Status::kNotApplicable);
}

TEST(DoctorCommandTest, WithoutADaemonSaysWhatToDoAndPrintsNoSecret) {
  ::setenv("KERND_TEST_SECRET", "hunter2", 1);
  const std::vector<std::string> arguments = {
      "--endpoint", "unix:/nowhere/kernd.sock", "--metadata", "authorization=hunter2", "doctor", "--http",
      "127.0.0.1:1"};
  const Outcome outcome = Kernctl(arguments);
  EXPECT_EQ(outcome.code, 1);
  EXPECT_EQ(outcome.err, "");
  EXPECT_THAT(outcome.out, HasSubstr("problem  port           unix:/nowhere/kernd.sock: there is no such socket\n"));
  EXPECT_THAT(outcome.out, HasSubstr("         -> start kernd --listen unix:/nowhere/kernd.sock"));
  EXPECT_THAT(outcome.out, Not(HasSubstr("hunter2")));
  EXPECT_LE(std::count(outcome.out.begin(), outcome.out.end(), '\n'), 40) << "one screen";

  std::vector<std::string> with_json = arguments;
  with_json.push_back("--json");
  const json report = json::parse(Kernctl(with_json).out);
  EXPECT_EQ(report.at("endpoint"), "unix:/nowhere/kernd.sock");
  EXPECT_GE(report.at("summary").at("problems"), 1);
  EXPECT_EQ(report.at("checks").at(1).at("name"), "port");
  EXPECT_EQ(report.at("checks").at(1).at("status"), "problem");
  EXPECT_NE(report.at("checks").at(1).at("todo"), "");
}

}  // namespace
}  // namespace kernd::cli::doctor
