// The service without a network, on a backend that computes nothing and can be held, failed and watched.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "kernd/kernels/error.h"
#include "server/core/engine.h"
#include "server/core/shared_region.h"
#include "tests/support/memfd.h"

namespace kernd::core {
namespace {

using ::testing::ElementsAre;

TEST(ByteBudget, TakesWhatFitsAndGivesItBack) {
  ByteBudget budget(100);
  ByteBudget::Lease a, b;
  EXPECT_TRUE(budget.Reserve(60, a));
  EXPECT_FALSE(budget.Reserve(41, b));
  EXPECT_EQ(b.bytes(), 0);
  EXPECT_TRUE(budget.Reserve(40, b));
  EXPECT_EQ(budget.used(), 100);
  EXPECT_FALSE(a.Resize(61));
  EXPECT_EQ(a.bytes(), 60);
  EXPECT_TRUE(b.Resize(10));
  EXPECT_TRUE(a.Resize(90));
  a.Reset();
  b.Reset();
  EXPECT_EQ(budget.used(), 0);
  EXPECT_EQ(budget.peak(), 100);
}

TEST(ByteBudget, NoSumWraps) {
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  ByteBudget budget(kMax);
  ByteBudget::Lease a, b;
  ASSERT_TRUE(budget.Reserve(kMax - 1, a));
  EXPECT_FALSE(budget.Reserve(kMax - 1, b));
  EXPECT_TRUE(budget.Reserve(1, b));
}

TEST(ByteBudget, MovedLeasesCountOnce) {
  ByteBudget budget(10);
  ByteBudget::Lease a;
  ASSERT_TRUE(budget.Reserve(7, a));
  ByteBudget::Lease b = std::move(a);
  ByteBudget::Lease c;
  c = std::move(b);
  EXPECT_EQ(budget.used(), 7);
  c.Reset();
  EXPECT_EQ(budget.used(), 0);
}

TEST(ByteBudget, NeverPassesItsLimitUnderContention) {
  ByteBudget budget(1000);
  std::atomic<int> over = 0;
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      for (int i = 0; i < 20000; ++i) {
        ByteBudget::Lease lease;
        budget.Reserve(static_cast<std::int64_t>(random() % 600), lease);
        if (budget.used() > 1000) ++over;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(over, 0);
  EXPECT_EQ(budget.used(), 0);
  EXPECT_LE(budget.peak(), 1000);
}

// Plans every matmul as its operands and result, runs it by noting its M, and can be held.
class FakeBackend final : public Backend {
 public:
  std::string_view name() const override { return "fake"; }
  std::string_view device_id() const override { return "fake0"; }
  std::vector<DeviceDescription> Devices() const override { return {}; }
  std::vector<VariantInfo> Variants() const override { return {}; }
  std::vector<DtypeSupport> Support() const override { return {}; }
  absl::StatusOr<StepPlan> PlanStep(const Step& step) const override {
    const MatmulProblem& p = std::get<MatmulStep>(step).problem;
    absl::StatusOr<MatmulGeometry> g = Validate(p);
    if (!g.ok()) return g.status();
    StepPlan plan;
    plan.results.push_back(g->d);
    plan.memory.inputs = p.a.bytes() + p.b.bytes();
    plan.memory.outputs = g->d.bytes();
    return plan;
  }
  absl::Status Prewarm(const Progress&) override { return prewarm; }
  int Executors() const override { return 1; }
  bool RunsInline(const Plan& plan) const override { return plan.memory.peak() <= inline_bytes; }
  void ExecuteInline(Call& call) override {
    Note(call);
    call.Finish(result);
  }
  void Execute(int, absl::Span<const CallPtr> batch) override {
    for (const CallPtr& call : batch) {
      Note(*call);
      absl::MutexLock lock(&mutex);
      mutex.Await(absl::Condition(&open));
      call->results.emplace_back();
      call->Finish(result);
    }
  }
  std::int64_t Trim() override { return 0; }

  void Note(const Call& call) {
    absl::MutexLock lock(&mutex);
    ran.push_back(std::get<MatmulStep>(call.program.steps[0]).problem.a.shape[0]);
  }
  void Open() {
    absl::MutexLock lock(&mutex);
    open = true;
  }
  void AwaitRun(std::size_t count) {
    absl::MutexLock lock(&mutex);
    const auto enough = [&] { return ran.size() >= count; };
    mutex.Await(absl::Condition(&enough));
  }

  absl::Mutex mutex;
  bool open = false;
  std::vector<std::int64_t> ran;
  absl::Status prewarm, result;
  std::int64_t inline_bytes = -1;
};

class EngineTest : public ::testing::Test {
 protected:
  void Make(Engine::Options options = {.memory_limit = 1 << 20, .max_queued_calls = 8, .max_reply_bytes = 1 << 19}) {
    auto backend = std::make_unique<FakeBackend>();
    backend_ = backend.get();
    engine_ = std::make_unique<Engine>(options, std::move(backend));
  }
  void Start() {
    ASSERT_TRUE(engine_->Start([](int, int, std::string_view) {}).ok());
  }

  // A call of [m, 4] x [4, 4] F32; its status, once it has one, in statuses_[m].
  CallPtr NewCall(std::int64_t m, int priority = 0, absl::Time deadline = absl::InfiniteFuture()) {
    MatmulStep step;
    step.problem.a = {.dtype = DataType::kF32, .shape = {m, 4}};
    step.problem.b = {.dtype = DataType::kF32, .shape = {4, 4}};
    step.a.owner = bytes_;
    Program program;
    program.steps.emplace_back(std::move(step));
    return std::make_shared<Call>(std::move(program), deadline, priority, [this, m](Call& call) {
      absl::MutexLock lock(&mutex_);
      EXPECT_TRUE(statuses_.emplace(m, call.status).second) << "finished twice";
    });
  }
  absl::Status Await(std::int64_t m) {
    absl::MutexLock lock(&mutex_);
    const auto there = [&] { return statuses_.contains(m); };
    mutex_.Await(absl::Condition(&there));
    return statuses_.at(m);
  }
  bool Finished(std::int64_t m) {
    absl::MutexLock lock(&mutex_);
    return statuses_.contains(m);
  }

  FakeBackend* backend_ = nullptr;
  absl::Mutex mutex_;
  std::map<std::int64_t, absl::Status> statuses_;
  std::shared_ptr<int> bytes_ = std::make_shared<int>(0);  // what a request's operands would lie in
  std::unique_ptr<Engine> engine_;                         // last: its destructor still finishes calls
};

TEST_F(EngineTest, RefusesUntilItIsWarm) {
  Make();
  engine_->Submit(NewCall(1));
  EXPECT_EQ(Await(1).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(DetailOf(Await(1)).reason, reason::kStarting);
  EXPECT_TRUE(DetailOf(Await(1)).retry_after.has_value());
  backend_->prewarm = absl::InternalError("no");
  EXPECT_FALSE(engine_->Start([](int, int, std::string_view) {}).ok());
  EXPECT_FALSE(engine_->ready());
  backend_->prewarm = absl::OkStatus();
  Start();
  backend_->Open();
  engine_->Submit(NewCall(2));
  EXPECT_TRUE(Await(2).ok());
}

TEST_F(EngineTest, RunsByPriorityThenAge) {
  Make();
  Start();
  engine_->Submit(NewCall(1));
  backend_->AwaitRun(1);  // holds the worker
  engine_->Submit(NewCall(2));
  engine_->Submit(NewCall(3, 5));
  engine_->Submit(NewCall(4));
  engine_->Submit(NewCall(5, 5));
  engine_->Submit(NewCall(6, -1));
  EXPECT_EQ(engine_->load().queued, 5);
  backend_->Open();
  for (std::int64_t m = 1; m <= 6; ++m) EXPECT_TRUE(Await(m).ok());
  EXPECT_THAT(backend_->ran, ElementsAre(1, 3, 5, 2, 4, 6));
}

TEST_F(EngineTest, WhatNobodyWaitsForNeverRuns) {
  Make();
  Start();
  engine_->Submit(NewCall(1));
  backend_->AwaitRun(1);
  const CallPtr gone = NewCall(2);
  engine_->Submit(gone);
  engine_->Submit(NewCall(3, 0, absl::Now() - absl::Seconds(1)));
  engine_->Submit(NewCall(4));
  engine_->Abandon(gone);
  EXPECT_EQ(Await(2).code(), absl::StatusCode::kCancelled) << "at once, not when its turn comes";
  EXPECT_FALSE(Finished(1));
  engine_->Abandon(gone);  // again: nothing happens
  backend_->Open();
  EXPECT_EQ(Await(3).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(Await(4).ok());
  EXPECT_THAT(backend_->ran, ElementsAre(1, 4));
}

TEST_F(EngineTest, PlacesAreBoundedAndGivenBack) {
  Make({.memory_limit = 1 << 20, .max_queued_calls = 2, .max_reply_bytes = 1 << 19});
  Start();
  engine_->Submit(NewCall(1));
  engine_->Submit(NewCall(2));
  engine_->Submit(NewCall(3));
  EXPECT_EQ(Await(3).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(DetailOf(Await(3)).reason, reason::kQueueFull);
  EXPECT_TRUE(DetailOf(Await(3)).retry_after.has_value());
  backend_->Open();
  EXPECT_TRUE(Await(1).ok());
  EXPECT_TRUE(Await(2).ok());
  while (engine_->load().calls != 0) std::this_thread::yield();
  engine_->Submit(NewCall(4));
  EXPECT_TRUE(Await(4).ok());
}

TEST_F(EngineTest, MemoryIsChargedExactlyAndUntilTheResultsGo) {
  // [m, 4] x [4, 4] in F32: 16 m + 64 in, 16 m out.
  Make({.memory_limit = 1000, .max_queued_calls = 8, .max_reply_bytes = 1 << 19});
  Start();
  backend_->Open();
  CallPtr held = NewCall(10);
  engine_->Submit(held);
  EXPECT_TRUE(Await(10).ok());
  EXPECT_EQ(engine_->load().memory_used, 384);
  engine_->Submit(NewCall(20));  // 704 bytes: not now
  EXPECT_EQ(DetailOf(Await(20)).reason, reason::kMemoryFull);
  EXPECT_EQ(DetailOf(Await(20)).metadata.at("needed_bytes"), "704");
  EXPECT_EQ(DetailOf(Await(20)).metadata.at("available_bytes"), "616");
  engine_->Submit(NewCall(100));  // 3264 bytes: never
  EXPECT_EQ(DetailOf(Await(100)).reason, reason::kTooLarge);
  EXPECT_FALSE(DetailOf(Await(100)).retry_after.has_value());
  // 32 m + 64 <= 1000.
  EXPECT_EQ(std::string(Await(100).message()),
            "the call needs 3264 bytes and can never fit: the memory limit is 1000 bytes; the most rows that would fit "
            "are 29");
  EXPECT_EQ(DetailOf(Await(100)).metadata.at("needed_bytes"), "3264");
  EXPECT_EQ(DetailOf(Await(100)).metadata.at("limit_bytes"), "1000");
  EXPECT_EQ(DetailOf(Await(100)).metadata.at("largest_rows"), "29");
  while (held.use_count() > 1) std::this_thread::yield();  // the worker lets go
  held.reset();
  EXPECT_EQ(engine_->load().memory_used, 0);
  EXPECT_EQ(engine_->load().memory_peak, 384);
}

TEST_F(EngineTest, ResultsTooLargeForAReplyAreRefused) {
  Make({.memory_limit = 1 << 20, .max_queued_calls = 8, .max_reply_bytes = 159});
  Start();
  backend_->Open();
  engine_->Submit(NewCall(9));
  EXPECT_TRUE(Await(9).ok());
  engine_->Submit(NewCall(10));
  EXPECT_EQ(DetailOf(Await(10)).reason, reason::kTooLarge);
  EXPECT_EQ(DetailOf(Await(10)).metadata.at("largest_rows"), "9");
  // But for those that do not travel.
  const int fd = testing::MakeMemfd(4096);
  const CallPtr shared = NewCall(11);
  std::get<MatmulStep>(shared->program.steps[0]).places[0].region = *SharedRegion::Map(fd, 4096);
  close(fd);
  engine_->Submit(shared);
  EXPECT_TRUE(Await(11).ok()) << Await(11);
}

TEST_F(EngineTest, AFailedKernelGivesEverythingBack) {
  Make();
  Start();
  backend_->Open();
  backend_->result = absl::InternalError("broken");
  CallPtr call = NewCall(1);
  engine_->Submit(call);
  EXPECT_EQ(Await(1).code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(call->results.empty());
  while (call.use_count() > 1) std::this_thread::yield();
  EXPECT_EQ(bytes_.use_count(), 1) << "the request's bytes go when the call has finished, not with its last reference";
  call.reset();
  EXPECT_EQ(engine_->load().memory_used, 0);
  EXPECT_EQ(engine_->load().calls, 0);
}

TEST_F(EngineTest, SmallCallsDoNotWaitForTheWorker) {
  Make();
  backend_->inline_bytes = 200;
  Start();
  engine_->Submit(NewCall(50));  // held
  backend_->AwaitRun(1);
  engine_->Submit(NewCall(2));
  EXPECT_TRUE(Finished(2));
  EXPECT_FALSE(Finished(50));
  engine_->Submit(NewCall(3, 0, absl::Now() - absl::Seconds(1)));
  EXPECT_EQ(Await(3).code(), absl::StatusCode::kDeadlineExceeded);
  backend_->Open();
  EXPECT_TRUE(Await(50).ok());
  EXPECT_THAT(backend_->ran, ElementsAre(50, 2));
}

TEST_F(EngineTest, TheEndFinishesWhatWasAdmitted) {
  Make();
  Start();
  backend_->Open();
  for (std::int64_t m = 1; m <= 5; ++m) engine_->Submit(NewCall(m));
  engine_.reset();
  for (std::int64_t m = 1; m <= 5; ++m) EXPECT_TRUE(Finished(m)) << m;
}

// Submitters, cancellers and the worker at once: each call finishes once, and nothing is held at the end.
TEST_F(EngineTest, ManyThreadsLoseNothing) {
  Make({.memory_limit = 1 << 17, .max_queued_calls = 16, .max_reply_bytes = 1 << 17});
  Start();
  backend_->Open();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 500; ++i) {
        const CallPtr call = NewCall(1 + t * 500 + i, i % 3);
        engine_->Submit(call);
        if (i % 2 == 0) engine_->Abandon(call);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  engine_.reset();
  EXPECT_EQ(statuses_.size(), 2000u);
  EXPECT_EQ(bytes_.use_count(), 1);
}

std::vector<DeclaredShape> Declared(const std::vector<std::string>& texts) {
  auto shapes = ParseShapes(texts, "shapes");
  EXPECT_TRUE(shapes.ok()) << shapes.status();
  return *std::move(shapes);
}

TEST_F(EngineTest, DeclaredShapesRunBeforeItIsReady) {
  Make();
  backend_->Open();
  std::vector<std::string> seen;
  const auto progress = [&](int done, int total, std::string_view what) {
    EXPECT_FALSE(engine_->ready());
    EXPECT_EQ(total, 2);
    seen.push_back(std::to_string(done) + std::string(what));
  };
  const auto refused = [](const DeclaredShape& shape, const absl::Status& why) { ADD_FAILURE() << shape.text << why; };
  ASSERT_TRUE(engine_->Start(progress, Declared({"matmul:f32:3x4x5", "matmul:f32:7x4x5"}), refused).ok());
  EXPECT_TRUE(engine_->ready());
  EXPECT_THAT(backend_->ran, ElementsAre(3, 7));
  EXPECT_THAT(seen, ElementsAre("0matmul:f32:3x4x5", "1matmul:f32:7x4x5", "2"));
  EXPECT_EQ(engine_->load().memory_used, 0);
  EXPECT_EQ(engine_->load().calls, 0);
}

TEST_F(EngineTest, DeclaredShapesThatCannotRunAreToldAndNoMore) {
  Make();
  backend_->Open();
  std::vector<std::string> told;
  const auto refused = [&](const DeclaredShape& shape, const absl::Status& why) {
    EXPECT_TRUE(absl::IsResourceExhausted(why)) << why;
    told.push_back(shape.text);
  };
  const auto quiet = [](int, int, std::string_view) {};
  ASSERT_TRUE(engine_->Start(quiet, Declared({"matmul:f32:1000x1000x1000", "matmul:f32:7x4x5"}), refused).ok());
  EXPECT_THAT(told, ElementsAre("matmul:f32:1000x1000x1000"));
  EXPECT_THAT(backend_->ran, ElementsAre(7));
}

TEST_F(EngineTest, AKernelThatFailsOnADeclaredShapeIsAFailure) {
  Make();
  backend_->Open();
  backend_->result = absl::InternalError("no image");
  const absl::Status status = engine_->Start([](int, int, std::string_view) {}, Declared({"matmul:f32:3x4x5"}),
                                             [](const DeclaredShape&, const absl::Status&) { ADD_FAILURE(); });
  EXPECT_EQ(status, absl::InternalError("matmul:f32:3x4x5: no image"));
  EXPECT_FALSE(engine_->ready());
}

}  // namespace
}  // namespace kernd::core
