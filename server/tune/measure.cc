#include "server/tune/measure.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernd/kernels/error.h"
#include "server/tune/exam.h"
#include "server/tune/operands.h"
#include "server/tune/race.h"

namespace kernd::tune {
namespace {

// Of the rounds beyond the least, all together.
constexpr absl::Duration kEnough = absl::Seconds(3);
constexpr absl::Duration kRoomPatience = absl::Seconds(10), kRoomRetry = absl::Milliseconds(50);

KernelRequest& KernelOf(core::Step& step) {
  return std::visit([](auto& s) -> KernelRequest& { return s.kernel; }, step);
}

OpKind OpOf(const core::Step& step) {
  return std::holds_alternative<core::MatmulStep>(step) ? OpKind::kMatmul : OpKind::kAttention;
}

std::string KeyOf(const core::Step& step) {
  return std::visit(
      [](const auto& s) {
        const auto geometry = Validate(s.problem);
        return geometry.ok() ? TuningKey(s.problem, *geometry) : std::string();
      },
      step);
}

struct Candidate {
  std::string kernel;
  std::optional<Tile> tile;  // as its plan has it
  core::Step step;           // forces it
  std::vector<double> us;
  double best_us = 0;
  bool racing = false;

  bool Is(const core::StepPlan& plan) const { return kernel == plan.kernel && tile == plan.tile; }
};

class Shape {
 public:
  Shape(core::Engine& engine, const Until& until, const std::function<void(Progress)>& report)
      : engine_(engine), until_(until), report_(report) {}

  absl::StatusOr<Measurement> Run(core::ByteBudget& host, const core::DeclaredShape& shape);

 private:
  absl::StatusOr<core::StepPlan> PlanOf(const core::Step& step) const;
  void FindCandidates(const core::Step& step, const core::StepPlan& model);
  absl::Status AwaitRoom(core::ByteBudget& host, std::int64_t bytes, core::ByteBudget::Lease& lease);
  // Twice, the second time measured.
  absl::Status Qualify(const Exam& exam, Candidate& candidate);
  absl::Status Race();
  void GiveUpTheBeaten();
  void Say(const Candidate& candidate, Verdict verdict, std::string why = {});
  void SayPart(double part);
  const Candidate* Best() const;

  core::Engine& engine_;
  const Until& until_;
  const std::function<void(Progress)>& report_;
  std::vector<Candidate> candidates_;
  std::optional<std::size_t> model_;  // among them
};

absl::StatusOr<core::StepPlan> Shape::PlanOf(const core::Step& step) const {
  core::Program program;
  program.steps.push_back(step);
  KERND_ASSIGN_OR_RETURN(core::Plan plan, engine_.MakePlan(program));
  return std::move(plan.steps.front());
}

void Shape::FindCandidates(const core::Step& step, const core::StepPlan& model) {
  const std::vector<VariantInfo> variants = engine_.backend().Variants();
  for (const VariantInfo& variant : variants) {
    if (variant.op != OpOf(step) || variant.by_request) continue;
    const auto same_name = std::count_if(variants.begin(), variants.end(),
                                         [&](const VariantInfo& other) { return other.name == variant.name; });
    Candidate candidate{.step = step};
    KernelOf(candidate.step) = {.name = variant.name, .tile = same_name > 1 ? variant.tile : std::nullopt};
    const absl::StatusOr<core::StepPlan> plan = PlanOf(candidate.step);
    if (!plan.ok()) continue;  // it does not run this problem
    candidate.kernel = plan->kernel;
    candidate.tile = plan->tile;
    if (candidate.Is(model)) model_ = candidates_.size();
    candidates_.push_back(std::move(candidate));
  }
}

absl::Status Shape::AwaitRoom(core::ByteBudget& host, std::int64_t bytes, core::ByteBudget::Lease& lease) {
  for (absl::Duration waited; !host.Reserve(bytes, lease); waited += kRoomRetry) {
    if (bytes > host.limit() || waited >= kRoomPatience) {
      return absl::ResourceExhaustedError(absl::StrCat("its operands and results are ", bytes, " bytes: ", host.used(),
                                                       " of ", host.limit(), " for bodies in flight are taken"));
    }
    if (!Pause(kRoomRetry, until_)) break;
  }
  return absl::OkStatus();
}

const Candidate* Shape::Best() const {
  const Candidate* best = nullptr;
  for (const Candidate& candidate : candidates_) {
    if (candidate.racing && (best == nullptr || candidate.best_us < best->best_us)) best = &candidate;
  }
  return best;
}

void Shape::SayPart(double part) {
  Progress progress{.kind = Progress::Kind::kRunning, .part = part};
  if (const Candidate* const best = Best()) {
    progress.best = best->kernel;
    progress.best_us = Summarise(best->us).median;
  }
  report_(std::move(progress));
}

void Shape::Say(const Candidate& candidate, Verdict verdict, std::string why) {
  Progress progress{.kind = Progress::Kind::kCandidate,
                    .kernel = candidate.kernel,
                    .tile = candidate.tile,
                    .times = Summarise(candidate.us),
                    .verdict = verdict,
                    .why = std::move(why)};
  if (const Candidate* const best = Best()) {
    progress.best = best->kernel;
    progress.best_us = Summarise(best->us).median;
  }
  report_(std::move(progress));
}

absl::Status Shape::Qualify(const Exam& exam, Candidate& candidate) {
  std::vector<std::byte> before;
  for (int run = 0; run < 2; ++run) {
    const absl::StatusOr<core::CallPtr> call = RunOnce(engine_, candidate.step, until_);
    if (!call.ok()) {
      if (absl::IsCancelled(call.status()) && until_.Over()) return call.status();
      Say(candidate, Verdict::kFailed, std::string(call.status().message()));
      return absl::OkStatus();
    }
    std::vector<std::byte> bytes;
    for (const core::HostBuffer& result : (*call)->results) {
      bytes.insert(bytes.end(), result.data(), result.data() + result.size());
    }
    if (run == 0) {
      if (std::string wrong = exam.Judge((*call)->results); !wrong.empty()) {
        Say(candidate, Verdict::kWrong, std::move(wrong));
        return absl::OkStatus();
      }
      before = std::move(bytes);
    } else if (bytes != before) {
      Say(candidate, Verdict::kUnstable, "two runs gave different bits");
      return absl::OkStatus();
    } else {
      candidate.us.push_back(absl::ToDoubleMicroseconds((*call)->stages[core::Stage::kKernel]));
    }
  }
  candidate.best_us = candidate.us.front();
  candidate.racing = true;
  return absl::OkStatus();
}

// The model's choice stays: it is what the others are compared with.
void Shape::GiveUpTheBeaten() {
  const Candidate* const best = Best();
  for (std::size_t i = 0; i < candidates_.size(); ++i) {
    Candidate& candidate = candidates_[i];
    if (!candidate.racing || i == model_ || !IsBeaten(candidate.best_us, best->best_us)) continue;
    candidate.racing = false;
    Say(candidate, Verdict::kSlow);
  }
}

absl::Status Shape::Race() {
  const absl::Time enough = absl::Now() + kEnough;
  const auto racing = [this] {
    return std::count_if(candidates_.begin(), candidates_.end(), [](const Candidate& c) { return c.racing; });
  };
  for (int round = 0; round < kMaxRounds; ++round) {
    GiveUpTheBeaten();
    if (round >= kMinRounds && (racing() < 2 || absl::Now() >= enough)) break;
    SayPart(static_cast<double>(round + 1) / (kMaxRounds + 1));
    for (std::size_t i = 0; i < candidates_.size(); ++i) {
      Candidate& candidate = candidates_[(i + static_cast<std::size_t>(round)) % candidates_.size()];
      if (!candidate.racing) continue;
      const absl::StatusOr<core::CallPtr> call = RunOnce(engine_, candidate.step, until_);
      if (!call.ok()) {
        if (absl::IsCancelled(call.status()) && until_.Over()) return call.status();
        candidate.racing = false;
        Say(candidate, Verdict::kFailed, std::string(call.status().message()));
        continue;
      }
      const double us = absl::ToDoubleMicroseconds((*call)->stages[core::Stage::kKernel]);
      candidate.us.push_back(us);
      candidate.best_us = std::min(candidate.best_us, us);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Measurement> Shape::Run(core::ByteBudget& host, const core::DeclaredShape& shape) {
  Measurement measured{.key = KeyOf(shape.step)};
  const auto refused = [&](const absl::Status& why) {
    measured.why = std::string(why.message());
    return measured;
  };
  core::Step step = shape.step;
  KernelOf(step) = {.untuned = true};
  const absl::StatusOr<core::StepPlan> model = PlanOf(step);
  if (!model.ok()) return refused(model.status());
  measured.model = model->kernel;
  measured.model_tile = model->tile;

  std::int64_t bytes = OperandBytes(step);
  for (const TensorSpec& result : model->results) bytes += 2 * result.bytes();
  core::ByteBudget::Lease lease;
  if (const absl::Status room = AwaitRoom(host, bytes, lease); !room.ok()) return refused(room);
  if (until_.Over()) return absl::CancelledError("the tuning has ended");
  SayPart(0);
  absl::StatusOr<core::Step> with_operands = WithNormals(std::move(step));
  if (!with_operands.ok()) return refused(with_operands.status());
  const absl::StatusOr<Exam> exam = Exam::Prepare(*with_operands);
  if (!exam.ok()) return refused(exam.status());

  FindCandidates(*with_operands, *model);
  for (Candidate& candidate : candidates_) KERND_RETURN_IF_ERROR(Qualify(*exam, candidate));
  KERND_RETURN_IF_ERROR(Race());

  std::vector<std::optional<Times>> times(candidates_.size());
  for (std::size_t i = 0; i < candidates_.size(); ++i) {
    if (candidates_[i].racing) times[i] = Summarise(candidates_[i].us);
  }
  for (const Candidate& candidate : candidates_) {
    if (candidate.racing) Say(candidate, Verdict::kMeasured);
  }
  if (model_ && times[*model_]) measured.model_times = *times[*model_];
  const std::optional<std::size_t> winner = Winner(times, model_);
  if (winner) {
    measured.outcome = Outcome::kTuned;
    measured.kernel = candidates_[*winner].kernel;
    measured.tile = candidates_[*winner].tile;
    measured.times = *times[*winner];
  } else if (measured.model_times.runs > 0) {
    measured.outcome = Outcome::kModelKept;
    measured.kernel = measured.model;
    measured.tile = measured.model_tile;
    measured.times = measured.model_times;
  } else {
    measured.why = "no kernel gave a right result";
  }
  return measured;
}

}  // namespace

std::string WhyNotTuned(const core::DeclaredShape& shape) {
  return std::visit(
      [](const auto& step) -> std::string {
        if (!step.kernel.name.empty()) return "must leave the kernel open";
        if constexpr (std::is_same_v<std::decay_t<decltype(step)>, core::MatmulStep>) {
          if (step.problem.numerics == Numerics::kBatchInvariant) return "must not be batch-invariant: it is not tuned";
        }
        return "";
      },
      shape.step);
}

absl::StatusOr<Measurement> Measure(core::Engine& engine, core::ByteBudget& host, const core::DeclaredShape& shape,
                                    const Until& until, const std::function<void(Progress)>& report) {
  return Shape(engine, until, report).Run(host, shape);
}

}  // namespace kernd::tune
