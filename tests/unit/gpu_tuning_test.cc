// Tuned choices where a GPU's variants are chosen.
#include <gtest/gtest.h>

#include "kernd/kernels/tuning.h"
#include "server/gpu/backend.h"
#include "tests/support/fake_gpu.h"
#include "tests/support/fake_kernels.h"

namespace kernd::gpu {
namespace {

using testing::FakeGpu;
using testing::FakeKernels;

MatmulProblem Plain(std::int64_t m, std::int64_t n, std::int64_t k) {
  return {.a = {.dtype = DataType::kF32, .shape = {m, k}}, .b = {.dtype = DataType::kF32, .shape = {k, n}}};
}

std::string KeyOf(const MatmulProblem& p) {
  return TuningKey(p, *Validate(p));
}

// Of two rows that both run, the model takes the first; a tuned choice is taken in its place.
TEST(TunedChoice, IsTakenWhereItRuns) {
  FakeGpu gpu;
  const MatmulVariant& row = FakeKernels(gpu).matmul[0];
  std::vector<MatmulVariant> table(3, row);
  table[1].info.name = "second";
  table[2].info.name = "future";
  table[2].min_sm = 100;
  MatmulProblem p = Plain(8, 9, 10);
  const auto choose = [&](const TunedChoices& tuned, const KernelRequest& request = {}) {
    return *Choose(absl::Span<const MatmulVariant>(table), p, *Validate(p), request, gpu.info, &tuned);
  };
  EXPECT_EQ(choose({}).reason, ChoiceReason::kModel);
  const TunedChoices second = {{KeyOf(p), {"second", 1}}};
  EXPECT_EQ(choose(second).variant->info.name, "second");
  EXPECT_EQ(choose(second).reason, ChoiceReason::kTuned);
  EXPECT_EQ(choose(second, {.name = row.info.name}).reason, ChoiceReason::kForced);
  for (const char* name : {"future", "gone"}) {
    EXPECT_EQ(choose({{KeyOf(p), {name, 1}}}).variant->info.name, row.info.name) << name;
    EXPECT_EQ(choose({{KeyOf(p), {name, 1}}}).reason, ChoiceReason::kModel) << name;
  }
  table[1].info.name = row.info.name;
  table[1].info.tile = Tile{64, 64, 32};
  const auto* const by_tile = choose({{KeyOf(p), {row.info.name, 1, Tile{64, 64, 32}}}}).variant;
  EXPECT_EQ(by_tile, &table[1]) << "of two rows of one name";
  table[1].info.name = "second";
  p.numerics = Numerics::kBatchInvariant;
  EXPECT_EQ(choose({{KeyOf(p), {"second", 1}}}).reason, ChoiceReason::kModel) << "it would depend on M";
}

TEST(TunedChoice, ReachesThePlan) {
  auto gpu = std::make_shared<FakeGpu>();
  const KernelTables kernels = FakeKernels(*gpu);
  core::MatmulStep step{.problem = Plain(8, 9, 10)};
  BackendOptions options = {.memory_limit = 1 << 20, .primed_bytes = 1 << 20, .pinned_bytes = 1 << 20};
  const auto backend = MakeBackend(gpu, kernels, options);
  ASSERT_TRUE(backend.ok()) << backend.status();
  EXPECT_EQ((*backend)->PlanStep(step)->reason, ChoiceReason::kModel);
  (*backend)->tuned().Replace({{KeyOf(step.problem), {kernels.matmul[0].info.name, 1}}});
  EXPECT_EQ((*backend)->PlanStep(step)->reason, ChoiceReason::kTuned);
  step.kernel.untuned = true;
  EXPECT_EQ((*backend)->PlanStep(step)->reason, ChoiceReason::kModel);
  step.kernel.untuned = false;
  step.problem = Plain(8, 9, 11);
  EXPECT_EQ((*backend)->PlanStep(step)->reason, ChoiceReason::kModel);
}

TEST(TunedChoice, ABatchInvariantAttentionIsNotLookedUp) {
  auto gpu = std::make_shared<FakeGpu>();
  const KernelTables kernels = FakeKernels(*gpu);
  core::AttentionStep step;
  step.problem.q = step.problem.k = step.problem.v = {.dtype = DataType::kF32, .shape = {1, 2, 5, 8}};
  const auto backend =
      MakeBackend(gpu, kernels, {.memory_limit = 1 << 20, .primed_bytes = 1 << 20, .pinned_bytes = 1 << 20});
  ASSERT_TRUE(backend.ok()) << backend.status();
  const std::string key = TuningKey(step.problem, *Validate(step.problem));
  (*backend)->tuned().Replace({{key, {kernels.attention[0].info.name, 1, std::nullopt}}});
  EXPECT_EQ((*backend)->PlanStep(step)->reason, ChoiceReason::kTuned);
  step.numerics = Numerics::kBatchInvariant;
  EXPECT_EQ((*backend)->PlanStep(step)->reason, ChoiceReason::kModel) << "it would depend on the batch";
}

}  // namespace
}  // namespace kernd::gpu
