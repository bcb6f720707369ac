#include "server/tune/tuner.h"

#include <omp.h>

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernd/kernels/error.h"
#include "server/tune/tuning_file.h"

namespace kernd::tune {
namespace {

constexpr absl::Duration kRetryWhenBusy = absl::Seconds(5);

absl::Status Draining() {
  return WithDetail(absl::UnavailableError("kernd is draining: the tuning has ended; what was found so far is kept"),
                    {.reason = std::string(reason::kDraining), .retry_after = absl::Seconds(1)});
}

}  // namespace

Tuner::Tuner(core::Engine& engine, core::ByteBudget& host, Options options, Observer observer)
    : engine_(engine), host_(host), options_(std::move(options)), observer_(std::move(observer)) {}

Tuner::~Tuner() {
  Stop();
  std::thread last;
  {
    absl::MutexLock lock(&mutex_);
    last = std::move(thread_);
  }
  if (last.joinable()) last.join();
}

absl::StatusOr<std::vector<core::DeclaredShape>> Tuner::Select(absl::Span<const std::string> texts) const {
  std::vector<core::DeclaredShape> shapes;
  if (!texts.empty()) {
    KERND_ASSIGN_OR_RETURN(shapes, core::ParseShapes(texts, "shapes"));
    for (const core::DeclaredShape& shape : shapes) {
      if (const std::string why = WhyNotTuned(shape); !why.empty()) return InvalidField("shapes", shape.text, why);
    }
    return shapes;
  }
  for (const core::DeclaredShape& shape : options_.declared) {
    if (WhyNotTuned(shape).empty()) shapes.push_back(shape);
  }
  if (shapes.empty()) {
    return InvalidField("shapes", "empty",
                        "must name shapes, as the daemon was started without --prewarm shapes that can be tuned");
  }
  return shapes;
}

absl::StatusOr<std::shared_ptr<Feed>> Tuner::Start(absl::Span<const std::string> texts, double budget_s,
                                                   std::function<void()> wake) {
  if (options_.file.empty()) {
    return WithDetail(absl::FailedPreconditionError("this daemon was started without --tuning-file: its operator has "
                                                    "not let clients choose kernels for everybody"),
                      {.reason = std::string(reason::kTuningOff)});
  }
  KERND_ASSIGN_OR_RETURN(const std::vector<core::DeclaredShape> shapes, Select(texts));
  if (!(budget_s >= 0 && budget_s <= kMaxBudgetSeconds)) {  // NaN, too
    return InvalidField("budget_s", absl::StrCat(budget_s), absl::StrCat("must be from 0 to ", kMaxBudgetSeconds));
  }
  const absl::Time end = budget_s > 0 ? absl::Now() + absl::Seconds(budget_s) : absl::InfiniteFuture();
  if (!engine_.ready()) {
    return WithDetail(absl::UnavailableError("kernd is starting"),
                      {.reason = std::string(reason::kStarting), .retry_after = absl::Seconds(1)});
  }
  absl::MutexLock lock(&mutex_);
  if (stopped_) return Draining();
  if (running_ != nullptr) {
    return WithDetail(absl::ResourceExhaustedError("another tuning is on; there is one at a time"),
                      {.reason = std::string(reason::kTuningBusy), .retry_after = kRetryWhenBusy});
  }
  if (thread_.joinable()) thread_.join();  // it has ended, or does at once: it has let go of `running_`
  const auto feed = std::make_shared<Feed>(std::move(wake));
  running_ = feed;
  thread_ = std::thread([this, shapes, end, feed] { Run(shapes, end, feed); });
  return feed;
}

void Tuner::Stop() {
  std::shared_ptr<Feed> running;
  {
    absl::MutexLock lock(&mutex_);
    stopped_ = true;
    running = running_;
  }
  if (running != nullptr) running->Stop(Draining());
}

Tuner::Counts Tuner::counts() const {
  const auto choices = engine_.backend().tuned().Read();
  absl::MutexLock lock(&mutex_);
  Counts counts = counts_;
  counts.running = running_ != nullptr;
  counts.choices = choices == nullptr ? 0 : static_cast<std::int64_t>(choices->size());
  return counts;
}

void Tuner::Tell(const Progress& progress, Feed& feed) {
  {
    absl::MutexLock lock(&mutex_);
    if (progress.kind == Progress::Kind::kCandidate) {
      ++counts_.candidates[static_cast<std::size_t>(progress.verdict)];
    } else if (progress.kind == Progress::Kind::kShape) {
      ++counts_.shapes[static_cast<std::size_t>(progress.outcome)];
    }
  }
  if (observer_) observer_(progress);
  feed.Push(progress);
}

std::string Tuner::Keep(const Measurement& measured) {
  core::TunedTable& table = engine_.backend().tuned();
  const std::shared_ptr<const TunedChoices> before = table.Read();
  TunedChoices choices = before == nullptr ? TunedChoices() : *before;
  if (measured.outcome == Outcome::kTuned) {
    if (choices.size() >= kMaxTunedChoices && choices.find(measured.key) == choices.end()) {
      return absl::StrCat("not kept: there are ", choices.size(), " choices already");
    }
    choices.insert_or_assign(measured.key, TunedChoice{measured.kernel, measured.times.median, measured.tile});
  } else {
    choices.erase(measured.key);
  }
  table.Replace(choices);
  // Also where nothing is new: the file may be missing, or one that was not read.
  const absl::Status written = WriteTuningFile(options_.file, options_.version, choices);
  if (written.ok()) return "";
  absl::MutexLock lock(&mutex_);
  ++counts_.writes_failed;
  return absl::StrCat("in effect until the daemon ends: ", std::string(written.message()));
}

void Tuner::Run(const std::vector<core::DeclaredShape>& shapes, absl::Time end, const std::shared_ptr<Feed>& feed) {
  omp_set_num_threads(1);  // of this thread's teams: the reference must not take the processors from calls
  const Until until{.stop = feed->stopped(), .end = end};
  const int total = static_cast<int>(shapes.size());
  for (int i = 0; i < total && !until.stop.stop_requested(); ++i) {
    const core::DeclaredShape& shape = shapes[static_cast<std::size_t>(i)];
    const auto tell = [&](Progress progress) {
      progress.done = progress.kind == Progress::Kind::kShape ? i + 1 : i;
      progress.total = total;
      progress.shape = shape.text;
      Tell(progress, *feed);
    };
    const absl::StatusOr<Measurement> measured = Measure(engine_, host_, shape, until, tell);
    Progress last{.kind = Progress::Kind::kShape, .part = 1};
    if (measured.ok()) {
      last.outcome = measured->outcome;
      last.why = measured->why;
      last.kernel = last.best = measured->kernel;
      last.tile = measured->tile;
      last.times = measured->times;
      last.best_us = measured->times.median;
      last.model = measured->model;
      last.model_tile = measured->model_tile;
      last.model_times = measured->model_times;
      if (last.outcome == Outcome::kTuned || last.outcome == Outcome::kModelKept) last.why = Keep(*measured);
    } else {
      last.outcome = Outcome::kNotReached;
      last.why = until.stop.stop_requested() ? "the tuning was ended" : "the budget was over";
    }
    tell(std::move(last));
  }
  {
    absl::MutexLock lock(&mutex_);
    running_ = nullptr;
  }
  // After that: who has seen the end may begin another one.
  feed->End(Progress{.kind = Progress::Kind::kEnd, .done = total, .total = total, .part = 1});
}

}  // namespace kernd::tune
