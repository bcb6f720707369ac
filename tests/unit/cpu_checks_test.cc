// --debug-checks of the CPU backend.
#include "server/cpu/checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "absl/strings/match.h"
#include "server/cpu/backend.h"

namespace kernd::cpu {
namespace {

using ::testing::ElementsAre;

TEST(GuardedBuffer, SeesEveryByteAroundIt) {
  for (const std::int64_t bytes : {1, 4, 63, 64, 65, 1000}) {
    const core::HostBuffer buffer = AllocateGuarded(bytes);
    ASSERT_EQ(buffer.size(), bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % 64, 0u);
    std::memset(buffer.data(), 0x5a, static_cast<std::size_t>(bytes));
    EXPECT_TRUE(GuardsAreWhole(buffer));
    for (const std::int64_t at : {std::int64_t{-64}, std::int64_t{-1}, bytes, bytes + 1, bytes + 63}) {
      const std::byte before = buffer.data()[at];
      buffer.data()[at] ^= std::byte{1};
      EXPECT_FALSE(GuardsAreWhole(buffer)) << bytes << " " << at;
      buffer.data()[at] = before;
    }
    EXPECT_TRUE(GuardsAreWhole(buffer));
  }
  EXPECT_TRUE(GuardsAreWhole(AllocateGuarded(0)));
}

core::CallPtr Compute(core::Backend& backend, core::Program program) {
  auto call = std::make_shared<core::Call>(std::move(program), absl::InfiniteFuture(), 0, [](core::Call&) {});
  for (const core::Step& step : call->program.steps) call->plan.steps.push_back(*backend.PlanStep(step));
  const core::CallPtr batch[] = {call};
  backend.Execute(0, batch);
  return call;
}

core::Program Attention(const std::vector<std::byte>& q, const std::vector<std::byte>& kv) {
  core::AttentionStep step;
  step.problem.q = {.dtype = DataType::kF32, .shape = {1, 1, 4, 8}};
  step.problem.k = step.problem.v = step.problem.q;
  step.problem.want_lse = true;
  step.q.runs = {q};
  step.k.runs = step.v.runs = {kv};
  core::Program program;
  program.steps.emplace_back(std::move(step));
  return program;
}

TEST(CpuChecks, CountWhatIsNoNumber) {
  std::vector<std::byte> q(4 * 8 * 4), kv(4 * 8 * 4);
  const float nan = std::nanf("");
  std::memcpy(q.data() + 8 * 4, &nan, 4);  // row 1
  for (const bool on : {true, false}) {
    const auto backend = MakeBackend({.threads = 1, .debug_checks = on});
    EXPECT_THAT(Compute(*backend, Attention(kv, kv))->findings, ElementsAre());
    const core::CallPtr call = Compute(*backend, Attention(q, kv));
    ASSERT_TRUE(call->status.ok()) << call->status;
    if (!on) {
      EXPECT_THAT(call->findings, ElementsAre());
      continue;
    }
    EXPECT_THAT(call->findings,
                ElementsAre(core::Finding{.tensor = "q", .nan = 1}, core::Finding{.tensor = "o", .nan = 8},
                            core::Finding{.tensor = "lse", .nan = 1}));
  }
}

TEST(CpuChecks, NamesTheStep) {
  std::vector<std::byte> a(4), b(4);
  const float inf = std::numeric_limits<float>::infinity(), one = 1;
  std::memcpy(a.data(), &inf, 4);
  std::memcpy(b.data(), &one, 4);
  core::Program program;
  for (const auto* left : {&b, &a}) {
    core::MatmulStep step;
    step.problem.a = step.problem.b = {.dtype = DataType::kF32, .shape = {1, 1}};
    step.a.runs = {*left};
    step.b.runs = {b};
    program.steps.emplace_back(std::move(step));
  }
  const auto backend = MakeBackend({.threads = 1, .debug_checks = true});
  EXPECT_THAT(
      Compute(*backend, std::move(program))->findings,
      ElementsAre(core::Finding{.tensor = "steps[1].a", .inf = 1}, core::Finding{.tensor = "steps[1].d", .inf = 1}));
}

TEST(CpuChecks, AnOverrunIsInternalAndNamed) {
  core::Call call({}, absl::InfiniteFuture(), 0, [](core::Call&) {});
  const TensorSpec spec{.dtype = DataType::kF32, .shape = {3}};
  call.results.push_back(AllocateGuarded(12));
  std::memset(call.results[0].data(), 0, 13);
  const absl::Status status = Judge({}, {}, {spec}, {"d"}, "steps[0].", call);
  EXPECT_TRUE(absl::IsInternal(status)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "\"steps[0].d\"")) << status;
  EXPECT_THAT(call.findings, ElementsAre(core::Finding{.tensor = "steps[0].d", .overrun = true}));
}

}  // namespace
}  // namespace kernd::cpu
