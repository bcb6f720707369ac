// kernctl verify against a real kernd. Against wrong ones: tests/unit/client_verify_test.cc.
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "client/cli/app.h"
#include "client/cli/context.h"
#include "client/cli/files/tensor_file.h"
#include "client/cli/operands.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/daemon.h"

namespace kernd::testing {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

class VerifyTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { daemon_ = Daemon::Start(); }
  static void TearDownTestSuite() { daemon_.reset(); }
  void SetUp() override { ASSERT_NE(daemon_, nullptr); }

  // The exit code; what was printed goes to `out`.
  static int Verify(std::vector<std::string> flags, std::string* out) {
    flags.insert(flags.begin(), {"--endpoint", daemon_->endpoint(), "verify"});
    std::ostringstream stream, err;
    const int code = cli::Run(std::move(flags), stream, err);
    EXPECT_EQ(err.str(), "");
    *out = stream.str();
    return code;
  }

  static std::unique_ptr<Daemon> daemon_;
};

std::unique_ptr<Daemon> VerifyTest::daemon_;

TEST_F(VerifyTest, EveryPresetPasses) {
  std::string out;
  EXPECT_EQ(Verify({}, &out), cli::kOk) << out;
  EXPECT_THAT(out, HasSubstr(" passed, 0 failed, 0 not supported in "));
  EXPECT_THAT(out, HasSubstr("33x47x61"));
}

TEST_F(VerifyTest, EveryKernelIsForcedAndOtherSeedsPassToo) {
  std::string out;
  ASSERT_EQ(Verify({"--quick", "--all", "--json", "--seed", "11"}, &out), cli::kOk) << out;
  const json report = json::parse(out);
  std::map<std::string, int> passed;
  for (const json& row : report.at("cases")) {
    if (row.at("verdict") == "passed") ++passed[row.at("kernel")];
    EXPECT_NE(row.at("verdict"), "failed") << row;
  }
  std::ostringstream kernels, err;
  ASSERT_EQ(cli::Run({"--endpoint", daemon_->endpoint(), "kernels", "--json"}, kernels, err), cli::kOk) << err.str();
  int listed = 0;
  for (const json& kernel : json::parse(kernels.str())) {
    EXPECT_GT(passed[kernel.at("name")], 3) << kernel;
    ++listed;
  }
  EXPECT_GT(listed, 15);
  EXPECT_EQ(report.at("summary").at("failed"), 0);
}

TEST_F(VerifyTest, GivenTensors) {
  std::string folder = (std::filesystem::temp_directory_path() / "kernd-verify.XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const auto file = [&folder](const char* name, std::vector<std::int64_t> shape, std::uint32_t stream) {
    const auto tensor = cli::RandomTensor(client::DataType::kF16, std::move(shape), 3, stream);
    EXPECT_TRUE(tensor.ok() && cli::WriteTensor(folder + name, "x", tensor->view()).ok());
    return folder + name;
  };
  const std::string a = file("/a.npy", {9, 20}, 0), b = file("/b.npy", {20, 5}, 1);
  const std::string q = file("/q.npy", {1, 4, 9, 16}, 2), k = file("/k.npy", {1, 2, 9, 16}, 3);
  std::string out;
  EXPECT_EQ(Verify({"--a", a, "--b", b}, &out), cli::kOk) << out;
  EXPECT_THAT(out, HasSubstr("matmul"));
  EXPECT_THAT(out, HasSubstr("\n1 passed, 0 failed, 0 not supported in"));
  EXPECT_EQ(Verify({"--q", q, "--k", k, "--v", k, "--causal"}, &out), cli::kOk) << out;
  EXPECT_THAT(out, HasSubstr("given, causal"));
  EXPECT_THAT(out, HasSubstr(" 1 with another future"));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace kernd::testing
