#include "server/core/engine.h"

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernd/kernels/error.h"

namespace kernd::core {
namespace {

// How soon a refused call may try again: about the time in which a few calls end.
constexpr absl::Duration kRetryAfter = absl::Milliseconds(50);

constexpr int kLeaseWaits = 5000;  // of a millisecond each

std::map<std::string, std::string> MemoryMetadata(const MemoryUse& use, std::int64_t limit, std::int64_t used) {
  return {{"needed_bytes", absl::StrCat(use.peak())},     {"input_bytes", absl::StrCat(use.inputs)},
          {"output_bytes", absl::StrCat(use.outputs)},    {"workspace_bytes", absl::StrCat(use.workspace)},
          {"limit_bytes", absl::StrCat(limit)},           {"reserved_bytes", absl::StrCat(used)},
          {"available_bytes", absl::StrCat(limit - used)}};
}

// Adds up what the steps hold; false on overflow.
bool Accumulate(MemoryUse& total, const MemoryUse& step) {
  const auto add = [](std::int64_t& sum, std::int64_t bytes) {
    const std::optional<std::int64_t> next = CheckedAdd(sum, bytes);
    sum = next.value_or(sum);
    return next.has_value();
  };
  return add(total.inputs, step.inputs) && add(total.outputs, step.outputs) && add(total.workspace, step.workspace) &&
         add(total.pinned, step.pinned) && (add(total.naive, step.naive) || true);
}

bool PeakFits(const MemoryUse& use, std::int64_t limit) {
  const std::optional<std::int64_t> io = CheckedAdd(use.inputs, use.outputs);
  const std::optional<std::int64_t> peak = io ? CheckedAdd(*io, use.workspace) : std::nullopt;
  return peak && *peak <= limit;
}

}  // namespace

Engine::Engine(const Options& options, std::unique_ptr<Backend> backend)
    : options_(options),
      backend_(std::move(backend)),
      memory_(options.memory_limit),
      places_(options.max_queued_calls) {}

Engine::~Engine() {
  queue_.Close();
  for (std::thread& worker : workers_) worker.join();
  // Replies on their way to a socket still hold their calls; the budgets must outlive them.
  for (int i = 0; i < kLeaseWaits && (places_.used() != 0 || memory_.used() != 0); ++i) {
    absl::SleepFor(absl::Milliseconds(1));
  }
}

absl::Status Engine::Start(const Backend::Progress& progress) {
  KERND_RETURN_IF_ERROR(backend_->Prewarm(progress));
  for (int i = 0; i < backend_->Executors(); ++i) workers_.emplace_back([this, i] { Work(i); });
  ready_.store(true, std::memory_order_release);
  return absl::OkStatus();
}

absl::StatusOr<Plan> Engine::MakePlan(const Program& program) const {
  Plan plan;
  plan.steps.reserve(program.steps.size());
  bool countable = true;
  for (const Step& step : program.steps) {
    KERND_ASSIGN_OR_RETURN(StepPlan step_plan, backend_->PlanStep(step));
    countable = countable && Accumulate(plan.memory, step_plan.memory);
    plan.steps.push_back(std::move(step_plan));
  }
  plan.device = std::string(backend_->device_id());
  if (!countable || !PeakFits(plan.memory, options_.memory_limit)) {
    const std::string needed = countable && PeakFits(plan.memory, std::numeric_limits<std::int64_t>::max())
                                   ? absl::StrCat(plan.memory.peak(), " bytes")
                                   : std::string("more than 2^63 bytes");
    return WithDetail(
        absl::ResourceExhaustedError(absl::StrCat("the call needs ", needed, " and can never fit: the memory limit is ",
                                                  options_.memory_limit, " bytes")),
        {.reason = std::string(reason::kTooLarge),
         .metadata = {{"needed_bytes", needed}, {"limit_bytes", absl::StrCat(options_.memory_limit)}}});
  }
  if (plan.memory.outputs > options_.max_reply_bytes) {
    return WithDetail(
        absl::ResourceExhaustedError(absl::StrCat("the results are ", plan.memory.outputs,
                                                  " bytes and a reply holds at most ", options_.max_reply_bytes)),
        {.reason = std::string(reason::kTooLarge),
         .metadata = {{"output_bytes", absl::StrCat(plan.memory.outputs)},
                      {"limit_bytes", absl::StrCat(options_.max_reply_bytes)}}});
  }
  return plan;
}

absl::Status Engine::Admit(Call& call) {
  if (!places_.Reserve(1, call.place_)) {
    return WithDetail(
        absl::ResourceExhaustedError(absl::StrCat("all ", places_.limit(), " places for calls are taken; try again")),
        {.reason = std::string(reason::kQueueFull),
         .retry_after = kRetryAfter,
         .metadata = {{"limit_calls", absl::StrCat(places_.limit())}}});
  }
  if (!memory_.Reserve(call.plan.memory.peak(), call.memory_)) {
    const std::int64_t used = memory_.used();
    return WithDetail(absl::ResourceExhaustedError(absl::StrCat("the call needs ", call.plan.memory.peak(), " bytes; ",
                                                                memory_.limit() - used, " of ", memory_.limit(),
                                                                " are free now; try again")),
                      {.reason = std::string(reason::kMemoryFull),
                       .retry_after = kRetryAfter,
                       .metadata = MemoryMetadata(call.plan.memory, memory_.limit(), used)});
  }
  return absl::OkStatus();
}

void Engine::Submit(CallPtr call) {
  if (!ready()) {
    call->Finish(WithDetail(absl::UnavailableError("kernd is starting"),
                            {.reason = std::string(reason::kStarting), .retry_after = absl::Seconds(1)}));
    return;
  }
  {
    StageTimer timer(call->stages, Stage::kValidate);
    absl::StatusOr<Plan> plan = MakePlan(call->program);
    if (plan.ok()) call->plan = *std::move(plan);
    timer.Stop();
    if (!plan.ok()) return call->Finish(plan.status());
  }
  {
    StageTimer timer(call->stages, Stage::kAdmit);
    const absl::Status admitted = Admit(*call);
    timer.Stop();
    if (!admitted.ok()) return call->Finish(admitted);
  }
  if (backend_->RunsInline(call->plan)) {
    if (const absl::Status wanted = call->CheckWanted(); !wanted.ok()) return call->Finish(wanted);
    return backend_->ExecuteInline(*call);
  }
  call->queued_at_ = SteadyNow();
  const std::uint64_t sequence = next_sequence_.fetch_add(1, std::memory_order_relaxed);
  call->sequence_.store(sequence, std::memory_order_relaxed);
  if (!queue_.Push(call, sequence)) {
    call->Finish(WithDetail(absl::UnavailableError("kernd is stopping"), {.reason = std::string(reason::kDraining)}));
  }
}

void Engine::Abandon(const CallPtr& call) {
  call->Abandon();
  if (const CallPtr waiting = queue_.Remove(call->priority, call->sequence_)) {
    waiting->stages.Add(Stage::kQueue, Since(waiting->queued_at_));
    waiting->Finish(waiting->CheckWanted());
  }
}

void Engine::Work(int executor) {
  while (CallPtr call = queue_.Pop()) {
    call->stages.Add(Stage::kQueue, Since(call->queued_at_));
    if (const absl::Status wanted = call->CheckWanted(); !wanted.ok()) {
      call->Finish(wanted);
      continue;
    }
    const CallPtr batch[] = {std::move(call)};
    backend_->Execute(executor, batch);
  }
}

Engine::Load Engine::load() const {
  return {.memory_used = memory_.used(),
          .memory_peak = memory_.peak(),
          .memory_limit = memory_.limit(),
          .calls = places_.used(),
          .queued = static_cast<std::int64_t>(queue_.size())};
}

}  // namespace kernd::core
