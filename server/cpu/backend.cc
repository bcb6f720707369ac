#include "server/cpu/backend.h"

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernd/kernels/args.h"
#include "kernd/kernels/error.h"
#include "server/cpu/checks.h"
#include "server/cpu/facts.h"
#include "server/cpu/plan.h"
#include "server/cpu/staging.h"
#include "server/cpu/tensor_memory.h"

namespace kernd::cpu {
namespace {

// Of this process, now.
std::int64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  std::int64_t total = 0, resident = 0;
  statm >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

class CpuBackend final : public core::Backend {
 public:
  explicit CpuBackend(const BackendOptions& options) : options_(options) {}

  std::string_view name() const override { return "cpu"; }
  std::string_view device_id() const override { return kDeviceId; }
  std::vector<core::DeviceDescription> Devices() const override {
    return {Describe(options_.threads, options_.memory_total)};
  }
  std::vector<VariantInfo> Variants() const override { return cpu::Variants(); }
  std::vector<core::DtypeSupport> Support() const override { return cpu::Support(); }
  absl::StatusOr<core::StepPlan> PlanStep(const core::Step& step) const override {
    const std::shared_ptr<const TunedChoices> measured = tuned().Read();
    return std::visit([&](const auto& s) { return Plan(s, options_.threads, measured.get()); }, step);
  }
  TuningVersion TuningVersionFor(std::string_view build) const override { return VersionOf(options_.threads, build); }
  absl::Status Prewarm(const Progress& progress) override;
  int Executors() const override { return 1; }
  bool RunsInline(const core::Plan& plan) const override {
    for (const core::StepPlan& step : plan.steps) {
      if (!static_cast<const Prepared&>(*step.prepared).inline_run) return false;
    }
    return true;
  }
  void ExecuteInline(core::Call& call) override { call.Finish(RunProgram(call)); }
  void Execute(int /*executor*/, absl::Span<const core::CallPtr> batch) override {
    for (const core::CallPtr& call : batch) call->Finish(RunProgram(*call));
  }
  std::int64_t Trim() override;
  absl::StatusOr<std::unique_ptr<core::TensorMemory>> AllocateTensor(std::int64_t bytes) override {
    return cpu::AllocateTensor(bytes);
  }

 private:
  absl::Status RunProgram(core::Call& call) const;
  absl::Status RunStep(core::MatmulStep& step, const core::StepPlan& plan, core::Call& call) const;
  absl::Status RunStep(core::AttentionStep& step, const core::StepPlan& plan, core::Call& call) const;
  // With --debug-checks, once a step's kernel has ended.
  template <typename Step>
  absl::Status Check(const Step& step, const Staged& staged, absl::Span<const char* const> result_names,
                     const core::StepPlan& plan, core::Call& call) const;

  const BackendOptions options_;
};

absl::Status CpuBackend::RunProgram(core::Call& call) const {
  for (std::size_t i = 0; i < call.program.steps.size(); ++i) {
    const core::StepPlan& plan = call.plan.steps[i];
    KERND_RETURN_IF_ERROR(std::visit([&](auto& step) { return RunStep(step, plan, call); }, call.program.steps[i]));
    KERND_RETURN_IF_ERROR(call.CheckWanted());  // a stopped kernel has left its results unfinished
  }
  return absl::OkStatus();
}

absl::Status CpuBackend::RunStep(core::MatmulStep& step, const core::StepPlan& plan, core::Call& call) const {
  const auto& prepared = static_cast<const PreparedMatmul&>(*plan.prepared);
  const std::size_t first = call.results.size();
  KERND_ASSIGN_OR_RETURN(const Staged staged, StageIn(step, plan, options_.debug_checks, call));
  const MatmulArgs args = {.a = staged.operands[0],
                           .b = staged.operands[1],
                           .c = staged.operands[2],
                           .bias = staged.operands[3],
                           .a_scale = static_cast<const float*>(staged.operands[4]),
                           .b_scale = static_cast<const float*>(staged.operands[5]),
                           .d = call.results[first].data()};
  core::StageTimer kernel(call.stages, core::Stage::kKernel);
  KERND_RETURN_IF_ERROR(
      RunMatmul(prepared.choice, step.problem, prepared.geometry, args, staged.workspace.data(), &call.abandoned()));
  kernel.Stop();
  return Check(step, staged, core::kMatmulResults, plan, call);
}

absl::Status CpuBackend::RunStep(core::AttentionStep& step, const core::StepPlan& plan, core::Call& call) const {
  const auto& prepared = static_cast<const PreparedAttention&>(*plan.prepared);
  const std::size_t first = call.results.size();
  KERND_ASSIGN_OR_RETURN(const Staged staged, StageIn(step, plan, options_.debug_checks, call));
  const AttentionArgs args = {
      .q = staged.operands[0],
      .k = staged.operands[1],
      .v = staged.operands[2],
      .mask = staged.operands[3],
      .bias = staged.operands[4],
      .o = call.results[first].data(),
      .lse = step.problem.want_lse ? reinterpret_cast<float*>(call.results[first + 1].data()) : nullptr};
  core::StageTimer kernel(call.stages, core::Stage::kKernel);
  RunAttention(prepared.choice, step.problem, prepared.geometry, args, staged.workspace.data(), &call.abandoned());
  kernel.Stop();
  return Check(step, staged, core::kAttentionResults, plan, call);
}

template <typename Step>
absl::Status CpuBackend::Check(const Step& step, const Staged& staged, absl::Span<const char* const> result_names,
                               const core::StepPlan& plan, core::Call& call) const {
  // A kernel that was stopped has left its results unfinished.
  if (!options_.debug_checks || call.abandoned()) return absl::OkStatus();
  const auto index = &plan - call.plan.steps.data();
  const std::string prefix = call.plan.steps.size() > 1 ? absl::StrCat("steps[", index, "].") : std::string();
  return Judge(OperandSpecs(step), staged.operands, plan.results, result_names, prefix, call);
}

std::int64_t CpuBackend::Trim() {
  const std::int64_t before = ResidentBytes();
#ifdef __GLIBC__
  malloc_trim(0);
#endif
  return std::max<std::int64_t>(before - ResidentBytes(), 0);
}

// Runs every variant once on a small problem: code pages, the thread team and oneDNN's generated kernels are then
// there.
absl::Status CpuBackend::Prewarm(const Progress& progress) {
  const std::vector<VariantInfo> variants = Variants();
  for (std::size_t i = 0; i < variants.size(); ++i) {
    const VariantInfo& variant = variants[i];
    progress(static_cast<int>(i), static_cast<int>(variants.size()), variant.name);
    const std::vector<std::byte> zeros(64 * 64 * 8);
    const core::Operand operand{.runs = {zeros}};
    core::Program program;
    if (variant.op == OpKind::kMatmul) {
      core::MatmulStep step;
      step.problem.a = step.problem.b = {.dtype = variant.dtypes.front(), .shape = {64, 64}};
      step.kernel.name = variant.name;
      step.a = step.b = operand;
      program.steps.emplace_back(std::move(step));
    } else {
      core::AttentionStep step;
      step.problem.q = step.problem.k = step.problem.v = {.dtype = variant.dtypes.front(), .shape = {1, 1, 64, 64}};
      step.kernel.name = variant.name;
      step.q = step.k = step.v = operand;
      program.steps.emplace_back(std::move(step));
    }
    core::Call call(std::move(program), absl::InfiniteFuture(), 0, [](core::Call&) {});
    KERND_ASSIGN_OR_RETURN(core::StepPlan plan, PlanStep(call.program.steps.front()));
    call.plan.steps.push_back(std::move(plan));
    KERND_RETURN_IF_ERROR(RunProgram(call));
  }
  progress(static_cast<int>(variants.size()), static_cast<int>(variants.size()), "");
  return absl::OkStatus();
}

}  // namespace

std::unique_ptr<core::Backend> MakeBackend(const BackendOptions& options) {
  return std::make_unique<CpuBackend>(options);
}

}  // namespace kernd::cpu
