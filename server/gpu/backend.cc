#include "server/gpu/backend.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernd/kernels/error.h"
#include "server/gpu/device_pool.h"
#include "server/gpu/executor.h"
#include "server/gpu/pinned_pool.h"
#include "server/gpu/prepared.h"
#include "server/gpu/resident_pool.h"

namespace kernd::gpu {
namespace {

constexpr std::int64_t kAbsent = -1;      // size of an operand that is not there
constexpr std::int64_t kSmallest = 4096;  // limit of a pool: 0 would be none
constexpr std::int64_t kTooMuch = std::numeric_limits<std::int64_t>::max();

std::int64_t BytesOf(const std::optional<TensorSpec>& spec) {
  return spec ? spec->bytes() : kAbsent;
}
std::int64_t BytesOf(const std::optional<ScaleSpec>& scale) {
  return scale ? scale->spec.bytes() : kAbsent;
}

// Of these bytes, those that have a place in the call's block: not what stays where it is in a session.
template <typename Step, std::size_t kOperands>
std::array<std::int64_t, kOperands> InBlock(const Step& step, std::array<std::int64_t, kOperands> operand_bytes) {
  const auto operands = step.operands();
  static_assert(std::tuple_size_v<decltype(operands)> == kOperands);
  for (std::size_t i = 0; i < kOperands; ++i) {
    if (operands[i]->in_place()) operand_bytes[i] = kAbsent;
  }
  return operand_bytes;
}

template <typename Step>
absl::InlinedVector<std::int64_t, 2> ResultsInBlock(const Step& step, const core::StepPlan& plan) {
  absl::InlinedVector<std::int64_t, 2> bytes;
  for (std::size_t i = 0; i < plan.results.size(); ++i) {
    bytes.push_back(step.places[i].resident ? kAbsent : plan.results[i].bytes());
  }
  return bytes;
}

// Of the textbook algorithm: those of the tensors, wherever they are.
std::int64_t NaiveBytes(const MatmulProblem& p, const MatmulGeometry& g) {
  std::int64_t sum = 0;
  for (const std::int64_t bytes :
       {p.a.bytes(), p.b.bytes(), BytesOf(p.c), BytesOf(p.bias), BytesOf(p.a_scale), BytesOf(p.b_scale), g.d.bytes()}) {
    sum = CheckedAdd(sum, std::max<std::int64_t>(bytes, 0)).value_or(kTooMuch);
  }
  return sum;
}

// The bytes of a plan are those of its block; what cannot be laid out at all can never fit.
void SetMemory(const std::optional<DeviceLayout>& layout, std::int64_t naive,
               absl::Span<const core::ResultPlace> places, core::StepPlan& plan) {
  plan.memory.naive = naive;
  if (!layout) {
    plan.memory.workspace = kTooMuch;
    return;
  }
  plan.memory.inputs = layout->input_bytes;
  plan.memory.outputs = layout->output_bytes;
  plan.memory.workspace = layout->workspace_bytes;
  for (std::size_t i = 0; i < plan.results.size(); ++i) {
    if (places[i].in_reply()) plan.memory.pinned += PinnedPool::Rounded(plan.results[i].bytes());
  }
}

// Negative: past 2^63, and so the larger.
std::int64_t Larger(std::int64_t a, std::int64_t b) {
  return a < 0 || b < 0 ? -1 : std::max(a, b);
}

// What lives elsewhere is not looked at.
CheckedTensors CheckedOf(const std::vector<core::NamedSpec>& operands, absl::Span<const TensorSpec> results,
                         absl::Span<const char* const> result_names, const DeviceLayout& layout) {
  CheckedTensors checked;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    if (!operands[i].spec || layout.operand_at[i] == kAbsent) continue;
    const TensorSpec& spec = *operands[i].spec;
    checked.operands.push_back({operands[i].name, spec.dtype, spec.elements(), layout.operand_at[i]});
  }
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (layout.result_at[i] == kAbsent) continue;
    checked.results.push_back({result_names[i], results[i].dtype, results[i].elements(), layout.result_at[i]});
  }
  return checked;
}

absl::Status DeviceLost() {
  return WithDetail(absl::UnavailableError("the GPU is lost to this daemon, which is about to end; try again"),
                    {.reason = std::string(reason::kDeviceLost), .retry_after = absl::Seconds(1)});
}

class GpuBackend final : public core::Backend {
 public:
  GpuBackend(std::shared_ptr<Driver> driver, const KernelTables& kernels, const BackendOptions& options)
      : options_(options),
        driver_(std::move(driver)),
        kernels_(kernels),
        guarded_(options.debug_checks && kernels.scan != nullptr ? Guarded::kYes : Guarded::kNo) {}

  absl::Status Build();

  std::string_view name() const override { return "cuda"; }
  std::string_view device_id() const override { return driver_->device().uuid; }
  std::vector<core::DeviceDescription> Devices() const override;
  std::vector<VariantInfo> Variants() const override { return VariantsFor(driver_->device(), kernels_); }
  std::vector<core::DtypeSupport> Support() const override { return SupportOf(driver_->device(), kernels_); }
  absl::StatusOr<core::StepPlan> PlanStep(const core::Step& step) const override {
    KERND_RETURN_IF_ERROR(driver_->Bind());  // a library may want the device to answer
    return std::visit([this](const auto& s) { return PlanOf(s); }, step);
  }
  TuningVersion TuningVersionFor(std::string_view build) const override {
    return TuningVersionOf(driver_->device(), build);
  }
  absl::Status Prewarm(const Progress& progress) override;
  int Executors() const override { return static_cast<int>(executors_.size()); }
  // An I/O thread must not wait for the device.
  bool RunsInline(const core::Plan&) const override { return false; }
  void ExecuteInline(core::Call& call) override { Run(0, call); }
  void Execute(int executor, absl::Span<const core::CallPtr> batch) override {
    for (const core::CallPtr& call : batch) Run(executor, *call);
  }
  std::int64_t Trim() override { return memory_->Trim().value_or(0) + resident_->memory().Trim().value_or(0); }
  std::int64_t OperandAlignment() const override { return kDeviceAlignment; }
  bool UsesHostMemory() const override { return false; }
  absl::StatusOr<std::shared_ptr<void>> RegisterHost(absl::Span<std::byte> memory) override;
  absl::StatusOr<std::unique_ptr<core::TensorMemory>> AllocateTensor(std::int64_t bytes) override {
    return resident_->Allocate(bytes);
  }
  std::vector<core::PoolUse> Pools() const override;

 private:
  absl::StatusOr<core::StepPlan> PlanOf(const core::MatmulStep& step) const;
  absl::StatusOr<core::StepPlan> PlanOf(const core::AttentionStep& step) const;
  void Run(int executor, core::Call& call);
  template <typename Variant>
  absl::Status WarmUp(const Variant& variant);

  const BackendOptions options_;
  const std::shared_ptr<Driver> driver_;
  const KernelTables kernels_;
  const Guarded guarded_;
  std::unique_ptr<DevicePool> memory_;
  std::unique_ptr<PinnedPool> pinned_;
  std::unique_ptr<const Nvml> nvml_;  // null: there is none
  std::unique_ptr<ResidentPool> resident_;
  std::vector<std::unique_ptr<Executor>> executors_;
  std::atomic<bool> lost_ = false;
};

absl::Status GpuBackend::Build() {
  KERND_RETURN_IF_ERROR(driver_->Bind());
  KERND_ASSIGN_OR_RETURN(memory_, DevicePool::Create(*driver_, options_.memory_limit, options_.primed_bytes));
  KERND_ASSIGN_OR_RETURN(pinned_, PinnedPool::Create(*driver_, options_.pinned_bytes));
  KERND_ASSIGN_OR_RETURN(
      resident_,
      ResidentPool::Create(*driver_, *pinned_, std::max(options_.resident_limit, kSmallest), options_.chunk_bytes));
  memory_->ShareWith(resident_->memory());
  resident_->memory().ShareWith(*memory_);
  const ExecutorEnvironment environment = {.driver = *driver_,
                                           .memory = *memory_,
                                           .pinned = *pinned_,
                                           .spin = options_.spin,
                                           .chunk_bytes = options_.chunk_bytes,
                                           .scan = options_.debug_checks ? kernels_.scan : nullptr};
  for (int i = 0; i < options_.executors; ++i) {
    KERND_ASSIGN_OR_RETURN(std::unique_ptr<Executor> executor, Executor::Create(environment));
    executors_.push_back(std::move(executor));
  }
  if (absl::StatusOr<std::unique_ptr<Nvml>> nvml = Nvml::Open(options_.nvml_library); nvml.ok()) {
    nvml_ = *std::move(nvml);
  }
  return absl::OkStatus();
}

std::vector<core::DeviceDescription> GpuBackend::Devices() const {
  core::DeviceDescription device = Describe(driver_->device(), kernels_);
  if (nvml_ != nullptr) Add(nvml_->Read(driver_->device().pci), device);
  return {std::move(device)};
}

absl::StatusOr<std::shared_ptr<void>> GpuBackend::RegisterHost(absl::Span<std::byte> memory) {
  KERND_RETURN_IF_ERROR(driver_->Bind());
  const absl::Status status = driver_->RegisterHost(memory.data(), static_cast<std::int64_t>(memory.size()));
  if (absl::IsResourceExhausted(status)) {
    return WithDetail(status, {.reason = std::string(reason::kMemoryFull), .retry_after = absl::Seconds(1)});
  }
  KERND_RETURN_IF_ERROR(status);
  return std::shared_ptr<void>(memory.data(), [driver = driver_](void* data) {
    driver->Bind().IgnoreError();  // any thread may be the last to let go
    driver->UnregisterHost(static_cast<std::byte*>(data));
  });
}

absl::StatusOr<core::StepPlan> GpuBackend::PlanOf(const core::MatmulStep& step) const {
  const MatmulProblem& p = step.problem;
  const DeviceInfo& device = driver_->device();
  auto prepared = std::make_unique<PreparedMatmul>();
  KERND_ASSIGN_OR_RETURN(prepared->geometry, Validate(p));
  const MatmulGeometry& g = prepared->geometry;
  KERND_ASSIGN_OR_RETURN(const Choice<MatmulVariant> choice,
                         Choose(kernels_.matmul, p, g, step.kernel, device, tuned().Read().get()));
  prepared->variant = choice.variant;

  core::StepPlan plan;
  plan.results.push_back(g.d);
  std::int64_t workspace = g.d.elements() == 0 ? 0 : choice.variant->workspace_bytes(p, g, device);
  prepared->slices = SlicesOf(p, g, *choice.variant, device);
  for (const MatmulSlice& slice : prepared->slices) {
    workspace = Larger(workspace, choice.variant->workspace_bytes(slice.problem, slice.geometry, device));
  }
  const std::optional<DeviceLayout> layout = LayOut(
      InBlock<core::MatmulStep, 6>(
          step, {p.a.bytes(), p.b.bytes(), BytesOf(p.c), BytesOf(p.bias), BytesOf(p.a_scale), BytesOf(p.b_scale)}),
      0, ResultsInBlock(step, plan), workspace, guarded_);
  if (layout) prepared->layout = *layout;
  if (layout && guarded_ == Guarded::kYes) {
    prepared->checked = CheckedOf(OperandSpecs(step), plan.results, core::kMatmulResults, *layout);
  }
  SetMemory(layout, NaiveBytes(p, g), step.places, plan);
  plan.kernel = choice.variant->info.name;
  plan.tile = choice.variant->info.tile;
  plan.reason = choice.reason;
  plan.numerics = p.numerics;
  plan.prepared = std::move(prepared);
  return plan;
}

absl::StatusOr<core::StepPlan> GpuBackend::PlanOf(const core::AttentionStep& step) const {
  const AttentionProblem& p = step.problem;
  const DeviceInfo& device = driver_->device();
  KERND_ASSIGN_OR_RETURN(AttentionGeometry geometry, Validate(p));
  auto prepared = std::make_unique<PreparedAttention>(p, std::move(geometry));
  const AttentionGeometry& g = prepared->geometry;
  // Rows depend on the variant alone, but what was measured may name another one for another batch.
  const std::shared_ptr<const TunedChoices> measured =
      step.numerics == Numerics::kBatchInvariant ? nullptr : tuned().Read();
  KERND_ASSIGN_OR_RETURN(const Choice<AttentionVariant> choice,
                         Choose(kernels_.attention, p, g, step.kernel, device, measured.get()));
  prepared->variant = choice.variant;

  core::StepPlan plan;
  plan.results.push_back(g.o_spec);
  if (g.lse_spec) plan.results.push_back(*g.lse_spec);
  const bool empty = g.o_spec.elements() == 0 && (!g.lse_spec || g.lse_spec->elements() == 0);
  std::int64_t workspace = empty ? 0 : choice.variant->workspace_bytes(p, g, device);
  prepared->slices = SlicesOf(p, g, *choice.variant, device);
  for (const AttentionSlice& slice : prepared->slices) {
    workspace = Larger(workspace, choice.variant->workspace_bytes(p, slice.geometry, device));
  }
  const std::optional<DeviceLayout> layout = LayOut(
      InBlock<core::AttentionStep, 5>(step, {p.q.bytes(), p.k.bytes(), p.v.bytes(), BytesOf(p.mask), BytesOf(p.bias)}),
      prepared->tables.bytes(), ResultsInBlock(step, plan), workspace, guarded_);
  if (layout) prepared->layout = *layout;
  if (layout && guarded_ == Guarded::kYes) {
    prepared->checked = CheckedOf(OperandSpecs(step), plan.results, core::kAttentionResults, *layout);
  }
  SetMemory(layout, NaiveBytes(p, g), step.places, plan);
  plan.kernel = choice.variant->info.name;
  plan.tile = choice.variant->info.tile;
  plan.reason = choice.reason;
  plan.numerics = step.numerics;
  plan.prepared = std::move(prepared);
  return plan;
}

// Of all calls that a lost device takes with it, the one that noticed first says what happened.
void GpuBackend::Run(int executor, core::Call& call) {
  if (lost_) return call.Finish(DeviceLost());
  absl::Status status = executors_[static_cast<std::size_t>(executor)]->Run(call);
  if (absl::IsInternal(status)) {
    if (const absl::Status health = driver_->Health(); !health.ok()) {
      if (lost_.exchange(true)) {
        status = DeviceLost();
      } else {
        options_.on_lost(health);
      }
    }
  }
  call.Finish(std::move(status));
}

// One small problem through every executor: modules, handles, first-use allocations and page-locked memory are then
// there, on the streams that calls will use.
template <typename Variant>
absl::Status GpuBackend::WarmUp(const Variant& variant) {
  KERND_RETURN_IF_ERROR(variant.load(driver_->device()));
  if (variant.info.by_request) return absl::OkStatus();  // what nobody asks for shall not be able to stop the start
  const DataType dtype = variant.info.dtypes.front();
  const std::vector<std::byte> zeros(static_cast<std::size_t>(64 * 64 * ElementBytes(dtype)));
  const core::Operand operand{.runs = {zeros}};
  for (int i = 0; i < Executors(); ++i) {
    core::Program program;
    if constexpr (std::is_same_v<Variant, MatmulVariant>) {
      core::MatmulStep step;
      step.problem.a = step.problem.b = {.dtype = dtype, .shape = {64, 64}};
      step.kernel.name = variant.info.name;
      step.a = step.b = operand;
      program.steps.emplace_back(std::move(step));
    } else {
      core::AttentionStep step;
      step.problem.q = step.problem.k =
          step.problem.v = {.dtype = variant.info.dtypes.front(), .shape = {1, 1, 64, 64}};
      step.kernel.name = variant.info.name;
      step.q = step.k = step.v = operand;
      program.steps.emplace_back(std::move(step));
    }
    absl::StatusOr<core::StepPlan> plan = PlanStep(program.steps.front());
    if (absl::IsInvalidArgument(plan.status())) return absl::OkStatus();  // a variant that does not take this problem
    KERND_RETURN_IF_ERROR(plan.status());
    core::Call call(std::move(program), absl::InfiniteFuture(), 0, [](core::Call&) {});
    call.plan.steps.push_back(*std::move(plan));
    KERND_RETURN_IF_ERROR(executors_[static_cast<std::size_t>(i)]->Run(call));
  }
  return absl::OkStatus();
}

absl::Status GpuBackend::Prewarm(const Progress& progress) {
  KERND_RETURN_IF_ERROR(driver_->Bind());
  const int total = static_cast<int>(Variants().size());
  int done = 0;
  const auto warm_all = [&](auto rows) -> absl::Status {
    for (const auto& row : rows) {
      if (row.min_sm > driver_->device().sm) continue;
      progress(done++, total, row.info.name);
      if (const absl::Status status = WarmUp(row); !status.ok()) {
        return WithDetail(absl::Status(status.code(), absl::StrCat(row.info.name, ": ", status.message())),
                          DetailOf(status));
      }
    }
    return absl::OkStatus();
  };
  KERND_RETURN_IF_ERROR(warm_all(kernels_.matmul));
  KERND_RETURN_IF_ERROR(warm_all(kernels_.attention));
  progress(total, total, "");
  return absl::OkStatus();
}

std::vector<core::PoolUse> GpuBackend::Pools() const {
  const DevicePool::Use memory = memory_->use();
  const PinnedPool::Use pinned = pinned_->use();
  return {
      {.pool = "device",
       .used = memory.used,
       .peak = memory.peak,
       .reserved = memory_->reserved().value_or(0),
       .limit = memory_->limit()},
      {.pool = "pinned", .used = pinned.used, .peak = pinned.peak, .reserved = pinned.limit, .limit = pinned.limit}};
}

}  // namespace

absl::StatusOr<std::unique_ptr<core::Backend>> MakeBackend(std::shared_ptr<Driver> driver, const KernelTables& kernels,
                                                           const BackendOptions& options) {
  auto backend = std::make_unique<GpuBackend>(std::move(driver), kernels, options);
  KERND_RETURN_IF_ERROR(backend->Build());
  return backend;
}

}  // namespace kernd::gpu
