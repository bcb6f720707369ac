#include "server/cpu/plan.h"

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>

#include "kernd/kernels/error.h"
#include "kernd/kernels/tensor.h"

namespace kernd::cpu {
namespace {

// Below both, one thread is done sooner than a worker is awake: about 20 us of arithmetic.
constexpr double kInlineFlops = 1e6;
constexpr std::int64_t kInlineBytes = 256 << 10;
constexpr double kFlopsOfExp = 20, kFlopsOfRow = 100;

std::int64_t BytesOf(const std::optional<TensorSpec>& spec) {
  return spec ? spec->bytes() : 0;
}
std::int64_t BytesOf(const std::optional<ScaleSpec>& scale) {
  return scale ? scale->spec.bytes() : 0;
}

// Adds `bytes` to a sum that stays at the largest number once it has come there.
void AddTo(std::int64_t& sum, std::int64_t bytes) {
  sum = CheckedAdd(sum, bytes).value_or(std::numeric_limits<std::int64_t>::max());
}

// What `step` takes, whose operands have these bytes; `naive` as where the operation has no more to it.
template <typename Step, std::size_t kOperands>
void SetMemory(const Step& step, const std::int64_t (&operand_bytes)[kOperands], core::StepPlan& plan) {
  const auto operands = step.operands();
  static_assert(std::tuple_size_v<decltype(operands)> == kOperands);
  plan.memory.naive = 0;
  for (std::size_t i = 0; i < kOperands; ++i) {
    AddTo(plan.memory.naive, operand_bytes[i]);
    if (!operands[i]->in_place()) AddTo(plan.memory.inputs, operand_bytes[i]);
  }
  for (std::size_t i = 0; i < plan.results.size(); ++i) {
    const std::int64_t bytes = plan.results[i].bytes();
    AddTo(plan.memory.naive, bytes);
    if (step.places[i].in_reply()) AddTo(plan.memory.outputs, bytes);
  }
}

// Of all that is read and written, wherever it is.
bool IsSmall(double flops, std::int64_t bytes) {
  return flops <= kInlineFlops && bytes <= kInlineBytes;
}

// By `choose`, the kernel that was measured to be the quickest or, where there is none, the rule's.
template <typename Choose>
auto ChooseMeasured(const KernelRequest& request, const TunedChoice* tuned, const Choose& choose)
    -> decltype(choose(request)) {
  if (tuned != nullptr && request.name.empty() && !request.tile && !request.untuned) {
    auto choice = choose({.name = tuned->kernel, .tile = tuned->tile});
    if (choice.ok()) choice->reason = ChoiceReason::kTuned;
    if (choice.ok()) return choice;  // else it cannot be had: a file is not trusted
  }
  return choose(request);
}

}  // namespace

absl::StatusOr<core::StepPlan> Plan(const core::MatmulStep& step, int threads, const TunedChoices* measured) {
  const MatmulProblem& p = step.problem;
  auto prepared = std::make_unique<PreparedMatmul>();
  KERND_ASSIGN_OR_RETURN(prepared->geometry, Validate(p));
  const MatmulGeometry& g = prepared->geometry;

  core::StepPlan plan;
  plan.results.push_back(g.d);
  SetMemory(step, {p.a.bytes(), p.b.bytes(), BytesOf(p.c), BytesOf(p.bias), BytesOf(p.a_scale), BytesOf(p.b_scale)},
            plan);
  const double flops = 2.0 * static_cast<double>(g.batch) * static_cast<double>(g.m) * static_cast<double>(g.n) *
                       static_cast<double>(g.k);
  const bool small = IsSmall(flops, plan.memory.naive);
  KERND_ASSIGN_OR_RETURN(prepared->choice,
                         ChooseMeasured(step.kernel, FindTuned(measured, p, g), [&](const KernelRequest& wanted) {
                           return ChooseMatmul(p, g, wanted, small ? 1 : threads);
                         }));
  prepared->inline_run = small && prepared->choice.reason != ChoiceReason::kForced;
  plan.memory.workspace = prepared->choice.workspace_bytes;
  plan.kernel = prepared->choice.name;
  plan.reason = prepared->choice.reason;
  plan.numerics = p.numerics;
  plan.prepared = std::move(prepared);
  return plan;
}

absl::StatusOr<core::StepPlan> Plan(const core::AttentionStep& step, int threads, const TunedChoices* measured) {
  const AttentionProblem& p = step.problem;
  auto prepared = std::make_unique<PreparedAttention>();
  KERND_ASSIGN_OR_RETURN(prepared->geometry, Validate(p));
  const AttentionGeometry& g = prepared->geometry;

  core::StepPlan plan;
  plan.results.push_back(g.o_spec);
  if (g.lse_spec) plan.results.push_back(*g.lse_spec);
  SetMemory(step, {p.q.bytes(), p.k.bytes(), p.v.bytes(), BytesOf(p.mask), BytesOf(p.bias)}, plan);
  const std::int64_t moved = plan.memory.naive;
  plan.memory.naive = NaiveBytes(p, g);
  // A score costs its exponential too, and a row its bookkeeping, whatever the head dimensions are.
  double scores = 0, rows = 0;
  for (const AttentionSequence& s : g.sequences) {
    scores += static_cast<double>(s.q_length) * static_cast<double>(s.kv_length);
    rows += static_cast<double>(s.q_rows);
  }
  const double flops =
      static_cast<double>(g.q_heads) *
      (scores * (2.0 * static_cast<double>(g.head_dim + g.v_head_dim) + kFlopsOfExp) + rows * kFlopsOfRow);
  const bool small = IsSmall(flops, moved);
  // A row's bits depend on the kernel, and what was measured may name another one for another batch.
  if (step.numerics == Numerics::kBatchInvariant) measured = nullptr;
  KERND_ASSIGN_OR_RETURN(prepared->choice,
                         ChooseMeasured(step.kernel, FindTuned(measured, p, g), [&](const KernelRequest& wanted) {
                           return ChooseAttention(p, g, wanted, small ? 1 : threads);
                         }));
  prepared->inline_run = small && prepared->choice.reason != ChoiceReason::kForced;
  plan.memory.workspace = prepared->choice.workspace_bytes;
  plan.kernel = prepared->choice.name;
  plan.reason = prepared->choice.reason;
  plan.numerics = step.numerics;
  plan.prepared = std::move(prepared);
  return plan;
}

}  // namespace kernd::cpu
