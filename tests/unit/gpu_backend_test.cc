// The GPU backend: staging, order, accounting.
#include <algorithm>
#include <functional>
#include <thread>

#include "kernels/reference/attention.h"
#include "tests/unit/gpu_backend_case.h"

namespace kernd::gpu {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

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

TEST_F(GpuBackendTest, PrewarmDoesNotRunWhatRunsByRequestAlone) {
  BackendOptions options;
  options.executors = 1;
  Start(options, /*by_request=*/true);
  ASSERT_TRUE(backend_->Prewarm([](int, int, std::string_view) {}).ok());
  EXPECT_EQ(gpu_->calls("Launch"), 0);
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

}  // namespace
}  // namespace kernd::gpu
