// kernctl bench against a real kernd. Against wrong ones: tests/unit/client_bench_load_test.cc.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "client/cli/app.h"
#include "client/cli/context.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/daemon.h"

namespace kernd::testing {
namespace {

using nlohmann::json;

TEST(BenchTest, AMixInBothLoops) {
  const auto daemon = Daemon::Start();
  ASSERT_NE(daemon, nullptr);
  std::string folder = (std::filesystem::temp_directory_path() / "kernd-bench.XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  std::ofstream(folder + "/mix") << "3 matmul 16x16x16 F32\n2 matmul 2x8x16x32 BF16\n1 attention 1x4x16x32,2 causal\n"
                                    "1 attention 1x4x1x32,2,64 F32 causal\n";
  const auto bench = [&](std::vector<std::string> more) {
    std::vector<std::string> line = {
        "--endpoint", daemon->endpoint(), "bench", "--json",     "--mix", folder + "/mix", "--warmup",
        "50ms",       "--check",          "1",     "--duration", "300ms", "--plot",        folder + "/p.svg"};
    line.insert(line.end(), more.begin(), more.end());
    std::ostringstream out, err;
    EXPECT_EQ(cli::Run(std::move(line), out, err), cli::kOk) << out.str() << err.str();
    return json::parse(out.str());
  };

  const json closed = bench({"--concurrency", "1,4", "--connections", "2"});
  ASSERT_EQ(closed.at("rows").size(), 2u);
  for (const json& row : closed.at("rows")) {
    EXPECT_GT(row.at("calls_per_second"), 0);
    EXPECT_GT(row.at("checked"), 0);
    EXPECT_EQ(row.at("num_errors"), 0) << row;
    EXPECT_GT(row.at("stages_mean_us").at("kernel"), 0);
    EXPECT_LT(row.at("server_us").at("mean"), row.at("latency_us").at("mean")) << "the server is a part of the client";
  }
  for (const json& call : closed.at("calls")) EXPECT_NE(call.at("kernel"), "");
  EXPECT_NE(closed.at("machine").at("build"), "");
  for (const json& row : closed.at("results")) {
    EXPECT_THAT(row.at("name").get<std::string>(), ::testing::StartsWith("service/inline/mix/c"));
    EXPECT_GT(row.at("value"), 0) << row;
  }

  const json open = bench({"--rate", "50,100", "--arrivals", "constant"});
  EXPECT_EQ(open.at("rows").at(0).at("latency_us").at("count"), 15);
  EXPECT_EQ(open.at("rows").at(1).at("latency_us").at("count"), 30);
  EXPECT_GT(open.at("rows").at(1).at("roundtrip_us").at("count"), 0);
  EXPECT_GT(std::filesystem::file_size(folder + "/p.svg"), 2000u);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace kernd::testing
