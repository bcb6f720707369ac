// Which candidates of a shape are refused, given up and kept.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "server/tune/exam.h"
#include "server/tune/measure.h"
#include "server/tune/operands.h"
#include "server/tune/race.h"
#include "tests/support/scripted_backend.h"

namespace kernd::tune {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::ScriptedBackend;
using testing::ScriptedKernel;

TEST(Race, QuantilesAreOfTheNearestRank) {
  EXPECT_EQ(Summarise({}).runs, 0);
  EXPECT_EQ(Summarise({7}).median, 7);
  const Times times = Summarise({5, 1, 4, 2, 3, 10, 6, 8, 7, 9});
  EXPECT_EQ(times.median, 5);
  EXPECT_EQ(times.p20, 2);
  EXPECT_EQ(times.p80, 8);
  EXPECT_EQ(times.runs, 10);
}

TEST(Race, WhoWins) {
  const auto took = [](double us) { return std::optional<Times>(Times{.median = us, .p20 = us, .runs = 1}); };
  using Candidates = std::vector<std::optional<Times>>;
  EXPECT_EQ(Winner(Candidates{took(100), took(50)}, 0), 1u);
  EXPECT_EQ(Winner(Candidates{took(100), took(97.01)}, 0), std::nullopt) << "less than the margin";
  EXPECT_EQ(Winner(Candidates{took(100), took(96.99)}, 0), 1u);
  EXPECT_EQ(Winner(Candidates{took(50), took(100)}, 0), std::nullopt) << "the model's own";
  EXPECT_EQ(Winner(Candidates{Times{.median = 300, .p20 = 100, .runs = 1}, took(100)}, 0), std::nullopt) << "noise";
  EXPECT_EQ(Winner(Candidates{std::nullopt, took(100), took(99)}, 0), 2u) << "the model's is wrong";
  EXPECT_EQ(Winner(Candidates{std::nullopt, std::nullopt}, 0), std::nullopt);
  EXPECT_EQ(Winner(Candidates{}, std::nullopt), std::nullopt);
  EXPECT_FALSE(IsBeaten(300, 100));
  EXPECT_TRUE(IsBeaten(301, 100));
}

core::DeclaredShape ShapeOf(const std::string& text) {
  return *core::ParseShape(text, "shapes");
}

class MeasureTest : public ::testing::Test {
 protected:
  void Make(std::vector<ScriptedKernel> kernels, std::int64_t memory = 1 << 24) {
    auto backend = std::make_unique<ScriptedBackend>(std::move(kernels));
    backend_ = backend.get();
    engine_ = std::make_unique<core::Engine>(
        core::Engine::Options{.memory_limit = memory, .max_queued_calls = 8, .max_reply_bytes = 1 << 24},
        std::move(backend));
    ASSERT_TRUE(engine_->Start([](int, int, std::string_view) {}).ok());
  }
  absl::StatusOr<Measurement> Run(const std::string& shape = "matmul:f32:8x9x10", Until until = {}) {
    said_.clear();
    return Measure(*engine_, host_, ShapeOf(shape), until, [this](Progress p) {
      if (p.kind == Progress::Kind::kCandidate) said_.push_back(std::move(p));
    });
  }
  // Of the only candidate of that name.
  const Progress& Of(const std::string& kernel) const {
    static const Progress none;
    for (const Progress& p : said_) {
      if (p.kernel == kernel) return p;
    }
    ADD_FAILURE() << kernel << " was not told";
    return none;
  }

  ScriptedBackend* backend_ = nullptr;
  std::unique_ptr<core::Engine> engine_;
  core::ByteBudget host_{1 << 24};
  std::vector<Progress> said_;
};

TEST_F(MeasureTest, TheQuickestWins) {
  Make({{.name = "model"}, {.name = "quick", .us = [](int) { return 60; }}, {.name = "mid", .us = [](int) {
                                                                               return 80;
                                                                             }}});
  const auto measured = Run();
  ASSERT_TRUE(measured.ok()) << measured.status();
  EXPECT_EQ(measured->outcome, Outcome::kTuned);
  EXPECT_EQ(measured->kernel, "quick");
  EXPECT_EQ(measured->times.median, 60);
  EXPECT_EQ(measured->model, "model");
  EXPECT_EQ(measured->model_times.median, 100);
  EXPECT_EQ(measured->key, "matmul/f32/8x9x10/b1/nn/a8b4/to-f32");
  EXPECT_EQ(Of("quick").best, "quick");
  EXPECT_THAT(backend_->priorities, Each(::testing::Lt(-100))) << "behind every client's";
  EXPECT_EQ(host_.used(), 0);
  EXPECT_GT(host_.peak(), 0);
}

TEST_F(MeasureTest, LessThanTheMarginIsNoGain) {
  Make({{.name = "model"}, {.name = "about as quick", .us = [](int) { return 98; }}});
  const auto measured = Run();
  ASSERT_TRUE(measured.ok());
  EXPECT_EQ(measured->outcome, Outcome::kModelKept);
  EXPECT_EQ(measured->kernel, "model");
}

TEST_F(MeasureTest, RoundsGoOverAllInTurn) {
  Make({{.name = "a"}, {.name = "b"}});
  ASSERT_TRUE(Run().ok());
  const std::vector<std::string>& order = backend_->order;
  ASSERT_GE(order.size(), 4u + 2 * kMinRounds);
  EXPECT_THAT(std::vector<std::string>(order.begin(), order.begin() + 10),
              ElementsAre("a", "a", "b", "b", "a", "b", "b", "a", "a", "b"));
  EXPECT_LE(order.size(), 4u + 2 * kMaxRounds);
}

// A clock that falls while candidates are measured must not decide.
TEST_F(MeasureTest, ADriftingClockHitsAllAlike) {
  int runs = 0;
  const auto drifting = [&runs](double us) { return [&runs, us](int) { return us * (1 + 0.02 * runs++); }; };
  Make({{.name = "model", .us = drifting(100)}, {.name = "slower", .us = drifting(102)}});
  const auto measured = Run();
  ASSERT_TRUE(measured.ok());
  EXPECT_EQ(measured->outcome, Outcome::kModelKept);
}

TEST_F(MeasureTest, ASlowOneIsGivenUpEarly) {
  Make({{.name = "model"}, {.name = "slow", .us = [](int) { return 301; }}});
  ASSERT_TRUE(Run().ok());
  EXPECT_EQ(Of("slow").verdict, Verdict::kSlow);
  EXPECT_EQ(backend_->kernels[1].runs, 2);
  EXPECT_GE(backend_->kernels[0].runs, 2 + kMinRounds);
}

TEST_F(MeasureTest, TheModelsChoiceIsNotGivenUp) {
  Make({{.name = "model", .us = [](int) { return 1000; }}, {.name = "quick"}});
  const auto measured = Run();
  ASSERT_TRUE(measured.ok());
  EXPECT_EQ(Of("model").verdict, Verdict::kMeasured);
  EXPECT_EQ(measured->model_times.median, 1000);
}

TEST_F(MeasureTest, WrongResultsAreRefused) {
  const std::pair<const char*, std::function<void(int, float*, std::int64_t)>> spoils[] = {
      {"first", [](int, float* d, std::int64_t) { d[0] += 0.01f; }},
      {"last", [](int, float* d, std::int64_t n) { d[n - 1] += 0.01f; }},
      {"zeros", [](int, float* d, std::int64_t n) { std::fill(d, d + n, 0.0f); }},
      {"nan", [](int, float* d, std::int64_t n) { d[n / 2] = std::nanf(""); }},
      {"infinite", [](int, float* d, std::int64_t n) { d[n / 2] = std::numeric_limits<float>::infinity(); }}};
  for (const std::string shape : {"matmul:f32:50x60x70:bias:gelu:ta:tb", "matmul:f32:3x5x6x7", "matmul:f32:8x9x0",
                                  "attention:f32:2x4/2x9/12x8/16:causal:blhd:lse:window=3"}) {
    for (const auto& [what, spoil] : spoils) {
      SCOPED_TRACE(shape + " " + what);
      Make({{.name = "model"}, {.name = "bad", .us = [](int) { return 1; }, .spoil = spoil}});
      const auto measured = Run(shape);
      ASSERT_TRUE(measured.ok()) << measured.status();
      if (shape == "matmul:f32:8x9x0" && std::string(what) == "zeros") continue;  // which is right
      EXPECT_EQ(Of("bad").verdict, Verdict::kWrong);
      EXPECT_NE(Of("bad").why, "");
      EXPECT_EQ(Of("model").verdict, Verdict::kMeasured) << Of("model").why;
      EXPECT_EQ(measured->outcome, Outcome::kModelKept);
      EXPECT_EQ(backend_->kernels[1].runs, 1);
    }
  }
}

TEST_F(MeasureTest, OtherBitsTheSecondTimeAreRefused) {
  Make({{.name = "model"},
        {.name = "unstable",
         .us = [](int) { return 1; },
         .spoil = [](int run, float* d, std::int64_t n) { d[n - 1] *= 1 + static_cast<float>(run) * 1.2e-7f; }}});
  const auto measured = Run();
  ASSERT_TRUE(measured.ok());
  EXPECT_EQ(Of("unstable").verdict, Verdict::kUnstable);
  EXPECT_EQ(measured->outcome, Outcome::kModelKept);
}

TEST_F(MeasureTest, OneThatFailsIsOut) {
  Make({{.name = "model"},
        {.name = "first", .us = [](int) { return 1; }, .end = [](int) { return absl::InternalError("boom"); }},
        {.name = "later",
         .us = [](int) { return 1; },
         .end = [](int run) { return run == 4 ? absl::InternalError("bang") : absl::OkStatus(); }}});
  const auto measured = Run();
  ASSERT_TRUE(measured.ok());
  EXPECT_EQ(Of("first").verdict, Verdict::kFailed);
  EXPECT_EQ(Of("first").why, "boom");
  EXPECT_EQ(Of("later").verdict, Verdict::kFailed);
  EXPECT_EQ(measured->outcome, Outcome::kModelKept);
}

TEST_F(MeasureTest, ARightOneReplacesAModelsChoiceThatIsWrong) {
  Make({{.name = "model", .spoil = [](int, float* d, std::int64_t) { d[0] += 1; }},
        {.name = "right", .us = [](int) { return 5000; }}});
  const auto measured = Run();
  ASSERT_TRUE(measured.ok());
  EXPECT_EQ(measured->outcome, Outcome::kTuned);
  EXPECT_EQ(measured->kernel, "right");
  EXPECT_EQ(measured->model_times.runs, 0);
}

TEST_F(MeasureTest, NoneThatIsRight) {
  Make({{.name = "model", .spoil = [](int, float* d, std::int64_t) { d[0] += 1; }}});
  const auto measured = Run();
  ASSERT_TRUE(measured.ok());
  EXPECT_EQ(measured->outcome, Outcome::kRefused);
  EXPECT_EQ(measured->why, "no kernel gave a right result");
}

// What was chosen before must not be taken for the model's own choice.
TEST_F(MeasureTest, TheModelIsAskedAsIfNothingHadBeenMeasured) {
  Make({{.name = "model"}, {.name = "quick", .us = [](int) { return 60; }}});
  for (int i = 0; i < 2; ++i) {
    const auto measured = Run();
    ASSERT_TRUE(measured.ok());
    EXPECT_EQ(measured->outcome, Outcome::kTuned);
    EXPECT_EQ(measured->model, "model");
    backend_->tuned().Replace({{measured->key, {measured->kernel, 60, std::nullopt}}});
  }
}

TEST_F(MeasureTest, RowsOfOneNameAreToldApartByTheirTile) {
  const Tile small = {64, 64, 32}, large = {128, 128, 32};
  Make({{.name = "tiled", .tile = small}, {.name = "tiled", .us = [](int) { return 50; }, .tile = large}});
  const auto measured = Run();
  ASSERT_TRUE(measured.ok());
  EXPECT_EQ(measured->outcome, Outcome::kTuned);
  EXPECT_EQ(measured->tile, large);
  EXPECT_EQ(measured->model_tile, small);
}

TEST_F(MeasureTest, WhatCannotRunOrFitIsRefused) {
  Make({{.name = "model"}}, 1 << 10);
  auto measured = Run("matmul:f32:64x64x64");
  ASSERT_TRUE(measured.ok());
  EXPECT_EQ(measured->outcome, Outcome::kRefused);
  EXPECT_THAT(measured->why, HasSubstr("can never fit"));
  Make({{.name = "model"}});
  measured = Run("matmul:f32:8x8x1000000");
  ASSERT_TRUE(measured.ok());
  EXPECT_EQ(measured->outcome, Outcome::kRefused);
  EXPECT_THAT(measured->why, HasSubstr("bodies in flight"));
  EXPECT_THAT(backend_->order, ElementsAre());
}

TEST_F(MeasureTest, StoppingEndsItAndAbandonsTheCallThatRuns) {
  std::stop_source stop;
  Make({{.name = "model"}});
  int runs = 0;
  backend_->before_run = [&](const ScriptedKernel&) {
    if (++runs == 4) stop.request_stop();
  };
  EXPECT_TRUE(absl::IsCancelled(Run("matmul:f32:8x9x10", {.stop = stop.get_token()}).status()));
  EXPECT_EQ(backend_->order.size(), 3u) << "the fourth was abandoned";
  EXPECT_EQ(host_.used(), 0);
  EXPECT_EQ(engine_->load().memory_used, 0);
}

TEST_F(MeasureTest, ABudgetThatIsOverEndsIt) {
  Make({{.name = "model"}});
  EXPECT_TRUE(absl::IsCancelled(Run("matmul:f32:8x9x10", {.end = absl::InfinitePast()}).status()));
  EXPECT_THAT(backend_->order, ElementsAre());
}

TEST(WhyNotTuned, WhatIsNeverLookedUp) {
  EXPECT_EQ(WhyNotTuned(ShapeOf("matmul:f32:1x2x3:tf32")), "");
  EXPECT_THAT(WhyNotTuned(ShapeOf("matmul:f32:1x2x3:kernel=k")), HasSubstr("kernel open"));
  EXPECT_THAT(WhyNotTuned(ShapeOf("matmul:f32:1x2x3:invariant")), HasSubstr("batch-invariant"));
}

}  // namespace
}  // namespace kernd::tune
