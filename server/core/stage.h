// The stages of a call. The same words stand in code, metrics, logs, replies and documents (docs: server/README.md).
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <string_view>

#include "absl/time/time.h"

namespace kernd::core {

enum class Stage { kHeaders, kDecode, kValidate, kAdmit, kQueue, kStageIn, kH2d, kKernel, kD2h, kEncode };

inline constexpr std::array<std::string_view, 10> kStageNames = {"headers",  "decode", "validate", "admit", "queue",
                                                                 "stage_in", "h2d",    "kernel",   "d2h",   "encode"};
inline constexpr std::size_t kNumStages = kStageNames.size();

// Durations come from the steady clock; deadlines alone are wall-clock (absl::Time).
using SteadyTime = std::chrono::steady_clock::time_point;
inline SteadyTime SteadyNow() {
  return std::chrono::steady_clock::now();
}
inline absl::Duration Since(SteadyTime start) {
  return absl::FromChrono(SteadyNow() - start);
}

// Time spent in each stage of one call. Written by one thread at a time: whoever has the call.
class StageTimes {
 public:
  void Add(Stage stage, absl::Duration time) { times_[static_cast<std::size_t>(stage)] += time; }
  absl::Duration operator[](Stage stage) const { return times_[static_cast<std::size_t>(stage)]; }

 private:
  std::array<absl::Duration, kNumStages> times_ = {};
};

// Adds the time from construction to Stop, or to the end of the scope.
class StageTimer {
 public:
  StageTimer(StageTimes& times, Stage stage) : times_(times), stage_(stage), start_(SteadyNow()) {}
  ~StageTimer() { Stop(); }
  StageTimer(const StageTimer&) = delete;
  StageTimer& operator=(const StageTimer&) = delete;

  void Stop() {
    if (stopped_) return;
    stopped_ = true;
    times_.Add(stage_, Since(start_));
  }

 private:
  StageTimes& times_;
  const Stage stage_;
  const SteadyTime start_;
  bool stopped_ = false;
};

}  // namespace kernd::core
