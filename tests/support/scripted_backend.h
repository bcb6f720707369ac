// A backend whose kernels take the times, and make the mistakes, that a test writes for them.
#pragma once

#include <atomic>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "kernels/reference/attention.h"
#include "kernels/reference/matmul.h"
#include "server/core/backend.h"

namespace kernd::testing {

struct ScriptedKernel {
  std::string name;
  // Of the run with this number, from 0, in microseconds.
  std::function<double(int run)> us = [](int) { return 100.0; };
  // Spoils the result of a run, as many F32 elements.
  std::function<void(int run, float* result, std::int64_t elements)> spoil = nullptr;
  std::function<absl::Status(int run)> end = [](int) { return absl::OkStatus(); };
  std::optional<Tile> tile;
  int runs = 0;
};

// F32 matmuls and attention, computed by the fp64 reference. The first kernel is the model's choice.
class ScriptedBackend final : public core::Backend {
 public:
  explicit ScriptedBackend(std::vector<ScriptedKernel> kernels) : kernels(std::move(kernels)) {}

  std::vector<ScriptedKernel> kernels;
  std::function<void(const ScriptedKernel& kernel)> before_run = [](const ScriptedKernel&) {};
  std::vector<std::string> order;  // of the runs, by kernel
  std::vector<int> priorities;

  std::string_view name() const override { return "scripted"; }
  std::string_view device_id() const override { return "scripted0"; }
  std::vector<core::DeviceDescription> Devices() const override { return {}; }
  std::vector<VariantInfo> Variants() const override {
    std::vector<VariantInfo> variants;
    for (const OpKind op : {OpKind::kMatmul, OpKind::kAttention}) {
      for (const ScriptedKernel& kernel : kernels) {
        variants.push_back({.name = kernel.name, .op = op, .dtypes = {DataType::kF32}, .tile = kernel.tile});
      }
    }
    return variants;
  }
  std::vector<core::DtypeSupport> Support() const override { return {}; }
  absl::StatusOr<core::StepPlan> PlanStep(const core::Step& step) const override {
    return std::visit([this](const auto& s) { return PlanOf(s); }, step);
  }
  absl::Status Prewarm(const Progress&) override { return absl::OkStatus(); }
  int Executors() const override { return 1; }
  bool RunsInline(const core::Plan&) const override { return false; }
  void ExecuteInline(core::Call&) override {}
  void Execute(int, absl::Span<const core::CallPtr> batch) override {
    for (const core::CallPtr& call : batch) call->Finish(Run(*call));
  }
  std::int64_t Trim() override { return 0; }

 private:
  struct Prepared final : core::PreparedStep {
    std::size_t kernel = 0;
  };

  static std::vector<TensorSpec> Results(const core::MatmulStep& step) { return {Validate(step.problem)->d}; }
  static std::vector<TensorSpec> Results(const core::AttentionStep& step) {
    const AttentionGeometry g = *Validate(step.problem);
    if (!g.lse_spec) return {g.o_spec};
    return {g.o_spec, *g.lse_spec};
  }

  template <typename S>
  absl::StatusOr<core::StepPlan> PlanOf(const S& step) const {
    const auto geometry = Validate(step.problem);
    if (!geometry.ok()) return geometry.status();
    auto prepared = std::make_unique<Prepared>();
    core::StepPlan plan;
    plan.reason = ChoiceReason::kModel;
    std::string name = step.kernel.name;
    std::optional<Tile> tile = step.kernel.tile;
    const auto measured = tuned().Read();
    const TunedChoice* const choice = FindTuned(measured.get(), step.problem, *geometry);
    if (name.empty() && !step.kernel.untuned && choice != nullptr) {
      name = choice->kernel;
      tile = choice->tile;
      plan.reason = ChoiceReason::kTuned;
    }
    while (prepared->kernel < kernels.size() && !name.empty() &&
           (kernels[prepared->kernel].name != name || (tile && kernels[prepared->kernel].tile != tile))) {
      ++prepared->kernel;
    }
    if (prepared->kernel == kernels.size()) return absl::InvalidArgumentError("no such kernel");
    plan.kernel = kernels[prepared->kernel].name;
    plan.tile = kernels[prepared->kernel].tile;
    for (const TensorSpec& result : Results(step)) {
      plan.results.push_back(result);
      plan.memory.outputs += result.bytes();
    }
    plan.prepared = std::move(prepared);
    return plan;
  }

  absl::Status Run(core::Call& call) {
    ScriptedKernel& kernel = kernels[static_cast<const Prepared&>(*call.plan.steps[0].prepared).kernel];
    before_run(kernel);
    if (call.abandoned()) return absl::CancelledError("abandoned");
    order.push_back(kernel.name);
    priorities.push_back(call.priority);
    const int run = kernel.runs++;
    if (absl::Status status = kernel.end(run); !status.ok()) return status;
    for (const TensorSpec& result : call.plan.steps[0].results) {
      auto* const data = static_cast<std::byte*>(std::malloc(static_cast<std::size_t>(result.bytes()) + 1));
      call.results.emplace_back(
          data, result.bytes(), [](std::byte* p, void*) { std::free(p); }, nullptr);
    }
    const auto at = [](const core::Operand& operand) -> const void* {
      return operand.runs.empty() ? nullptr : operand.runs.front().data();
    };
    if (const auto* const m = std::get_if<core::MatmulStep>(&call.program.steps[0])) {
      const MatmulArgs args = {.a = at(m->a), .b = at(m->b), .bias = at(m->bias), .d = call.results[0].data()};
      if (absl::Status status = reference::Matmul(m->problem, args); !status.ok()) return status;
    } else {
      const auto& a = std::get<core::AttentionStep>(call.program.steps[0]);
      AttentionArgs args = {.q = at(a.q), .k = at(a.k), .v = at(a.v), .o = call.results[0].data()};
      if (a.problem.want_lse) args.lse = reinterpret_cast<float*>(call.results[1].data());
      if (absl::Status status = reference::Attention(a.problem, args); !status.ok()) return status;
    }
    if (kernel.spoil) {
      kernel.spoil(run, reinterpret_cast<float*>(call.results[0].data()), call.results[0].size() / 4);
    }
    call.stages.Add(core::Stage::kKernel, absl::Microseconds(kernel.us(run)));
    return absl::OkStatus();
  }
};

}  // namespace kernd::testing
