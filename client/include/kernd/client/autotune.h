// Measuring which kernel is the quickest for a problem, at the daemon, for all its clients.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "kernd/client/kernel.h"

namespace kernd::client {

struct AutotuneArgs {
  // As the daemon's option --prewarm takes them: "matmul:bf16:4096x4096x4096", "attention:f16:1x8x1024x64:causal".
  // Empty: those of that option.
  std::vector<std::string> shapes;
  absl::Duration budget = absl::ZeroDuration();  // at most a day; zero: no limit
};

enum class TuneEvent : std::uint8_t { kUnspecified = 0, kRunning = 1, kCandidate = 2, kShape = 3, kEnd = 4 };
enum class TuneVerdict : std::uint8_t {
  kUnspecified = 0,
  kMeasured = 1,
  kSlow = 2,
  kWrong = 3,
  kUnstable = 4,
  kFailed = 5
};
enum class TuneOutcome : std::uint8_t { kUnspecified = 0, kTuned = 1, kModelKept = 2, kRefused = 3, kNotReached = 4 };

// "MEASURED", "MODEL_KEPT", ...
std::string_view Name(TuneVerdict verdict);
std::string_view Name(TuneOutcome outcome);

// What the daemon tells while it goes on. Times are of the kernel stage, in microseconds.
struct AutotuneProgress {
  TuneEvent event = TuneEvent::kUnspecified;
  std::int32_t done = 0, total = 0;                 // shapes
  std::string shape;                                // that this is about
  double part = 0;                                  // of the shape's work, from 0 to 1
  std::string best;                                 // the quickest kernel of this shape so far; empty: none yet
  double best_us = 0;                               // its median
  std::string kernel;                               // kCandidate: that one; kShape: what is chosen from now on
  std::optional<Tile> tile;                         // of it, where it has one
  double median_us = 0, p20_us = 0, p80_us = 0;     // of its runs
  std::int32_t runs = 0;                            // 0: it was not measured
  TuneVerdict verdict = TuneVerdict::kUnspecified;  // kCandidate
  TuneOutcome outcome = TuneOutcome::kUnspecified;  // kShape
  std::string why;      // what is wrong, or why not; also that the daemon could not write its file
  std::string model;    // kShape: what the model chooses where nothing was measured
  double model_us = 0;  // its median; 0: not measured
};

using AutotuneCallback = std::function<void(const AutotuneProgress& progress)>;

}  // namespace kernd::client
