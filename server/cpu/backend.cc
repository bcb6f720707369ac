#include "server/cpu/backend.h"

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernd/kernels/args.h"
#include "kernd/kernels/error.h"
#include "server/cpu/attention.h"
#include "server/cpu/checks.h"
#include "server/cpu/isa.h"
#include "server/cpu/matmul.h"
#include "server/cpu/tensor_memory.h"

namespace kernd::cpu {
namespace {

constexpr std::string_view kDeviceId = "cpu";
constexpr std::size_t kAlignment = 64;

// Below both, one thread is done sooner than a worker is awake: about 20 us of arithmetic.
constexpr double kInlineFlops = 1e6;
constexpr std::int64_t kInlineBytes = 256 << 10;
constexpr double kFlopsOfExp = 20, kFlopsOfRow = 100;

struct Prepared : core::PreparedStep {
  bool inline_run = false;
};

struct PreparedMatmul final : Prepared {
  MatmulGeometry geometry;
  MatmulChoice choice;
};

struct PreparedAttention final : Prepared {
  AttentionGeometry geometry;
  AttentionChoice choice;
};

// Memory for `bytes`, aligned. Null data where there is none to be had, or none needed.
core::HostBuffer Allocate(std::int64_t bytes) {
  if (bytes == 0) return {};
  const std::size_t rounded = (static_cast<std::size_t>(bytes) + kAlignment - 1) / kAlignment * kAlignment;
  auto* data = static_cast<std::byte*>(std::aligned_alloc(kAlignment, rounded));
  if (data == nullptr) return {};
  return core::HostBuffer(
      data, bytes, [](std::byte* p, void*) { std::free(p); }, nullptr);
}

absl::Status NoMemory(std::string_view what, std::int64_t bytes) {
  return WithDetail(
      absl::ResourceExhaustedError(absl::StrCat("the system has no ", bytes, " bytes for the ", std::string(what))),
      {.reason = std::string(reason::kMemoryFull), .retry_after = absl::Milliseconds(50)});
}

bool IsAligned(const std::byte* data) {
  return reinterpret_cast<std::uintptr_t>(data) % sizeof(double) == 0;
}

// An operand in one run at an address that any element may have is used where it is. Others are put together, and what
// they came in is let go.
absl::StatusOr<const void*> Data(core::Operand& operand, core::Call& call, std::vector<core::HostBuffer>& gathered) {
  if (operand.device != nullptr) return operand.device;
  if (operand.runs.empty()) return nullptr;
  if (operand.runs.size() == 1 && IsAligned(operand.runs.front().data())) return operand.runs.front().data();
  const std::int64_t bytes = operand.bytes();
  core::HostBuffer buffer = Allocate(bytes);
  if (buffer.size() != bytes) return NoMemory("operands", bytes);
  std::byte* to = buffer.data();
  for (const absl::Span<const std::byte> run : operand.runs) to = std::copy(run.begin(), run.end(), to);
  call.copied_bytes += bytes;
  operand.Release();
  gathered.push_back(std::move(buffer));
  return gathered.back().data();
}

std::int64_t BytesOf(const std::optional<TensorSpec>& spec) {
  return spec ? spec->bytes() : 0;
}
std::int64_t BytesOf(const std::optional<ScaleSpec>& scale) {
  return scale ? scale->spec.bytes() : 0;
}

// What `step` takes, whose operands have these bytes; `naive` as where the operation has no more to it.
template <typename Step, std::size_t kOperands>
void SetMemory(const Step& step, const std::int64_t (&operand_bytes)[kOperands], core::StepPlan& plan) {
  const auto operands = step.operands();
  static_assert(std::tuple_size_v<decltype(operands)> == kOperands);
  plan.memory.naive = 0;
  for (std::size_t i = 0; i < kOperands; ++i) {
    plan.memory.naive += operand_bytes[i];
    if (!operands[i]->in_place()) plan.memory.inputs += operand_bytes[i];
  }
  for (std::size_t i = 0; i < plan.results.size(); ++i) {
    plan.memory.naive += plan.results[i].bytes();
    if (step.places[i].in_reply()) plan.memory.outputs += plan.results[i].bytes();
  }
}

// Of all that is read and written, wherever it is.
bool IsSmall(double flops, std::int64_t bytes) {
  return flops <= kInlineFlops && bytes <= kInlineBytes;
}

// The value of a line of /proc/cpuinfo; empty where it has none.
std::string CpuInfo(std::string_view key) {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with(key) && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "";
}

// Of the features that matter to these kernels and to oneDNN, those that this machine has.
std::vector<std::string> CpuFeatures() {
  std::istringstream flags(CpuInfo("flags") + " " + CpuInfo("Features"));  // x86, arm64
  std::vector<std::string> found;
  for (std::string flag; flags >> flag;) {
    for (const std::string_view known :
         {"sse4_2", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "avx512_fp16",
          "amx_tile", "amx_bf16", "amx_int8", "asimd", "sve"}) {
      if (flag == known) found.push_back(flag);
    }
  }
  return found;
}

// Of this process, now.
std::int64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  std::int64_t total = 0, resident = 0;
  statm >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

// The memory of a step, and where its operands are, in the order of `step.operands()`.
struct Staged {
  core::HostBuffer workspace;
  std::vector<core::HostBuffer> gathered;
  std::array<const void*, 6> operands = {};
};

class CpuBackend final : public core::Backend {
 public:
  explicit CpuBackend(const BackendOptions& options) : options_(options) {}

  std::string_view name() const override { return "cpu"; }
  std::string_view device_id() const override { return kDeviceId; }
  std::vector<core::DeviceDescription> Devices() const override;
  std::vector<VariantInfo> Variants() const override;
  std::vector<core::DtypeSupport> Support() const override;
  absl::StatusOr<core::StepPlan> PlanStep(const core::Step& step) const override {
    return std::visit([this](const auto& s) { return PlanOf(s); }, step);
  }
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
  absl::StatusOr<core::StepPlan> PlanOf(const core::MatmulStep& step) const;
  absl::StatusOr<core::StepPlan> PlanOf(const core::AttentionStep& step) const;
  absl::Status RunProgram(core::Call& call) const;
  absl::Status RunStep(core::MatmulStep& step, const core::StepPlan& plan, core::Call& call) const;
  absl::Status RunStep(core::AttentionStep& step, const core::StepPlan& plan, core::Call& call) const;
  // With --debug-checks, once a step's kernel has ended.
  template <typename Step>
  absl::Status Check(const Step& step, const Staged& staged, absl::Span<const char* const> result_names,
                     const core::StepPlan& plan, core::Call& call) const;

  const BackendOptions options_;
};

absl::StatusOr<core::StepPlan> CpuBackend::PlanOf(const core::MatmulStep& step) const {
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
  KERND_ASSIGN_OR_RETURN(prepared->choice, ChooseMatmul(p, g, step.kernel, small ? 1 : options_.threads));
  prepared->inline_run = small && prepared->choice.reason != ChoiceReason::kForced;
  plan.memory.workspace = prepared->choice.workspace_bytes;
  plan.kernel = prepared->choice.name;
  plan.reason = prepared->choice.reason;
  plan.numerics = p.numerics;
  plan.prepared = std::move(prepared);
  return plan;
}

absl::StatusOr<core::StepPlan> CpuBackend::PlanOf(const core::AttentionStep& step) const {
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
  KERND_ASSIGN_OR_RETURN(prepared->choice, ChooseAttention(p, g, step.kernel, small ? 1 : options_.threads));
  prepared->inline_run = small && prepared->choice.reason != ChoiceReason::kForced;
  plan.memory.workspace = prepared->choice.workspace_bytes;
  plan.kernel = prepared->choice.name;
  plan.reason = prepared->choice.reason;
  plan.numerics = step.numerics;
  plan.prepared = std::move(prepared);
  return plan;
}

absl::Status CpuBackend::RunProgram(core::Call& call) const {
  for (std::size_t i = 0; i < call.program.steps.size(); ++i) {
    const core::StepPlan& plan = call.plan.steps[i];
    KERND_RETURN_IF_ERROR(std::visit([&](auto& step) { return RunStep(step, plan, call); }, call.program.steps[i]));
    KERND_RETURN_IF_ERROR(call.CheckWanted());  // a stopped kernel has left its results unfinished
  }
  return absl::OkStatus();
}

// Appends a buffer for each result of `plan` to the call's.
template <typename Step>
absl::StatusOr<Staged> StageIn(Step& step, const core::StepPlan& plan, bool guarded, core::Call& call) {
  const core::StageTimer timer(call.stages, core::Stage::kStageIn);
  Staged staged;
  std::size_t i = 0;
  for (core::Operand* operand : step.operands()) {
    KERND_ASSIGN_OR_RETURN(staged.operands[i++], Data(*operand, call, staged.gathered));
  }
  for (const TensorSpec& result : plan.results) {
    if (core::TensorMemory* kept = call.KeptAt(call.results.size())) {
      call.results.emplace_back(kept->data(), result.bytes(), nullptr, nullptr);
      continue;
    }
    if (std::byte* const shared = call.SharedAt(call.results.size())) {
      call.results.emplace_back(shared, result.bytes(), nullptr, nullptr);
      continue;
    }
    core::HostBuffer buffer = guarded ? AllocateGuarded(result.bytes()) : Allocate(result.bytes());
    if (buffer.size() != result.bytes()) return NoMemory("results", result.bytes());
    call.results.push_back(std::move(buffer));
  }
  staged.workspace = Allocate(plan.memory.workspace);
  if (staged.workspace.size() != plan.memory.workspace) return NoMemory("workspace", plan.memory.workspace);
  return staged;
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

std::vector<core::DeviceDescription> CpuBackend::Devices() const {
  core::DeviceDescription device;
  device.uuid = std::string(kDeviceId);
  device.name = CpuInfo("model name");
  device.tier = core::DeviceDescription::Tier::kCpu;
  device.processors = options_.threads;
  device.memory_total = options_.memory_total;
  device.hardware_has = CpuFeatures();
  for (const Isa isa : AvailableIsas()) device.build_has.emplace_back(Name(isa));
  device.kernels_use = {std::string(Name(BestIsa()))};
  return {device};
}

std::vector<VariantInfo> CpuBackend::Variants() const {
  std::vector<VariantInfo> variants = MatmulVariants();
  for (VariantInfo& variant : AttentionVariants()) variants.push_back(std::move(variant));
  return variants;
}

std::vector<core::DtypeSupport> CpuBackend::Support() const {
  constexpr DataType kOperands[] = {DataType::kF16, DataType::kBF16,   DataType::kF32,   DataType::kF64,
                                    DataType::kI8,  DataType::kF8E4M3, DataType::kF8E5M2};
  std::vector<core::DtypeSupport> rows;
  for (const OpKind op : {OpKind::kMatmul, OpKind::kAttention}) {
    for (const DataType dtype : kOperands) {
      bool found = false;
      for (const VariantInfo& variant : Variants()) {
        found = found || (variant.op == op &&
                          std::find(variant.dtypes.begin(), variant.dtypes.end(), dtype) != variant.dtypes.end());
      }
      rows.push_back(
          {op, dtype, found ? "" : absl::StrCat(std::string(Name(op)), " has no rule for ", std::string(Name(dtype)))});
    }
  }
  return rows;
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
