// The GPU backend behind core's seam, on a GPU made of host memory: staging, order, accounting, and every way out of an
// error. Kernels are the reference's, so results must be its bits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <limits>
#include <thread>

#include "kernd/kernels/error.h"
#include "kernels/reference/attention.h"
#include "kernels/reference/matmul.h"
#include "server/gpu/backend.h"
#include "server/gpu/pinned_pool.h"
#include "tests/support/fake_gpu.h"

namespace kernd::gpu {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using testing::FakeGpu;
using testing::FakeKernels;
using ::testing::HasSubstr;

using Bytes = std::vector<std::byte>;

Bytes Ramp(std::int64_t elements, float start) {
  Bytes bytes(static_cast<std::size_t>(elements) * sizeof(float));
  for (std::int64_t i = 0; i < elements; ++i) {
    const float value = start + 0.25f * static_cast<float>(i % 37);
    std::memcpy(bytes.data() + i * 4, &value, 4);
  }
  return bytes;
}

struct Matmul {
  core::MatmulStep step;
  Bytes a, b, bias;

  Matmul(std::int64_t m, std::int64_t n, std::int64_t k) : a(Ramp(m * k, 1)), b(Ramp(k * n, -2)), bias(Ramp(n, 3)) {
    step.problem.a = {.dtype = DataType::kF32, .shape = {m, k}};
    step.problem.b = {.dtype = DataType::kF32, .shape = {k, n}};
    step.problem.bias = TensorSpec{.dtype = DataType::kF32, .shape = {n}};
    Point();
  }
  void Point() {
    step.a.runs = {a};
    step.b.runs = {b};
    step.bias.runs = {bias};
  }
  Bytes Expected() const {
    Bytes d(static_cast<std::size_t>(Validate(step.problem)->d.bytes()));
    EXPECT_TRUE(
        reference::Matmul(step.problem, {.a = a.data(), .b = b.data(), .bias = bias.data(), .d = d.data()}).ok());
    return d;
  }
};

Bytes BytesOf(const core::HostBuffer& buffer) {
  return Bytes(buffer.data(), buffer.data() + buffer.size());
}

class GpuBackendTest : public ::testing::Test {
 protected:
  void Start(BackendOptions options = {}) {
    if (options.memory_limit == 0) options.memory_limit = 64 << 20;
    options.primed_bytes = 1 << 20;
    options.pinned_bytes = 4 << 20;
    options.on_lost = [this](const absl::Status&) { ++lost_; };
    gpu_ = std::make_shared<FakeGpu>();
    auto backend = MakeBackend(gpu_, FakeKernels(*gpu_), options);
    ASSERT_TRUE(backend.ok()) << backend.status();
    backend_ = *std::move(backend);
  }
  void TearDown() override {
    backend_.reset();
    if (gpu_ != nullptr) {
      EXPECT_EQ(gpu_->alive(), FakeGpu::Alive()) << "something was not given back";
    }
  }

  core::CallPtr MakeCall(core::Program program) {
    auto call = std::make_shared<core::Call>(std::move(program), absl::InfiniteFuture(), 0, [](core::Call&) {});
    for (const core::Step& step : call->program.steps) {
      auto plan = backend_->PlanStep(step);
      EXPECT_TRUE(plan.ok()) << plan.status();
      if (plan.ok()) call->plan.steps.push_back(*std::move(plan));
    }
    return call;
  }
  // The call looks into `matmul`.
  core::CallPtr MakeCall(const Matmul& matmul) {
    core::Program program;
    program.steps.emplace_back(matmul.step);
    return MakeCall(std::move(program));
  }
  core::CallPtr Run(core::CallPtr call, int executor = 0) {
    const core::CallPtr batch[] = {call};
    backend_->Execute(executor, batch);
    return call;
  }
  core::PoolUse Pool(const std::string& name) {
    for (const core::PoolUse& pool : backend_->Pools()) {
      if (pool.pool == name) return pool;
    }
    return {};
  }

  std::shared_ptr<FakeGpu> gpu_;
  std::unique_ptr<core::Backend> backend_;
  std::atomic<int> lost_ = 0;
};

TEST_F(GpuBackendTest, ComputesAndAccounts) {
  Start();
  const Matmul matmul(33, 47, 61);
  const core::CallPtr call = Run(MakeCall(matmul));
  ASSERT_TRUE(call->status.ok()) << call->status;
  ASSERT_EQ(call->results.size(), 1u);
  EXPECT_EQ(BytesOf(call->results[0]), matmul.Expected());
  const core::StepPlan& plan = call->plan.steps[0];
  EXPECT_EQ(plan.kernel, "matmul_f32_sm75_fake");
  EXPECT_EQ(plan.reason, ChoiceReason::kModel);
  // What the plan promised is what the pools saw, to the byte.
  EXPECT_EQ(Pool("device").peak, plan.memory.peak());
  EXPECT_EQ(Pool("pinned").used, plan.memory.pinned);
  EXPECT_EQ(Pool("device").used, 0);
  for (const core::Stage stage : {core::Stage::kStageIn, core::Stage::kH2d, core::Stage::kKernel, core::Stage::kD2h}) {
    EXPECT_GT(call->stages[stage], absl::ZeroDuration());
  }
}

// Chunks smaller than operands, equal to them, and between: every byte must arrive at its place, and no chunk may be
// written while its copy is still to come.
TEST_F(GpuBackendTest, StagesThroughChunksOfAnySize) {
  for (const std::int64_t chunk : {256, 512, 1024, 4096, 1 << 20}) {
    SCOPED_TRACE(chunk);
    BackendOptions options;
    options.chunk_bytes = chunk;
    Start(options);
    for (const std::int64_t size : {1, 7, 16, 31, 64, 65, 100}) {
      SCOPED_TRACE(size);
      const Matmul matmul(size, size + 3, size + 1);
      const core::CallPtr call = Run(MakeCall(matmul));
      ASSERT_TRUE(call->status.ok()) << call->status;
      EXPECT_EQ(BytesOf(call->results[0]), matmul.Expected());
    }
    backend_.reset();
  }
}

TEST_F(GpuBackendTest, SmallOperandsAreOneCopy) {
  Start();
  Run(MakeCall(Matmul(16, 16, 16)));
  const std::int64_t before = gpu_->calls("CopyIn");
  Run(MakeCall(Matmul(16, 16, 16)));
  EXPECT_EQ(gpu_->calls("CopyIn"), before + 1);
}

TEST_F(GpuBackendTest, AttentionBringsItsTables) {
  BackendOptions options;
  options.chunk_bytes = 512;
  Start(options);
  core::AttentionStep step;
  AttentionProblem& p = step.problem;
  p.q = {.dtype = DataType::kF32, .shape = {2, 4, 5, 8}};
  p.k = p.v = {.dtype = DataType::kF32, .shape = {2, 2, 9, 8}};
  p.causal = true;
  p.alignment = MaskAlignment::kBottomRight;
  p.kv_lengths = {9, 4};
  p.q_lengths = {5, 3};
  p.alibi_slopes = {0.5f, 0.25f, 0.125f, 1};
  p.sinks = {0.1f, -0.5f, 2, 0};
  p.want_lse = true;
  const Bytes q = Ramp(320, -1), k = Ramp(288, 0.5f), v = Ramp(288, -3);
  step.q.runs = {q};
  step.k.runs = {k};
  step.v.runs = {v};
  Bytes o(320 * 4), lse(40 * 4);
  ASSERT_TRUE(
      reference::Attention(
          p, {.q = q.data(), .k = k.data(), .v = v.data(), .o = o.data(), .lse = reinterpret_cast<float*>(lse.data())})
          .ok());
  core::Program program;
  program.steps.emplace_back(std::move(step));
  const core::CallPtr call = Run(MakeCall(std::move(program)));
  ASSERT_TRUE(call->status.ok()) << call->status;
  ASSERT_EQ(call->results.size(), 2u);
  EXPECT_EQ(BytesOf(call->results[0]), o);
  EXPECT_EQ(BytesOf(call->results[1]), lse);
}

TEST_F(GpuBackendTest, EmptyResultsTouchNothing) {
  Start();
  const std::int64_t before = gpu_->calls("Allocate");
  const core::CallPtr call = Run(MakeCall(Matmul(0, 5, 7)));
  ASSERT_TRUE(call->status.ok());
  ASSERT_EQ(call->results.size(), 1u);
  EXPECT_EQ(call->results[0].size(), 0);
  EXPECT_EQ(call->plan.steps[0].memory.workspace, 0);
  EXPECT_EQ(gpu_->calls("Allocate"), before);
}

TEST_F(GpuBackendTest, StepsOfAProgramShareNothing) {
  Start();
  const Matmul first(8, 9, 10), second(11, 4, 6);
  core::Program program;
  program.steps.emplace_back(first.step);
  program.steps.emplace_back(second.step);
  const core::CallPtr call = Run(MakeCall(std::move(program)));
  ASSERT_TRUE(call->status.ok());
  ASSERT_EQ(call->results.size(), 2u);
  EXPECT_EQ(BytesOf(call->results[0]), first.Expected());
  EXPECT_EQ(BytesOf(call->results[1]), second.Expected());
}

// Whatever call of the driver fails, and whichever of them: the call ends with that error, nothing leaks, and the next
// call is right.
TEST_F(GpuBackendTest, EveryFailureIsSurvived) {
  BackendOptions options;
  options.chunk_bytes = 1024;
  Start(options);
  const Matmul matmul(33, 20, 40);
  for (const char* what : {"Bind", "Allocate", "Record", "CopyIn", "Launch", "CopyOut", "Passed", "Between", "Wait"}) {
    int failed = 0;
    for (int nth = 1; nth <= 12; ++nth) {
      SCOPED_TRACE(std::string(what) + " " + std::to_string(nth));
      const core::CallPtr call = MakeCall(matmul);
      gpu_->FailNext(what, nth, absl::InternalError(std::string(what) + " failed"));
      Run(call);
      if (!call->status.ok()) {
        ++failed;
        EXPECT_THAT(std::string(call->status.message()), HasSubstr(what));
        EXPECT_TRUE(call->results.empty());
        if (std::string(what) != "Bind") {
          EXPECT_EQ(gpu_->pending(), 0) << "work on its buffers is still to come";
        }
      }
      gpu_->FailNext(what, 1 << 30, absl::OkStatus());
      EXPECT_EQ(Pool("device").used, 0);
      const core::CallPtr next = Run(MakeCall(matmul));
      ASSERT_TRUE(next->status.ok()) << next->status;
      EXPECT_EQ(BytesOf(next->results[0]), matmul.Expected());
    }
    EXPECT_GT(failed, 0) << what << " was never called";
  }
  EXPECT_EQ(lost_, 0) << "none of these is the end of the device";
}

TEST_F(GpuBackendTest, MemoryHeldByOthersIsARefusalAndNoMore) {
  Start();
  const Matmul matmul(64, 64, 64);
  const core::CallPtr call = MakeCall(matmul);
  gpu_->memory = 1 << 20;  // all that is there is what was primed
  gpu_->FailNext("Allocate", 1, absl::ResourceExhaustedError("cudaErrorMemoryAllocation"));
  EXPECT_TRUE(Run(call)->status.ok()) << "the second try succeeds: " << call->status;
  const Matmul larger(640, 640, 640);
  const core::CallPtr refused = Run(MakeCall(larger));
  EXPECT_TRUE(absl::IsResourceExhausted(refused->status));
  EXPECT_EQ(DetailOf(refused->status).reason, reason::kMemoryFull);
  EXPECT_TRUE(Run(MakeCall(matmul))->status.ok());
}

TEST_F(GpuBackendTest, ALostDeviceIsSaidOnce) {
  Start();
  const Matmul matmul(8, 8, 8);
  const core::CallPtr first = MakeCall(matmul), second = MakeCall(matmul);
  gpu_->Lose();
  EXPECT_TRUE(absl::IsInternal(Run(first)->status));
  EXPECT_EQ(lost_, 1);
  EXPECT_TRUE(absl::IsUnavailable(Run(second)->status));
  EXPECT_EQ(DetailOf(second->status).reason, reason::kDeviceLost);
  EXPECT_EQ(lost_, 1);
}

TEST_F(GpuBackendTest, NobodyWaitsNothingRuns) {
  Start();
  const Matmul matmul(8, 8, 8);
  const core::CallPtr call = MakeCall(matmul);
  call->Abandon();
  const std::int64_t before = gpu_->calls("Launch");
  EXPECT_TRUE(absl::IsCancelled(Run(call)->status));
  EXPECT_EQ(gpu_->calls("Launch"), before);
}

TEST_F(GpuBackendTest, StagingStopsWhenTheClientGoes) {
  BackendOptions options;
  options.chunk_bytes = 1024;
  Start(options);
  const Matmul matmul(100, 100, 100);
  const core::CallPtr call = MakeCall(matmul);
  gpu_->AtNext("CopyIn", 3, [&] { call->Abandon(); });
  EXPECT_TRUE(absl::IsCancelled(Run(call)->status));
  EXPECT_EQ(gpu_->calls("CopyIn"), 3);
  EXPECT_EQ(gpu_->calls("Launch"), 0);
}

TEST_F(GpuBackendTest, ExecutorsRunBesideEachOther) {
  BackendOptions options;
  options.executors = 3;
  Start(options);
  ASSERT_EQ(backend_->Executors(), 3);
  std::vector<std::thread> threads;
  for (int e = 0; e < 3; ++e) {
    threads.emplace_back([this, e] {
      for (int i = 0; i < 50; ++i) {
        const Matmul matmul(10 + e, 11 + i % 7, 12);
        const core::CallPtr call = Run(MakeCall(matmul), e);
        ASSERT_TRUE(call->status.ok()) << call->status;
        ASSERT_EQ(BytesOf(call->results[0]), matmul.Expected());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(Pool("device").used, 0);
  EXPECT_EQ(Pool("pinned").used, 0);
}

TEST_F(GpuBackendTest, PrewarmRunsEveryVariantOnEveryExecutor) {
  BackendOptions options;
  options.executors = 2;
  Start(options);
  std::vector<std::string> seen;
  ASSERT_TRUE(backend_
                  ->Prewarm([&](int, int total, std::string_view what) {
                    EXPECT_EQ(total, 2);
                    seen.emplace_back(what);
                  })
                  .ok());
  EXPECT_THAT(seen, ElementsAre("matmul_f32_sm75_fake", "attention_f32_sm75_fake", ""));
  EXPECT_EQ(gpu_->calls("Launch"), 4);
}

TEST_F(GpuBackendTest, APrewarmThatFailsNamesTheKernel) {
  Start();
  gpu_->FailNext("Launch", 1, absl::InternalError("no image"));
  const absl::Status status = backend_->Prewarm([](int, int, std::string_view) {});
  EXPECT_THAT(std::string(status.message()), HasSubstr("matmul_f32_sm75_fake: no image"));
}

TEST_F(GpuBackendTest, LongStepsRunInSlices) {
  Start();
  gpu_->microseconds_a_row = 1000;  // 2 s in all, of which 256 rows are the least
  const Matmul matmul(2048, 16, 3);
  const core::CallPtr call = Run(MakeCall(matmul));
  ASSERT_TRUE(call->status.ok()) << call->status;
  EXPECT_EQ(gpu_->calls("Launch"), 8);
  EXPECT_EQ(BytesOf(call->results[0]), matmul.Expected());
}

TEST_F(GpuBackendTest, ALongStepEndsWithItsSliceWhenTheClientGoes) {
  Start();
  gpu_->microseconds_a_row = 1000;
  const Matmul matmul(2048, 16, 3);
  const core::CallPtr call = MakeCall(matmul);
  gpu_->AtNext("Launch", 3, [&] { call->Abandon(); });
  EXPECT_TRUE(absl::IsCancelled(Run(call)->status)) << call->status;
  EXPECT_EQ(gpu_->calls("Launch"), 3) << "of eight";
  EXPECT_EQ(gpu_->pending(), 0);
  EXPECT_EQ(Pool("device").used, 0);
  EXPECT_TRUE(Run(MakeCall(matmul))->status.ok());
}

TEST_F(GpuBackendTest, AtMostTwoSlicesAreUnderWay) {
  Start();
  gpu_->microseconds_a_row = 1000;
  const Matmul matmul(2048, 16, 3);
  const core::CallPtr call = MakeCall(matmul);
  int begun = 0, done = 0, most = 0;
  gpu_->after_kernel = [&](float*, std::int64_t) { ++done; };
  std::function<void()> count = [&] {
    most = std::max(most, ++begun - done);
    gpu_->AtNext("Launch", 1, count);
  };
  gpu_->AtNext("Launch", 1, count);
  EXPECT_TRUE(Run(call)->status.ok()) << call->status;
  EXPECT_EQ(begun, 8);
  EXPECT_EQ(most, 2);
}

TEST_F(GpuBackendTest, RefusesKernelsOfOtherDevices) {
  Start();
  Matmul matmul(8, 8, 8);
  matmul.step.kernel.name = "matmul_f32_sm100_fake";
  const absl::Status newer = backend_->PlanStep(matmul.step).status();
  EXPECT_TRUE(absl::IsInvalidArgument(newer));
  EXPECT_THAT(std::string(newer.message()), HasSubstr("needs sm_100 and this is sm_90"));
  matmul.step.kernel.name = "no_such";
  EXPECT_THAT(std::string(backend_->PlanStep(matmul.step).status().message()), HasSubstr("no such kernel"));
  matmul.step.kernel.name = "";
  matmul.step.problem.a.dtype = matmul.step.problem.b.dtype = DataType::kF64;
  matmul.step.problem.bias.reset();
  EXPECT_TRUE(absl::IsUnimplemented(backend_->PlanStep(matmul.step).status()));
}

TEST_F(GpuBackendTest, SaysWhatItIs) {
  Start();
  const std::vector<core::DeviceDescription> devices = backend_->Devices();
  ASSERT_EQ(devices.size(), 1u);
  EXPECT_EQ(devices[0].tier, core::DeviceDescription::Tier::kAdvanced);
  EXPECT_EQ(devices[0].compute_capability, "9.0");
  EXPECT_THAT(devices[0].hardware_has, Contains("wgmma"));
  EXPECT_THAT(devices[0].kernels_use, ElementsAre("sm_75"));
  EXPECT_EQ(backend_->Variants().size(), 2u) << "those for newer devices are not listed";
  for (const core::DtypeSupport& row : backend_->Support()) {
    EXPECT_EQ(row.why_not.empty(), row.dtype == DataType::kF32) << Name(row.dtype);
  }
}

class GpuChecksTest : public GpuBackendTest {
 protected:
  void SetUp() override {
    BackendOptions options;
    options.debug_checks = true;
    options.chunk_bytes = 1024;
    Start(options);
  }
};

TEST_F(GpuChecksTest, FindNothingInGoodCalls) {
  for (const std::int64_t size : {1, 7, 33, 100}) {
    const Matmul matmul(size, size + 3, size + 1);
    const core::CallPtr call = Run(MakeCall(matmul));
    ASSERT_TRUE(call->status.ok()) << call->status;
    EXPECT_EQ(BytesOf(call->results[0]), matmul.Expected());
    EXPECT_THAT(call->findings, ElementsAre());
    EXPECT_EQ(Pool("device").used, 0);
  }
  const Matmul matmul(5, 6, 7);
  const core::CallPtr call = MakeCall(matmul);
  EXPECT_GT(call->plan.steps[0].memory.workspace, kDeviceAlignment) << "guards and counts are accounted for";
}

TEST_F(GpuChecksTest, CountWhatIsNoNumber) {
  Matmul matmul(4, 5, 6);
  const float nan = std::nanf(""), inf = std::numeric_limits<float>::infinity();
  std::memcpy(matmul.a.data() + 4 * 7, &nan, 4);     // row 1
  std::memcpy(matmul.bias.data() + 4 * 2, &inf, 4);  // column 2
  const Matmul first(2, 2, 2);
  core::Program program;
  program.steps.emplace_back(first.step);
  program.steps.emplace_back(matmul.step);
  const core::CallPtr call = Run(MakeCall(std::move(program)));
  ASSERT_TRUE(call->status.ok()) << call->status;
  EXPECT_THAT(call->findings, ElementsAre(core::Finding{.tensor = "steps[1].a", .nan = 1},
                                          core::Finding{.tensor = "steps[1].bias", .inf = 1},
                                          core::Finding{.tensor = "steps[1].d", .nan = 5, .inf = 3}));
}

// One element before the first, behind the last, and in the last byte of the guard's reach.
TEST_F(GpuChecksTest, AWriteOutsideOfAResultIsInternal) {
  const Matmul matmul(5, 7, 3);  // 140 bytes: the guard begins inside the alignment
  for (const std::int64_t at : {-1, -64, 35, 36, 64, 127}) {
    SCOPED_TRACE(at);
    gpu_->after_kernel = [at](float* result, std::int64_t) { result[at] = 1; };
    const core::CallPtr call = Run(MakeCall(matmul));
    EXPECT_TRUE(absl::IsInternal(call->status)) << call->status;
    EXPECT_THAT(std::string(call->status.message()), HasSubstr("wrote past the result \"d\""));
    EXPECT_THAT(call->findings, ElementsAre(core::Finding{.tensor = "d", .overrun = true}));
    EXPECT_TRUE(call->results.empty());
  }
  gpu_->after_kernel = nullptr;
  EXPECT_TRUE(Run(MakeCall(matmul))->status.ok());
  EXPECT_EQ(lost_, 0);
}

TEST_F(GpuChecksTest, AttentionToo) {
  core::AttentionStep step;
  step.problem.q = step.problem.k = step.problem.v = {.dtype = DataType::kF32, .shape = {1, 2, 3, 4}};
  step.problem.want_lse = true;
  Bytes q = Ramp(24, -1), v = Ramp(24, 2);
  const float nan = std::nanf("");
  std::memcpy(v.data(), &nan, 4);
  step.q.runs = step.k.runs = {q};
  step.v.runs = {v};
  core::Program program;
  program.steps.emplace_back(std::move(step));
  gpu_->after_kernel = [](float* o, std::int64_t elements) { o[elements] = 0; };
  const core::CallPtr call = Run(MakeCall(std::move(program)));
  EXPECT_TRUE(absl::IsInternal(call->status)) << call->status;
  EXPECT_THAT(call->findings, ElementsAre(core::Finding{.tensor = "v", .nan = 1},
                                          core::Finding{.tensor = "o", .nan = 3, .overrun = true}));
}

}  // namespace
}  // namespace kernd::gpu
