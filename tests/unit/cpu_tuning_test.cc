// Tuned choices where the CPU backend plans.
#include <gtest/gtest.h>

#include "kernd/kernels/tuning.h"
#include "server/core/shape_list.h"
#include "server/cpu/backend.h"

namespace kernd::cpu {
namespace {

core::Step StepOf(const std::string& shape) {
  return core::ParseShape(shape, "shape")->step;
}

std::string KeyOf(const core::Step& step) {
  return std::visit([](const auto& s) { return TuningKey(s.problem, *Validate(s.problem)); }, step);
}

class CpuTuningTest : public ::testing::Test {
 protected:
  void Choose(const std::string& shape, const std::string& kernel, std::optional<Tile> tile = std::nullopt) {
    backend_->tuned().Replace({{KeyOf(StepOf(shape)), {kernel, 1, tile}}});
  }
  core::StepPlan Plan(const core::Step& step) { return *backend_->PlanStep(step); }
  core::StepPlan Plan(const std::string& shape) { return Plan(StepOf(shape)); }

  const std::unique_ptr<core::Backend> backend_ = MakeBackend({.threads = 2});
};

// Of the two ways of a matmul, the one that the rule does not take: large and small, where it runs on one thread.
TEST_F(CpuTuningTest, AMeasuredChoiceGoesBeforeTheRule) {
  for (const auto& [shape, kernel] : {std::pair{"matmul:f32:256x256x256", "matmul_f32_cpu_packed"},
                                      {"matmul:f32:8x9x10", "matmul_f32_cpu_onednn"},
                                      {"attention:f32:1x2x64x32", "attention_f32_cpu_naive"}}) {
    const core::StepPlan before = Plan(shape);
    EXPECT_NE(before.kernel, kernel) << shape;
    Choose(shape, kernel);
    const core::StepPlan after = Plan(shape);
    EXPECT_EQ(after.kernel, kernel);
    EXPECT_EQ(after.reason, ChoiceReason::kTuned) << shape;

    core::Step step = StepOf(shape);
    std::visit([&](auto& s) { s.kernel.untuned = true; }, step);
    EXPECT_EQ(Plan(step).kernel, before.kernel) << shape;
    EXPECT_EQ(Plan(step).reason, before.reason) << shape;
    std::visit([&](auto& s) { s.kernel = {.name = before.kernel}; }, step);
    EXPECT_EQ(Plan(step).reason, ChoiceReason::kForced) << shape;
    backend_->tuned().Replace({});
    EXPECT_EQ(Plan(shape).reason, before.reason) << shape;
  }
}

// What a row's bits may not depend on must not choose its kernel.
TEST_F(CpuTuningTest, BatchInvariantCallsAreNotLookedUp) {
  core::Step matmul = StepOf("matmul:f32:256x256x256");
  auto& problem = std::get<core::MatmulStep>(matmul).problem;
  problem.numerics = Numerics::kBatchInvariant;
  const core::StepPlan before = Plan(matmul);
  EXPECT_EQ(before.kernel, "matmul_f32_cpu_packed");
  backend_->tuned().Replace({{KeyOf(matmul), {"matmul_f32_cpu_packed", 1, std::nullopt}}});
  EXPECT_EQ(Plan(matmul).reason, before.reason);

  const std::string shape = "attention:f32:1x2x64x32";
  Choose(shape, "attention_f32_cpu_naive");
  core::Step attention = StepOf(shape);
  std::get<core::AttentionStep>(attention).numerics = Numerics::kBatchInvariant;
  EXPECT_EQ(Plan(attention).kernel, "attention_f32_cpu_online");
  EXPECT_EQ(Plan(attention).reason, ChoiceReason::kRule);
}

// A file is not trusted.
TEST_F(CpuTuningTest, WhatCannotBeHadIsTheRulesToChoose) {
  const std::string shape = "matmul:f16:64x64x64";
  const core::StepPlan before = Plan(shape);
  for (const char* kernel : {"gone", "matmul_f32_cpu_packed", "attention_f16_cpu_naive"}) {
    Choose(shape, kernel);
    EXPECT_EQ(Plan(shape).kernel, before.kernel) << kernel;
    EXPECT_EQ(Plan(shape).reason, before.reason) << kernel;
  }
  Choose(shape, before.kernel, Tile{64, 64, 32});
  EXPECT_EQ(Plan(shape).reason, before.reason) << "no tiles here";
}

TEST_F(CpuTuningTest, TheVersionSaysWhatTimesDependOn) {
  const TuningVersion version = backend_->TuningVersionFor("0.1.0 (abc)");
  EXPECT_NE(version.device, "");
  EXPECT_EQ(version.processors, 2);
  EXPECT_EQ(version.kernel_library.rfind("onednn ", 0), 0u) << version.kernel_library;
  EXPECT_EQ(version.build, "0.1.0 (abc)");
  EXPECT_TRUE(ParseTuningText(TuningText(version, {}), version).ok());
  EXPECT_NE(MakeBackend({.threads = 1})->TuningVersionFor("0.1.0 (abc)"), version);
}

}  // namespace
}  // namespace kernd::cpu
