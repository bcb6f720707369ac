// Client::Autotune and kernctl tune, against a daemon that tells what the test has it tell.
#include <atomic>
#include <csignal>
#include <thread>

#include "kernd/client/client.h"
#include "tests/unit/client_cli_fixture.h"

namespace kernd::cli {
namespace {

using testing::ElementsAre;
using Writer = grpc::ServerWriter<v1::AutotuneProgress>;
using Progress = v1::AutotuneProgress;

constexpr char kShape[] = "matmul:f32:8x9x10";

Progress Candidate(const std::string& kernel, double us, Progress::Verdict verdict, const std::string& why = "") {
  Progress p;
  p.set_event(Progress::EVENT_CANDIDATE);
  p.set_total(1);
  p.set_shape(kShape);
  p.set_kernel(kernel);
  p.set_median_us(us);
  p.set_p20_us(us > 0 ? us - 1 : 0);
  p.set_p80_us(us > 0 ? us + 2 : 0);
  p.set_runs(us > 0 ? 7 : 0);
  p.set_verdict(verdict);
  p.set_why(why);
  return p;
}

// A shape of which the kernel "quick" wins, and "bad" is refused.
void TellOne(Writer& writer) {
  writer.Write(Candidate("bad", 0, Progress::VERDICT_WRONG, "d is\x1b[31m wrong"));
  writer.Write(Candidate("model", 100, Progress::VERDICT_MEASURED));
  Progress quick = Candidate("quick", 60.04, Progress::VERDICT_MEASURED);
  quick.mutable_tile()->set_m(64);
  quick.mutable_tile()->set_n(32);
  quick.mutable_tile()->set_k(16);
  writer.Write(quick);
  Progress shape = quick;
  shape.set_event(Progress::EVENT_SHAPE);
  shape.set_done(1);
  shape.set_verdict(Progress::VERDICT_UNSPECIFIED);
  shape.set_outcome(Progress::OUTCOME_TUNED);
  shape.set_model("model");
  shape.set_model_us(100);
  writer.Write(shape);
}

class TuneCliTest : public CliTest {
 protected:
  void Tell(std::function<grpc::Status(Writer&)> tell) {
    daemon_.autotune = [this, tell](grpc::ServerContext& context, const v1::AutotuneRequest& request, Writer& writer) {
      ++calls_;
      request_ = request;
      context_deadline_ = context.deadline();
      return tell(writer);
    };
  }
  int calls_ = 0;
  v1::AutotuneRequest request_;
  std::chrono::system_clock::time_point context_deadline_;
};

TEST_F(TuneCliTest, TablesSayWhatWasChosen) {
  Tell([](Writer& writer) {
    TellOne(writer);
    return grpc::Status::OK;
  });
  const Outcome outcome = Kernctl(daemon_, {"tune", kShape, "attention:f16:1x8x64x64", "--budget", "90s"});
  EXPECT_EQ(outcome.code, kOk) << outcome.err;
  EXPECT_EQ(outcome.out,
            "matmul:f32:8x9x10\n"
            "  kernel          median us   p20    p80  runs  verdict\n"
            "  bad                     -     -      -     0  wrong: d is\\x1b[31m wrong\n"
            "  model               100.0  99.0  102.0     7  measured\n"
            "  quick 64x32x16       60.0  59.0   62.0     7  measured\n"
            "  tuned: quick 64x32x16, 40 % less time than the model's model\n");
  EXPECT_EQ(outcome.err, "");
  EXPECT_THAT(request_.shapes(), ElementsAre(kShape, "attention:f16:1x8x64x64"));
  EXPECT_EQ(request_.budget_s(), 90);
  EXPECT_GT(context_deadline_, std::chrono::system_clock::now() + std::chrono::seconds(90)) << "--timeout is of calls";
}

TEST_F(TuneCliTest, Json) {
  Tell([](Writer& writer) {
    TellOne(writer);
    return grpc::Status::OK;
  });
  const Outcome outcome = Kernctl(daemon_, {"tune", "--json"});
  EXPECT_EQ(outcome.code, kOk) << outcome.err;
  EXPECT_EQ(request_.shapes_size(), 0);
  EXPECT_EQ(request_.budget_s(), 0);
  const json shape = json::parse(outcome.out).at("shapes").at(0);
  EXPECT_EQ(shape.at("shape"), kShape);
  EXPECT_EQ(shape.at("outcome"), "TUNED");
  EXPECT_EQ(shape.at("chosen"), "quick");
  EXPECT_EQ(shape.at("chosen_tile"), json({64, 32, 16}));
  EXPECT_NEAR(shape.at("gain").get<double>(), 0.3996, 1e-9);
  ASSERT_EQ(shape.at("kernels").size(), 3u);
  EXPECT_EQ(shape.at("kernels").at(0).at("verdict"), "WRONG");
  EXPECT_EQ(shape.at("kernels").at(0).count("median_us"), 0u);
  EXPECT_EQ(shape.at("kernels").at(2).at("runs"), 7);
}

TEST_F(TuneCliTest, WhatWasNotChosenIsSaid) {
  const std::pair<Progress::Outcome, const char*> rows[] = {
      {Progress::OUTCOME_MODEL_KEPT, "  the model's choice stays: model\n"},
      {Progress::OUTCOME_REFUSED, "  refused: because\n"},
      {Progress::OUTCOME_NOT_REACHED, "  not reached: because\n"}};
  for (const auto& [value, line] : rows) {
    Tell([value = value](Writer& writer) {
      Progress shape;
      shape.set_event(Progress::EVENT_SHAPE);
      shape.set_shape(kShape);
      shape.set_outcome(value);
      shape.set_model("model");
      if (value != Progress::OUTCOME_MODEL_KEPT) shape.set_why("because");
      writer.Write(shape);
      return grpc::Status::OK;
    });
    EXPECT_EQ(Kernctl(daemon_, {"tune", kShape}).out, std::string(kShape) + "\n" + line);
  }
}

TEST_F(TuneCliTest, RefusalsAreReportedAndNotTriedAgain) {
  Tell([](Writer&) {
    return Refusal(grpc::StatusCode::RESOURCE_EXHAUSTED, "another tuning is on", "TUNING_BUSY", "", 5000);
  });
  const Outcome outcome = Kernctl(daemon_, {"tune", kShape});
  EXPECT_EQ(outcome.code, kCallFailed);
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(outcome.err, HasSubstr("TUNING_BUSY"));
  EXPECT_EQ(calls_, 1);
  EXPECT_EQ(Kernctl(daemon_, {"tune", "--budget", "-1s"}).code, kBadArguments);
}

// What was told before the end is shown; what has begun does not begin again.
TEST_F(TuneCliTest, ADaemonThatEndsLeavesWhatThereWas) {
  Tell([](Writer& writer) {
    TellOne(writer);
    writer.Write(Candidate("next", 5, Progress::VERDICT_MEASURED));
    return Refusal(grpc::StatusCode::UNAVAILABLE, "draining", "DRAINING", "", 0);
  });
  const Outcome outcome = Kernctl(daemon_, {"tune", kShape, kShape});
  EXPECT_EQ(outcome.code, kCallFailed);
  EXPECT_THAT(outcome.out, HasSubstr("tuned: quick"));
  EXPECT_THAT(outcome.out, HasSubstr("  not finished\n"));
  EXPECT_THAT(outcome.err, HasSubstr("DRAINING"));
  EXPECT_EQ(calls_, 1);
}

TEST_F(TuneCliTest, CtrlCEndsTheCallAndShowsWhatThereWas) {
  std::atomic<int> cancelled = 0, patience = 1;
  daemon_.autotune = [&](grpc::ServerContext& context, const v1::AutotuneRequest&, Writer& writer) {
    TellOne(writer);
    for (int i = 0; i < patience; ++i) std::this_thread::yield();
    raise(SIGINT);
    while (!context.IsCancelled()) std::this_thread::yield();
    ++cancelled;
    return grpc::Status::CANCELLED;
  };
  // Whether what was told has arrived by then is a matter of speed: sooner or later it has.
  Outcome outcome;
  for (int tries = 1; tries <= 20; ++tries, patience = 2 * patience) {
    outcome = Kernctl(daemon_, {"tune", kShape});
    EXPECT_EQ(outcome.code, 128 + SIGINT);
    EXPECT_EQ(outcome.err, "");
    while (cancelled < tries) std::this_thread::yield();
    if (outcome.out.find("tuned: quick") != std::string::npos) break;
  }
  EXPECT_THAT(outcome.out, HasSubstr("tuned: quick"));
}

TEST_F(TuneCliTest, TheLibraryTellsAsItComes) {
  Tell([](Writer& writer) {
    TellOne(writer);
    Progress unknown;
    unknown.set_event(static_cast<Progress::Event>(17));
    unknown.set_verdict(static_cast<Progress::Verdict>(17));
    writer.Write(unknown);
    return grpc::Status::OK;
  });
  const auto client = client::Client::Connect({.endpoint = daemon_.endpoint()});
  ASSERT_TRUE(client.ok());
  std::vector<client::AutotuneProgress> told;
  ASSERT_TRUE(client->Autotune({.shapes = {kShape}}, [&](const auto& p) { told.push_back(p); }).ok());
  ASSERT_EQ(told.size(), 5u);
  EXPECT_EQ(told[0].verdict, client::TuneVerdict::kWrong);
  EXPECT_EQ(told[3].outcome, client::TuneOutcome::kTuned);
  EXPECT_EQ(told[3].tile, (client::Tile{64, 32, 16}));
  EXPECT_EQ(told[3].model_us, 100);
  EXPECT_EQ(told[4].event, client::TuneEvent::kUnspecified);
  EXPECT_EQ(told[4].verdict, client::TuneVerdict::kUnspecified);
  EXPECT_TRUE(client->Autotune({}, nullptr).ok());
}

TEST_F(TuneCliTest, TheLibraryStopsWhenItIsTold) {
  daemon_.autotune = [](grpc::ServerContext& context, const v1::AutotuneRequest&, Writer& writer) {
    TellOne(writer);
    while (!context.IsCancelled()) std::this_thread::yield();
    return grpc::Status::CANCELLED;
  };
  const auto client = client::Client::Connect({.endpoint = daemon_.endpoint()});
  ASSERT_TRUE(client.ok());
  std::stop_source stop;
  const absl::Status status =
      client->Autotune({}, [&](const auto&) { stop.request_stop(); }, {.stop = stop.get_token()});
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
}

}  // namespace
}  // namespace kernd::cli
