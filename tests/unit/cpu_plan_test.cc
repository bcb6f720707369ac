// server/cpu: bytes of plans, of shapes that no machine has room for.
#include "server/cpu/plan.h"

#include <gtest/gtest.h>

#include <limits>

#include "server/cpu/attention.h"

namespace kernd::cpu {
namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

TEST(CpuPlan, SumsOfBytesDoNotWrap) {
  core::MatmulStep step;
  step.problem.a = step.problem.b = {.dtype = DataType::kF32, .shape = {1 << 30, 1 << 30}};  // 2^62 bytes each
  const auto plan = Plan(step, 1);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->memory.inputs, kMost);
  EXPECT_EQ(plan->memory.outputs, std::int64_t{1} << 62);
  EXPECT_EQ(plan->memory.naive, kMost);
}

// Without a result, a shape of no bytes may have more rows than can be counted: 2^64 + 2^40 of each head.
TEST(CpuPlan, RowsThatNobodyWritesAreNotCounted) {
  AttentionProblem problem;
  problem.q = {.dtype = DataType::kF32, .shape = {1, (1 << 24) + 1, std::int64_t{1} << 40, 0}};
  problem.k = problem.v = {.dtype = DataType::kF32, .shape = {1, 1, 0, 0}};
  problem.scale = 1.0;
  const auto geometry = Validate(problem);
  ASSERT_TRUE(geometry.ok()) << geometry.status();
  const auto choice = ChooseAttention(problem, *geometry, {}, 4);
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->threads, 1);
  EXPECT_EQ(choice->workspace_bytes, 0);
}

}  // namespace
}  // namespace kernd::cpu
