// Tuning as a service: one at a time, refusals, the feed, the file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <thread>

#include "absl/synchronization/notification.h"
#include "kernd/kernels/error.h"
#include "server/tune/tuner.h"
#include "server/tune/tuning_file.h"
#include "tests/support/scripted_backend.h"

namespace kernd::tune {
namespace {

using ::testing::HasSubstr;
using testing::ScriptedBackend;
using testing::ScriptedKernel;

constexpr char kShape[] = "matmul:f32:8x9x10";
const TuningVersion kVersion = {
    .device = "scripted", .processors = 1, .driver = 0, .kernel_library = "none", .build = "0.1.0 (abc)"};

// What a reader sees who reads all, from the calling thread.
struct Heard {
  std::vector<Progress> all;
  absl::Status end;

  std::vector<Progress> Of(Progress::Kind kind) const {
    std::vector<Progress> some;
    for (const Progress& p : all) {
      if (p.kind == kind) some.push_back(p);
    }
    return some;
  }
};

class Reader {
 public:
  std::function<void()> Waker() {
    return [this] {
      absl::MutexLock lock(&mutex_);
      woken_ = true;
    };
  }
  Heard ReadAll(Feed& feed) {
    Heard heard;
    for (bool last = false; !last;) {
      while (!feed.Ready()) {
        absl::MutexLock lock(&mutex_);
        mutex_.Await(absl::Condition(&woken_));
        woken_ = false;
      }
      absl::StatusOr<Progress> progress = feed.Take(last);
      heard.end = progress.status();
      if (!progress.ok()) break;
      heard.all.push_back(*std::move(progress));
    }
    return heard;
  }

 private:
  absl::Mutex mutex_;
  bool woken_ = false;
};

class TunerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "kernd-tuner-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
    file_ = folder_ / "choices";
  }
  void TearDown() override {
    tuner_.reset();
    std::filesystem::remove_all(folder_);
  }
  void Make(std::vector<ScriptedKernel> kernels, std::vector<std::string> declared = {}, bool allowed = true) {
    tuner_.reset();
    auto backend = std::make_unique<ScriptedBackend>(std::move(kernels));
    backend_ = backend.get();
    engine_ = std::make_unique<core::Engine>(
        core::Engine::Options{.memory_limit = 1 << 20, .max_queued_calls = 8, .max_reply_bytes = 1 << 20},
        std::move(backend));
    ASSERT_TRUE(engine_->Start([](int, int, std::string_view) {}).ok());
    tuner_ = std::make_unique<Tuner>(*engine_, host_,
                                     Tuner::Options{.file = allowed ? file_.string() : "",
                                                    .version = kVersion,
                                                    .declared = *core::ParseShapes(declared, "--prewarm")},
                                     nullptr);
  }
  Heard Run(const std::vector<std::string>& shapes, double budget_s = 0) {
    Reader reader;
    const auto feed = tuner_->Start(shapes, budget_s, reader.Waker());
    if (!feed.ok()) return {.end = feed.status()};
    Heard heard = reader.ReadAll(**feed);
    (*feed)->Leave();
    return heard;
  }
  std::string Reason(const absl::Status& status) { return DetailOf(status).reason; }
  core::StepPlan PlanNow() { return *backend_->PlanStep(core::ParseShape(kShape, "shapes")->step); }

  std::filesystem::path folder_, file_;
  core::ByteBudget host_{1 << 20};
  ScriptedBackend* backend_ = nullptr;
  std::unique_ptr<core::Engine> engine_;
  std::unique_ptr<Tuner> tuner_;
};

const std::vector<ScriptedKernel> kTwo = {{.name = "model"}, {.name = "quick", .us = [](int) { return 60; }}};

TEST_F(TunerTest, AWinnerIsInEffectAndOnDisk) {
  Make(kTwo);
  EXPECT_EQ(PlanNow().reason, ChoiceReason::kModel);
  const Heard heard = Run({kShape});
  ASSERT_TRUE(heard.end.ok()) << heard.end;
  EXPECT_EQ(PlanNow().reason, ChoiceReason::kTuned);
  EXPECT_EQ(PlanNow().kernel, "quick");
  const auto kept = ReadTuningFile(file_, kVersion);
  ASSERT_TRUE(kept.ok()) << kept.status();
  ASSERT_EQ(kept->size(), 1u);
  EXPECT_EQ(kept->begin()->second.kernel, "quick");
  struct stat status {};
  ASSERT_EQ(stat(file_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);

  const std::vector<Progress> shapes = heard.Of(Progress::Kind::kShape);
  ASSERT_EQ(shapes.size(), 1u);
  EXPECT_EQ(shapes[0].outcome, Outcome::kTuned);
  EXPECT_EQ(shapes[0].done, 1);
  EXPECT_EQ(shapes[0].why, "");
  EXPECT_EQ(heard.Of(Progress::Kind::kCandidate).size(), 2u);
  EXPECT_EQ(heard.all.back().kind, Progress::Kind::kEnd);
  const Tuner::Counts counts = tuner_->counts();
  EXPECT_EQ(counts.choices, 1);
  EXPECT_EQ(counts.candidates[static_cast<std::size_t>(Verdict::kMeasured)], 2);
  EXPECT_EQ(counts.shapes[static_cast<std::size_t>(Outcome::kTuned)], 1);
  EXPECT_FALSE(counts.running);
}

// A choice that was kept and is no gain any more goes, from the file too; those of other problems stay.
TEST_F(TunerTest, AChoiceThatIsNoGainAnyMoreGoes) {
  Make({{.name = "model"}, {.name = "other", .us = [](int) { return 100; }}});
  backend_->tuned().Replace(
      {{"another", {"k", 1, std::nullopt}}, {"matmul/f32/8x9x10/b1/nn/a8b4/to-f32", {"other", 1, std::nullopt}}});
  ASSERT_EQ(PlanNow().reason, ChoiceReason::kTuned);
  ASSERT_TRUE(Run({kShape}).end.ok());
  EXPECT_EQ(PlanNow().reason, ChoiceReason::kModel);
  const auto kept = ReadTuningFile(file_, kVersion);
  ASSERT_TRUE(kept.ok());
  EXPECT_EQ(kept->size(), 1u);
  EXPECT_EQ(kept->count("another"), 1u);
}

TEST_F(TunerTest, WhatCannotBeWrittenIsInEffectAllTheSame) {
  std::filesystem::create_directories(file_ / "in the way");
  Make(kTwo);
  const Heard heard = Run({kShape});
  ASSERT_TRUE(heard.end.ok());
  EXPECT_THAT(heard.Of(Progress::Kind::kShape)[0].why, HasSubstr("in effect until the daemon ends: cannot replace"));
  EXPECT_EQ(PlanNow().reason, ChoiceReason::kTuned);
  EXPECT_EQ(tuner_->counts().writes_failed, 1);
}

TEST_F(TunerTest, RefusesWhatItMustNotDo) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInf = std::numeric_limits<double>::infinity();
  Make(kTwo, {}, false);
  EXPECT_TRUE(absl::IsFailedPrecondition(Run({kShape}).end));
  EXPECT_EQ(Reason(Run({kShape}).end), "TUNING_OFF");
  EXPECT_THAT(std::string(Run({kShape}).end.message()), HasSubstr("--tuning-file"));
  Make(kTwo, {"matmul:f32:1x2x3:invariant"});
  for (const double budget : {-1.0, kNan, kInf, -kInf, 86401.0}) {
    const absl::Status status = Run({kShape}, budget).end;
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << budget;
    EXPECT_EQ(DetailOf(status).field, "budget_s") << budget;
  }
  const std::pair<std::vector<std::string>, const char*> rows[] = {
      {{}, "without --prewarm shapes that can be tuned"},
      {{kShape, "conv:f32:1x2x3"}, "must begin with"},
      {{"matmul:f32:1x2x3:kernel=model"}, "must leave the kernel open"},
      {{"matmul:f32:1x2x3:invariant"}, "must not be batch-invariant"},
      {std::vector<std::string>(257, kShape), "at most 256"}};
  for (const auto& [shapes, rule] : rows) {
    const absl::Status status = Run(shapes).end;
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << rule;
    EXPECT_EQ(DetailOf(status).field, "shapes") << rule;
    EXPECT_THAT(std::string(status.message()), HasSubstr(rule));
  }
  EXPECT_TRUE(backend_->order.empty());
}

TEST_F(TunerTest, WithoutShapesTheDeclaredOnesAreTuned) {
  Make(kTwo, {kShape, "matmul:f32:1x2x3:kernel=model", "matmul:f32:4x5x6"});
  const Heard heard = Run({});
  ASSERT_TRUE(heard.end.ok());
  const std::vector<Progress> shapes = heard.Of(Progress::Kind::kShape);
  ASSERT_EQ(shapes.size(), 2u);
  EXPECT_EQ(shapes[0].shape, kShape);
  EXPECT_EQ(shapes[1].shape, "matmul:f32:4x5x6");
  EXPECT_EQ(shapes[1].total, 2);
}

TEST_F(TunerTest, ABudgetThatIsOverLeavesTheRestAsItIs) {
  Make(kTwo);
  const Heard heard = Run({kShape, "matmul:f32:4x5x6"}, 1e-9);
  ASSERT_TRUE(heard.end.ok());
  const std::vector<Progress> shapes = heard.Of(Progress::Kind::kShape);
  ASSERT_EQ(shapes.size(), 2u);
  for (const Progress& shape : shapes) {
    EXPECT_EQ(shape.outcome, Outcome::kNotReached);
    EXPECT_EQ(shape.why, "the budget was over");
  }
  EXPECT_FALSE(std::filesystem::exists(file_));
}

// Holds the first run until the test has looked.
class HeldTunerTest : public TunerTest {
 protected:
  void Hold() {
    backend_->before_run = [this](const ScriptedKernel&) {
      if (!reached_.HasBeenNotified()) reached_.Notify();
      go_on_.WaitForNotification();
    };
  }
  absl::Notification reached_, go_on_;
};

TEST_F(HeldTunerTest, OneAtATime) {
  Make(kTwo);
  Hold();
  Reader reader;
  const auto feed = tuner_->Start({{kShape}}, 0, reader.Waker());
  ASSERT_TRUE(feed.ok());
  reached_.WaitForNotification();
  EXPECT_TRUE(tuner_->counts().running);
  const absl::Status second = Run({kShape}).end;
  EXPECT_TRUE(absl::IsResourceExhausted(second));
  EXPECT_EQ(Reason(second), "TUNING_BUSY");
  EXPECT_TRUE(DetailOf(second).retry_after.has_value());
  go_on_.Notify();
  EXPECT_TRUE(reader.ReadAll(**feed).end.ok());
  EXPECT_TRUE(Run({kShape}).end.ok()) << "and then the next";
}

TEST_F(HeldTunerTest, AReaderThatLeavesEndsIt) {
  Make(kTwo);
  Hold();
  Reader reader;
  const auto feed = tuner_->Start({{kShape}}, 0, reader.Waker());
  ASSERT_TRUE(feed.ok());
  reached_.WaitForNotification();
  (*feed)->Leave();
  go_on_.Notify();
  tuner_.reset();  // waits
  EXPECT_EQ(PlanNow().reason, ChoiceReason::kModel);
  EXPECT_EQ(backend_->kernels[0].runs, 0) << "the call that ran was abandoned";
  EXPECT_EQ(host_.used(), 0);
  EXPECT_EQ(engine_->load().memory_used, 0);
}

TEST_F(HeldTunerTest, TheEndOfTheDaemonEndsIt) {
  Make(kTwo);
  Hold();
  Reader reader;
  const auto feed = tuner_->Start({{kShape}}, 0, reader.Waker());
  ASSERT_TRUE(feed.ok());
  reached_.WaitForNotification();
  tuner_->Stop();
  go_on_.Notify();
  const absl::Status end = reader.ReadAll(**feed).end;
  EXPECT_TRUE(absl::IsUnavailable(end)) << end;
  EXPECT_EQ(Reason(end), "DRAINING");
  EXPECT_EQ(Reason(Run({kShape}).end), "DRAINING");
}

// Of a writer's thread, what has been pushed.
class Pushed {
 public:
  void Add() {
    absl::MutexLock lock(&mutex_);
    ++count_;
  }
  // Waits until there are so many; how many there are.
  int Await(int least) {
    absl::MutexLock lock(&mutex_);
    const auto enough = [&] { return count_ >= least; };
    mutex_.Await(absl::Condition(&enough));
    return count_;
  }

 private:
  absl::Mutex mutex_;
  int count_ = 0;
};

// The writer is never further ahead of the reader than the feed holds, and goes on as the reader does.
TEST(Feed, ASlowReaderHoldsABoundedNumber) {
  constexpr int kAll = 200, kMost = static_cast<int>(Feed::kMost);
  Feed feed([] {});
  Pushed pushed;
  std::thread writer([&] {
    for (int i = 0; i < kAll; ++i) {
      feed.Push({.kind = Progress::Kind::kCandidate, .done = i});
      pushed.Add();
    }
  });
  bool last = false;
  for (int taken = 0; taken < kAll; ++taken) {
    EXPECT_LE(pushed.Await(std::min(kAll, taken + kMost)), taken + kMost);
    const auto progress = feed.Take(last);
    ASSERT_TRUE(progress.ok());
    EXPECT_EQ(progress->done, taken) << "in order, none left out";
  }
  writer.join();
  EXPECT_FALSE(last);
  feed.End(Progress{.kind = Progress::Kind::kEnd});
  EXPECT_EQ(feed.Take(last)->kind, Progress::Kind::kEnd);
  EXPECT_TRUE(last);
}

TEST(Feed, ARunningOneGivesWayToWhatComesAfterIt) {
  Feed feed([] {});
  for (const double part : {0.1, 0.2}) feed.Push({.kind = Progress::Kind::kRunning, .part = part});
  bool last = false;
  EXPECT_EQ(feed.Take(last)->part, 0.2);
  feed.Push({.kind = Progress::Kind::kRunning});
  feed.Push({.kind = Progress::Kind::kShape});
  EXPECT_EQ(feed.Take(last)->kind, Progress::Kind::kShape);
  EXPECT_FALSE(feed.Ready());
}

TEST(Feed, AWriterThatWaitsIsLetGo) {
  for (const bool leave : {true, false}) {
    Feed feed([] {});
    Pushed pushed;
    std::thread writer([&] {
      for (int i = 0; i < 200; ++i) {
        feed.Push({.kind = Progress::Kind::kCandidate});
        pushed.Add();
      }
    });
    pushed.Await(static_cast<int>(Feed::kMost));
    leave ? feed.Leave() : feed.Stop(absl::UnavailableError("bye"));
    writer.join();
    EXPECT_TRUE(feed.stopped().stop_requested());
  }
}

}  // namespace
}  // namespace kernd::tune
