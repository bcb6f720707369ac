// kernctl bench against a real kernd. Against wrong ones: tests/unit/client_bench_load_test.cc.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "client/cli/app.h"
#include "client/cli/bench/shared_room.h"
#include "client/cli/context.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernd/client/client.h"
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

// What a daemon and `bench --place shared` of it say.
struct Ran {
  int code;
  std::string out, err;
};
Ran BenchShared(const Daemon& daemon, std::vector<std::string> more) {
  std::vector<std::string> line = {"--endpoint", daemon.endpoint(), "bench", "--json",  "--place", "shared", "--warmup",
                                   "0",          "--duration",      "200ms", "--check", "1"};
  line.insert(line.end(), more.begin(), more.end());
  std::ostringstream out, err;
  const int code = cli::Run(std::move(line), out, err);
  return {code, out.str(), err.str()};
}

TEST(BenchTest, OperandsAndResultsInSharedMemory) {
  std::string folder = (std::filesystem::temp_directory_path() / "kernd-bench.XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  // Results of more than a message may have: they can only have come by the memory.
  const auto daemon = Daemon::Start({"--shared-memory-socket", folder + "/shared", "--max-message-bytes", "1MiB"});
  ASSERT_NE(daemon, nullptr);
  for (const std::vector<std::string>& problem :
       {std::vector<std::string>{"--shape", "1024x1024x16", "--dtype", "F32"},
        {"--op", "attention", "--shape", "1x4x2048x64,2,64", "--dtype", "F32"}}) {
    std::vector<std::string> more = {"--concurrency", "1,4"};
    more.insert(more.end(), problem.begin(), problem.end());
    const Ran ran = BenchShared(*daemon, more);
    ASSERT_EQ(ran.code, cli::kOk) << ran.err << ran.out;
    const json report = json::parse(ran.out);
    EXPECT_EQ(report.at("place"), "shared");
    EXPECT_GT(report.at("calls").at(0).at("received_bytes"), 1 << 20);
    for (const json& row : report.at("rows")) {
      EXPECT_GT(row.at("checked"), 0) << row;
      EXPECT_EQ(row.at("num_errors"), 0) << row;
    }
  }
  std::filesystem::remove_all(folder);
}

// A slot that a call did not write to must not show the result of the call before.
TEST(BenchTest, RoomsForResultsAreApartAndMarked) {
  std::string folder = (std::filesystem::temp_directory_path() / "kernd-bench.XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const auto daemon = Daemon::Start({"--shared-memory-socket", folder + "/shared"});
  ASSERT_NE(daemon, nullptr);
  const auto client = client::Client::Connect({.endpoint = daemon->endpoint()});
  ASSERT_TRUE(client.ok()) << client.status();
  const auto session = client->OpenSession();
  ASSERT_TRUE(session.ok()) << session.status();
  const std::vector<std::byte> first(100, std::byte{1}), second(3, std::byte{2});
  constexpr std::int64_t kBytes = 200;
  auto room = cli::SharedRoom::Make(*session, {first, second}, kBytes, 2, {});
  ASSERT_TRUE(room.ok()) << room.status();
  EXPECT_THAT((*room)->operands()[0], ::testing::ElementsAreArray(first));
  EXPECT_THAT((*room)->operands()[1], ::testing::ElementsAreArray(second));
  cli::SharedRoom::Slot one = (*room)->Take();
  for (int turn = 0; turn < 2; ++turn) {
    const cli::SharedRoom::Slot two = (*room)->Take();
    ASSERT_EQ(std::ssize(two.bytes()), kBytes);
    EXPECT_GE(std::abs(two.bytes().data() - one.bytes().data()), kBytes);
    for (const std::size_t at : {std::size_t{0}, two.bytes().size() - 1}) EXPECT_EQ(two.bytes()[at], std::byte{0xa5});
    EXPECT_TRUE((*room)->Take().bytes().empty()) << "all are taken";
    std::fill(two.bytes().begin(), two.bytes().end(), std::byte{7});  // as a result
  }
  const cli::SharedRoom::Slot moved = std::move(one);
  EXPECT_EQ(std::ssize(moved.bytes()), kBytes);
  EXPECT_EQ(std::ssize((*room)->Take().bytes()), kBytes) << "a slot that was moved is given back once";
  EXPECT_FALSE(cli::SharedRoom::Make(*session, {first}, std::numeric_limits<std::int64_t>::max(), 2, {}).ok());
  std::filesystem::remove_all(folder);
}

TEST(BenchTest, WithoutSharedMemoryThereIsAPlainWord) {
  const auto off = Daemon::Start();
  ASSERT_NE(off, nullptr);
  const Ran refused = BenchShared(*off, {});
  EXPECT_EQ(refused.code, cli::kCallFailed);
  EXPECT_THAT(refused.err, ::testing::HasSubstr("started without --shared-memory-socket"));

  std::string folder = (std::filesystem::temp_directory_path() / "kernd-bench.XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const auto hidden = Daemon::Start({"--shared-memory-socket", folder + "/shared"});
  ASSERT_NE(hidden, nullptr);
  std::filesystem::rename(folder + "/shared", folder + "/elsewhere");  // as from another container
  const Ran unreached = BenchShared(*hidden, {});
  EXPECT_EQ(unreached.code, cli::kCallFailed) << "the daemon itself is there";
  EXPECT_THAT(unreached.err, ::testing::HasSubstr(folder + "/shared"));
  EXPECT_THAT(unreached.err, ::testing::HasSubstr("--shared-memory-socket must be on this host"));
  EXPECT_THAT(unreached.err, ::testing::Not(::testing::HasSubstr("no kernd at")));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace kernd::testing
