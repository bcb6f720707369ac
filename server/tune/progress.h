// What a tuning tells while it goes on.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "kernd/kernels/variant.h"

namespace kernd::tune {

// Times of a kernel's runs, the kernel stage alone, in microseconds.
struct Times {
  double median = 0, p20 = 0, p80 = 0;
  int runs = 0;  // 0: it was not measured
};

// What became of a candidate.
enum class Verdict : std::uint8_t { kMeasured, kSlow, kWrong, kUnstable, kFailed };
inline constexpr std::array<std::string_view, 5> kVerdictNames = {"measured", "slow", "wrong", "unstable", "failed"};

// What became of a shape.
enum class Outcome : std::uint8_t { kTuned, kModelKept, kRefused, kNotReached };
inline constexpr std::array<std::string_view, 4> kOutcomeNames = {"tuned", "model_kept", "refused", "not_reached"};

struct Progress {
  enum class Kind : std::uint8_t {
    kRunning,    // `part` of the shape's work is done
    kCandidate,  // `kernel` has its `verdict`
    kShape,      // the shape has its `outcome`
    kEnd,        // all shapes have
  };
  Kind kind = Kind::kRunning;
  int done = 0, total = 0;  // shapes
  std::string shape;        // as it was declared
  double part = 0;          // of the shape, from 0 to 1

  // kCandidate: the candidate; kShape: the variant that plans take from now on, empty where there is none.
  std::string kernel;
  std::optional<Tile> tile;
  Times times;
  Verdict verdict = Verdict::kMeasured;
  Outcome outcome = Outcome::kTuned;
  std::string why;  // where there is something to say: what is wrong, or why not

  // kShape: what the model chooses by itself.
  std::string model;
  std::optional<Tile> model_tile;
  Times model_times;

  // The quickest so far, of this shape; empty: none yet.
  std::string best;
  double best_us = 0;  // its median
};

}  // namespace kernd::tune
