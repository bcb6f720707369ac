#include "server/core/engine.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "kernd/kernels/error.h"
#include "server/core/fit.h"

namespace kernd::core {
namespace {

// How soon a refused call may try again: about the time in which a few calls end.
constexpr absl::Duration kRetryAfter = absl::Milliseconds(50);

constexpr int kLeaseWaits = 5000;  // of a millisecond each

// What a call needs, and the limit.
std::map<std::string, std::string> MemoryMetadata(const MemoryUse& use, std::int64_t limit) {
  return {{"needed_bytes", absl::StrCat(use.peak())},
          {"input_bytes", absl::StrCat(use.inputs)},
          {"output_bytes", absl::StrCat(use.outputs)},
          {"workspace_bytes", absl::StrCat(use.workspace)},
          {"limit_bytes", absl::StrCat(limit)}};
}

std::int64_t SequencesOf(const Step& step) {
  const auto* const attention = std::get_if<AttentionStep>(&step);
  if (attention == nullptr) return 0;
  const AttentionProblem& p = attention->problem;
  if (p.layout == AttentionLayout::kPacked) return static_cast<std::int64_t>(p.q_offsets.size()) - 1;
  return p.q.shape.empty() ? 0 : p.q.shape[0];
}

// A plan holds some bytes for each sequence, however small it is: kMaxSequences bounds the sum over the steps. A step
// that breaks the rule alone, or makes no sense, is left for the backend to name.
absl::Status CheckSequences(const Program& program) {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < program.steps.size(); ++i) {
    const std::int64_t sequences = SequencesOf(program.steps[i]);
    if (sequences <= 0 || sequences > kMaxSequences) continue;
    sum += sequences;
    if (sum > kMaxSequences) {
      return InvalidField(absl::StrCat("steps[", i, "].attention"),
                          absl::StrCat(sequences, " sequences, with those of the steps before ", sum),
                          absl::StrCat("at most ", kMaxSequences, " sequences in all steps of a call"));
    }
  }
  return absl::OkStatus();
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

// Of the outputs, the bytes that travel: not those that a device holds only until they are in shared memory.
std::int64_t ReplyBytes(const Program& program, const Plan& plan) {
  bool all = true;
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < plan.steps.size(); ++i) {
    for (std::size_t j = 0; j < plan.steps[i].results.size(); ++j) {
      const bool travels = PlaceOf(program.steps[i], j).in_reply();
      all = all && travels;
      if (travels) sum = CheckedAdd(sum, plan.steps[i].results[j].bytes()).value_or(plan.memory.outputs);
    }
  }
  return all ? plan.memory.outputs : std::min(sum, plan.memory.outputs);
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

// Once on each executor, so that plans, workspaces and memory are there on every stream. Nothing else runs yet.
absl::Status Engine::WarmUp(const DeclaredShape& shape) {
  for (int executor = 0; executor < backend_->Executors(); ++executor) {
    Program program;
    program.steps.push_back(shape.step);
    KERND_ASSIGN_OR_RETURN(Plan plan, MakePlan(program));  // before memory for its operands is asked for
    KERND_ASSIGN_OR_RETURN(program.steps.front(), WithZeros(std::move(program.steps.front())));
    absl::Notification done;
    const auto call =
        std::make_shared<Call>(std::move(program), absl::InfiniteFuture(), 0, [&done](Call&) { done.Notify(); });
    call->plan = std::move(plan);
    KERND_RETURN_IF_ERROR(Admit(*call));
    if (backend_->RunsInline(call->plan)) {
      backend_->ExecuteInline(*call);
    } else {
      const CallPtr batch[] = {call};
      backend_->Execute(executor, batch);
    }
    done.WaitForNotification();
    KERND_RETURN_IF_ERROR(call->status);
  }
  return absl::OkStatus();
}

absl::Status Engine::Start(const Backend::Progress& progress, absl::Span<const DeclaredShape> declared,
                           const Refused& refused) {
  const int shapes = static_cast<int>(declared.size());
  int total = shapes;
  KERND_RETURN_IF_ERROR(backend_->Prewarm([&](int done, int of, std::string_view what) {
    total = of + shapes;
    if (done < of || shapes == 0) progress(done, total, what);
  }));
  for (int i = 0; i < shapes; ++i) {
    const DeclaredShape& shape = declared[static_cast<std::size_t>(i)];
    progress(total - shapes + i, total, shape.text);
    const absl::Status status = WarmUp(shape);
    if (status.ok()) continue;
    if (!absl::IsInvalidArgument(status) && !absl::IsUnimplemented(status) && !absl::IsResourceExhausted(status)) {
      return WithDetail(absl::Status(status.code(), absl::StrCat(shape.text, ": ", status.message())),
                        DetailOf(status));
    }
    if (refused) refused(shape, status);
  }
  if (shapes > 0) progress(total, total, "");
  for (int i = 0; i < backend_->Executors(); ++i) workers_.emplace_back([this, i] { Work(i); });
  ready_.store(true, std::memory_order_release);
  return absl::OkStatus();
}

absl::StatusOr<Plan> Engine::PlanSteps(const Program& program, bool& countable) const {
  Plan plan;
  plan.device = std::string(backend_->device_id());
  plan.steps.reserve(program.steps.size());
  countable = true;
  for (const Step& step : program.steps) {
    KERND_ASSIGN_OR_RETURN(StepPlan step_plan, backend_->PlanStep(step));
    countable = countable && Accumulate(plan.memory, step_plan.memory);
    plan.steps.push_back(std::move(step_plan));
  }
  countable = countable && PeakFits(plan.memory, std::numeric_limits<std::int64_t>::max());
  return plan;
}

double Engine::Fullness(const Program& program) const {
  bool countable = false;
  const absl::StatusOr<Plan> plan = PlanSteps(program, countable);
  if (!plan.ok() || !countable) return std::numeric_limits<double>::infinity();
  const auto part = [](std::int64_t bytes, std::int64_t limit) {
    return static_cast<double>(bytes) / static_cast<double>(std::max<std::int64_t>(limit, 1));
  };
  return std::max(part(plan->memory.peak(), options_.memory_limit),
                  part(ReplyBytes(program, *plan), options_.max_reply_bytes));
}

absl::Status Engine::TooLarge(const Program& program, std::string message,
                              std::map<std::string, std::string> metadata) const {
  const Fit fit = FindFit(program, [this](const Program& smaller) { return Fullness(smaller); });
  if (fit.size > 0) {
    absl::StrAppend(&message, "; ", fit.text);
    metadata["largest_" + fit.dimension] = absl::StrCat(fit.size);
  }
  return WithDetail(absl::ResourceExhaustedError(message),
                    {.reason = std::string(reason::kTooLarge), .metadata = std::move(metadata)});
}

absl::StatusOr<Plan> Engine::MakePlan(const Program& program) const {
  KERND_RETURN_IF_ERROR(CheckSequences(program));
  bool countable = false;
  KERND_ASSIGN_OR_RETURN(Plan plan, PlanSteps(program, countable));
  const std::string limit = absl::StrCat(options_.memory_limit);
  if (!countable) {
    return TooLarge(
        program,
        absl::StrCat("the call needs more than 2^63 bytes and can never fit: the memory limit is ", limit, " bytes"),
        {{"limit_bytes", limit}});
  }
  if (plan.memory.peak() > options_.memory_limit) {
    return TooLarge(program,
                    absl::StrCat("the call needs ", plan.memory.peak(),
                                 " bytes and can never fit: the memory limit is ", limit, " bytes"),
                    MemoryMetadata(plan.memory, options_.memory_limit));
  }
  const std::int64_t reply = ReplyBytes(program, plan);
  if (reply > options_.max_reply_bytes) {
    return TooLarge(
        program, absl::StrCat("the results are ", reply, " bytes and a reply holds at most ", options_.max_reply_bytes),
        {{"output_bytes", absl::StrCat(reply)}, {"limit_bytes", absl::StrCat(options_.max_reply_bytes)}});
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
    const std::int64_t limit = memory_.limit(), used = memory_.used();
    std::map<std::string, std::string> metadata = MemoryMetadata(call.plan.memory, limit);
    metadata["reserved_bytes"] = absl::StrCat(used);
    metadata["available_bytes"] = absl::StrCat(limit - used);
    return WithDetail(
        absl::ResourceExhaustedError(absl::StrCat("the call needs ", call.plan.memory.peak(), " bytes; ", limit - used,
                                                  " of ", limit, " are free now; try again")),
        {.reason = std::string(reason::kMemoryFull), .retry_after = kRetryAfter, .metadata = std::move(metadata)});
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
    absl::Status admitted = call->on_planned ? call->on_planned(*call) : absl::OkStatus();
    if (admitted.ok()) admitted = Admit(*call);
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
    call->Finish(WithDetail(absl::UnavailableError("kernd is stopping"),
                            {.reason = std::string(reason::kDraining), .retry_after = absl::Seconds(1)}));
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
