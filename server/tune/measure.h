// The candidates of one declared shape, measured and judged.
//
//   candidates --> twice each: right? the same bits? --> rounds over all that are left --> the winner, or the model
//
// Rounds go over the candidates in turn, so that a clock that drifts hits all alike.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/core/byte_budget.h"
#include "server/core/engine.h"
#include "server/core/shape_list.h"
#include "server/tune/progress.h"
#include "server/tune/trial.h"

namespace kernd::tune {

inline constexpr int kMinRounds = 5, kMaxRounds = 25;

struct Measurement {
  Outcome outcome = Outcome::kRefused;
  std::string why;  // of kRefused
  std::string key;  // what plans look the choice up by
  // The winner, or the model's choice where it stands.
  std::string kernel;
  std::optional<Tile> tile;
  Times times;
  std::string model;
  std::optional<Tile> model_tile;
  Times model_times;  // none where its results are wrong
};

// Why a shape cannot be tuned, whatever the device: it names its kernel, or is never looked up. Empty: it can.
std::string WhyNotTuned(const core::DeclaredShape& shape);

// Measures a shape that can be tuned; blocks. Of `report`'s argument kind, part and what is said of candidates are set.
// Candidates are the backend's variants of the operation that run the problem. Operands, and the results of one run for
// comparison, are taken from `host` while it goes on.
//   CANCELLED  `until` is over
absl::StatusOr<Measurement> Measure(core::Engine& engine, core::ByteBudget& host, const core::DeclaredShape& shape,
                                    const Until& until, const std::function<void(Progress)>& report);

}  // namespace kernd::tune
