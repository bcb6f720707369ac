#include "server/app/tuning.h"

#include "spdlog/spdlog.h"

namespace kernd {

telemetry::TuningGauges TuningOf(const tune::Tuner::Counts& counts) {
  telemetry::TuningGauges gauges = {
      .running = counts.running, .choices = counts.choices, .writes_failed = counts.writes_failed};
  for (std::size_t i = 0; i < counts.candidates.size(); ++i) {
    gauges.candidates.emplace_back(tune::kVerdictNames[i], counts.candidates[i]);
  }
  for (std::size_t i = 0; i < counts.shapes.size(); ++i) {
    gauges.shapes.emplace_back(tune::kOutcomeNames[i], counts.shapes[i]);
  }
  return gauges;
}

void LogTuning(const tune::Progress& progress) {
  using Kind = tune::Progress::Kind;
  const bool bad = progress.verdict == tune::Verdict::kWrong || progress.verdict == tune::Verdict::kUnstable;
  if (progress.kind == Kind::kCandidate && bad) {
    spdlog::error("tuning {}: {} is refused: {}", progress.shape, progress.kernel, progress.why);
  } else if (progress.kind == Kind::kShape) {
    spdlog::info("tuning {}: {} {} {:.1f} us, the model's {} {:.1f} us{}{}", progress.shape,
                 tune::kOutcomeNames[static_cast<std::size_t>(progress.outcome)], progress.kernel,
                 progress.times.median, progress.model, progress.model_times.median, progress.why.empty() ? "" : "; ",
                 progress.why);
  }
}

}  // namespace kernd
