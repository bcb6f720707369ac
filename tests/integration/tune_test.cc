// Tuning through a daemon: what it brings into effect and keeps, and who may ask for it.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <tuple>

#include "kernd/v1/compute.grpc.pb.h"
#include "kernd/v1/device.grpc.pb.h"
#include "tests/support/daemon.h"
#include "tests/support/raw_client.h"
#include "tests/support/requests.h"

namespace kernd::testing {
namespace {

using grpc::StatusCode;
using ::testing::HasSubstr;
using Progress = v1::AutotuneProgress;

constexpr char kShape[] = "matmul:f32:8x9x10";

struct Tuned {
  RawReply end;
  std::vector<Progress> all;

  std::vector<Progress> Of(Progress::Event event) const {
    std::vector<Progress> some;
    for (const Progress& p : all) {
      if (p.event() == event) some.push_back(p);
    }
    return some;
  }
};

Tuned Tune(const Daemon& daemon, const std::vector<std::string>& shapes, double budget_s = 0) {
  const auto stub = v1::Device::NewStub(Connect(daemon.endpoint()));
  v1::AutotuneRequest request;
  for (const std::string& shape : shapes) request.add_shapes(shape);
  request.set_budget_s(budget_s);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  const auto reader = stub->Autotune(&context, request);
  Tuned tuned;
  for (Progress progress; reader->Read(&progress);) tuned.all.push_back(progress);
  tuned.end = Explained(reader->Finish());
  return tuned;
}

// kShape.
v1::MatmulRequest Request(v1::Numerics numerics = v1::NUMERICS_UNSPECIFIED) {
  v1::MatmulRequest request;
  *request.mutable_matmul()->mutable_a() = F32({8, 10});
  *request.mutable_matmul()->mutable_b() = F32({10, 9});
  request.mutable_matmul()->set_numerics(numerics);
  return request;
}

v1::KernelUsed KernelOf(const Daemon& daemon, v1::Numerics numerics = v1::NUMERICS_UNSPECIFIED) {
  const v1::MatmulRequest request = Request(numerics);
  v1::MatmulReply reply;
  const RawReply raw = Call(Connect(daemon.endpoint()), "/kernd.v1.Compute/Matmul", request, reply);
  EXPECT_TRUE(raw.status.ok()) << raw.status.error_message();
  return reply.kernel();
}

// A kernel of no tile that runs kShape and is not `name`; empty: there is none.
std::string OtherThan(const std::string& name, const Daemon& daemon) {
  const auto channel = Connect(daemon.endpoint());
  v1::ListKernelsReply list;
  EXPECT_TRUE(Call(channel, "/kernd.v1.Device/ListKernels", v1::ListKernelsRequest(), list).status.ok());
  for (const v1::Kernel& kernel : list.kernels()) {
    if (kernel.operation() != "matmul" || kernel.has_tile() || kernel.name() == name) continue;
    v1::MatmulRequest forced = Request();
    forced.mutable_matmul()->mutable_kernel()->set_name(kernel.name());
    v1::MatmulReply reply;
    if (Call(channel, "/kernd.v1.Compute/Matmul", forced, reply).status.ok()) return kernel.name();
  }
  return "";
}

class TuneTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "kernd-tune-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
    file_ = (folder_ / "choices").string();
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::unique_ptr<Daemon> Start(std::vector<std::string> flags = {}) {
    flags.insert(flags.end(), {"--tuning-file", file_});
    return Daemon::Start(flags);
  }
  std::string Text() const {
    std::ostringstream text;
    text << std::ifstream(file_).rdbuf();
    return text.str();
  }

  std::filesystem::path folder_;
  std::string file_;
};

// Which kernel is the quickest is for the machine to say, and it may be the model's own.
TEST_F(TuneTest, WhatWonIsInEffectAtOnceAndAfterARestart) {
  std::string reason, kernel;
  {
    const auto daemon = Start();
    ASSERT_NE(daemon, nullptr);
    EXPECT_EQ(daemon->Metrics().at("kernd_tuning_file{state=\"missing\"}"), 1);
    const std::string before = KernelOf(*daemon).reason();
    const Tuned tuned = Tune(*daemon, {kShape});
    ASSERT_TRUE(tuned.end.status.ok()) << tuned.end.status.error_message();
    EXPECT_EQ(tuned.all.back().event(), Progress::EVENT_END);
    EXPECT_GE(tuned.Of(Progress::EVENT_CANDIDATE).size(), OnGpu() ? 1u : 2u);
    for (const Progress& candidate : tuned.Of(Progress::EVENT_CANDIDATE)) {
      EXPECT_NE(candidate.verdict(), Progress::VERDICT_WRONG) << candidate.kernel() << candidate.why();
      EXPECT_NE(candidate.verdict(), Progress::VERDICT_UNSTABLE) << candidate.kernel() << candidate.why();
      EXPECT_NE(candidate.verdict(), Progress::VERDICT_FAILED) << candidate.kernel() << candidate.why();
    }
    const std::vector<Progress> shapes = tuned.Of(Progress::EVENT_SHAPE);
    ASSERT_EQ(shapes.size(), 1u);
    const bool found = shapes[0].outcome() == Progress::OUTCOME_TUNED;
    EXPECT_TRUE(found || shapes[0].outcome() == Progress::OUTCOME_MODEL_KEPT) << shapes[0].why();
    reason = found ? "tuned" : before;
    kernel = shapes[0].kernel();
    EXPECT_EQ(KernelOf(*daemon).reason(), reason);
    EXPECT_EQ(KernelOf(*daemon).name(), kernel);
    EXPECT_EQ(daemon->Metrics().at("kernd_tuned_choices"), found ? 1 : 0);
    EXPECT_EQ(daemon->Stop(), 0);
  }
  const auto daemon = Start();
  ASSERT_NE(daemon, nullptr);
  EXPECT_EQ(KernelOf(*daemon).reason(), reason);
  EXPECT_EQ(KernelOf(*daemon).name(), kernel);
}

// Of the file that tuning has written the version is taken, and a choice put in by hand: the kernel that the rule does
// not choose, so that it is no accident that it is chosen.
TEST_F(TuneTest, AChoiceOfTheFileIsTakenButForBatchInvariantCalls) {
  v1::KernelUsed untuned, invariant;
  std::string other;
  {
    const auto daemon = Start();
    ASSERT_NE(daemon, nullptr);
    untuned = KernelOf(*daemon);
    invariant = KernelOf(*daemon, v1::NUMERICS_BATCH_INVARIANT);
    other = OtherThan(untuned.name(), *daemon);
    if (other.empty()) GTEST_SKIP() << "SKIPPED: only " << untuned.name() << " runs it here";
    ASSERT_TRUE(Tune(*daemon, {kShape}).end.status.ok());
    EXPECT_EQ(daemon->Stop(), 0);
  }
  struct stat status {};
  ASSERT_EQ(stat(file_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  const std::string text = Text();
  std::ofstream(file_) << text.substr(0, std::min(text.find("choice "), text.find("end ")))
                       << "choice matmul/f32/8x9x10/b1/nn/a8b4/to-f32 " << other << " 1\nend 1\n";

  const auto daemon = Start();
  ASSERT_NE(daemon, nullptr);
  EXPECT_EQ(daemon->Metrics().at("kernd_tuning_file{state=\"loaded\"}"), 1);
  EXPECT_EQ(KernelOf(*daemon).reason(), "tuned");
  EXPECT_EQ(KernelOf(*daemon).name(), other);
  EXPECT_EQ(KernelOf(*daemon, v1::NUMERICS_BATCH_INVARIANT).reason(), invariant.reason());
  EXPECT_EQ(KernelOf(*daemon, v1::NUMERICS_BATCH_INVARIANT).name(), invariant.name());
  EXPECT_EQ(daemon->Stop(), 0);

  // The same, damaged, of another build, and where others may write to it.
  const std::string good = Text();
  const std::tuple<std::string, mode_t, const char*> rows[] = {
      {good.substr(0, good.size() - 3), 0600, "damaged"},
      {good.substr(0, good.find("processors ")) + "processors 4095" + good.substr(good.find("\ndriver ")), 0600,
       "stale"},
      {good, 0606, "unsafe"}};
  for (const auto& [bytes, mode, state] : rows) {
    std::ofstream(file_) << bytes;
    ASSERT_EQ(chmod(file_.c_str(), mode), 0);
    const auto refusing = Start();
    ASSERT_NE(refusing, nullptr);
    EXPECT_EQ(refusing->Metrics().at("kernd_tuning_file{state=\"" + std::string(state) + "\"}"), 1) << state;
    EXPECT_EQ(KernelOf(*refusing).reason(), untuned.reason()) << state;
    EXPECT_EQ(refusing->Stop(), 0);
    EXPECT_THAT(refusing->Log(), HasSubstr("warning --tuning-file is not used: "));
  }
}

TEST_F(TuneTest, OnlyWhereTheOperatorAllowsIt) {
  const auto daemon = Daemon::Start();
  ASSERT_NE(daemon, nullptr);
  const RawReply refused = Tune(*daemon, {kShape}).end;
  EXPECT_EQ(refused.status.error_code(), StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(refused.reason, "TUNING_OFF");
  EXPECT_THAT(refused.status.error_message(), HasSubstr("--tuning-file"));
}

TEST_F(TuneTest, WhatIsNoRequestIsNamed) {
  const auto daemon = Start();
  ASSERT_NE(daemon, nullptr);
  EXPECT_EQ(Tune(*daemon, {}).end.field, "shapes");
  EXPECT_EQ(Tune(*daemon, {"matmul:f32:1x2"}).end.field, "shapes");
  EXPECT_EQ(Tune(*daemon, {kShape}, -1).end.field, "budget_s");
  EXPECT_EQ(Tune(*daemon, {kShape}, std::nan("")).end.field, "budget_s");
  const RawReply large = Tune(*daemon, {std::string(1 << 20, 'x')}).end;
  EXPECT_EQ(large.status.error_code(), StatusCode::RESOURCE_EXHAUSTED) << large.status.error_message();
  EXPECT_EQ(daemon->Metrics().at("kernd_tuning_shapes_total{outcome=\"tuned\"}"), 0);
}

TEST_F(TuneTest, WithoutShapesItTunesWhatWasDeclared) {
  const auto daemon = Start({"--prewarm", kShape});
  ASSERT_NE(daemon, nullptr);
  const std::vector<Progress> shapes = Tune(*daemon, {}).Of(Progress::EVENT_SHAPE);
  ASSERT_EQ(shapes.size(), 1u);
  EXPECT_EQ(shapes[0].shape(), kShape);
}

// Many shapes, so that it is surely on while the others ask.
std::vector<std::string> Long() {
  return std::vector<std::string>(200, "matmul:f32:96x96x4000");
}

TEST_F(TuneTest, OneAtATimeAndAClientThatLeavesGivesAllBack) {
  const auto daemon = Start();
  ASSERT_NE(daemon, nullptr);
  const auto stub = v1::Device::NewStub(Connect(daemon->endpoint()));
  v1::AutotuneRequest request;
  for (const std::string& shape : Long()) request.add_shapes(shape);
  grpc::ClientContext context;
  const auto reader = stub->Autotune(&context, request);
  Progress progress;
  ASSERT_TRUE(reader->Read(&progress));
  EXPECT_EQ(daemon->Metrics().at("kernd_tuning_running"), 1);
  const RawReply second = Tune(*daemon, {kShape}).end;
  EXPECT_EQ(second.status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(second.reason, "TUNING_BUSY");
  EXPECT_TRUE(second.retry_after_s.has_value());
  EXPECT_NE(KernelOf(*daemon).name(), "") << "calls are served meanwhile";

  context.TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), StatusCode::CANCELLED);
  EXPECT_TRUE(daemon->WaitForMetric("kernd_tuning_running", 0));
  EXPECT_TRUE(daemon->WaitForMetric("kernd_requests_total{code=\"CANCELLED\",method=\"Device/Autotune\"}", 1));
  EXPECT_TRUE(daemon->WaitForMetric("kernd_memory_used_bytes{pool=\"memory\"}", 0));
  EXPECT_TRUE(daemon->WaitForMetric("kernd_body_budget_used_bytes", 0));
  EXPECT_TRUE(daemon->WaitForMetric("kernd_requests_in_flight", 0));
  EXPECT_TRUE(Tune(*daemon, {kShape}).end.status.ok()) << "the next one";
}

TEST_F(TuneTest, ADeadlineEndsIt) {
  const auto daemon = Start();
  ASSERT_NE(daemon, nullptr);
  const auto stub = v1::Device::NewStub(Connect(daemon->endpoint()));
  v1::AutotuneRequest request;
  for (const std::string& shape : Long()) request.add_shapes(shape);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(500));
  const auto reader = stub->Autotune(&context, request);
  for (Progress progress; reader->Read(&progress);) {
  }
  EXPECT_EQ(reader->Finish().error_code(), StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(daemon->WaitForMetric("kernd_tuning_running", 0));
  EXPECT_TRUE(daemon->WaitForMetric("kernd_requests_in_flight", 0));
}

TEST_F(TuneTest, TheEndOfTheDaemonEndsIt) {
  const auto daemon = Start();
  ASSERT_NE(daemon, nullptr);
  const auto stub = v1::Device::NewStub(Connect(daemon->endpoint()));
  v1::AutotuneRequest request;
  for (const std::string& shape : Long()) request.add_shapes(shape);
  grpc::ClientContext context;
  const auto reader = stub->Autotune(&context, request);
  Progress progress;
  ASSERT_TRUE(reader->Read(&progress));
  daemon->Signal(SIGTERM);
  while (reader->Read(&progress)) {
  }
  const RawReply end = Explained(reader->Finish());
  EXPECT_EQ(end.status.error_code(), StatusCode::UNAVAILABLE);
  EXPECT_EQ(end.reason, "DRAINING");
  EXPECT_EQ(daemon->Wait(20), 0) << "nothing had to be cancelled";
}

}  // namespace
}  // namespace kernd::testing
