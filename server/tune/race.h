// Who wins, as pure functions of measured times.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "server/tune/progress.h"

namespace kernd::tune {

// A winner is kept only where it takes this much less than the model's choice: less is within what clocks and caches do
// from one minute to the next, and a choice that is kept must never be the slower one.
inline constexpr double kMargin = 0.03;

// A candidate whose best run took as many times as long as the best run of all is given up: no more runs make up for
// that.
inline constexpr double kGiveUp = 3;

// Quantiles by nearest rank, of at least one time; 0 for none.
Times Summarise(std::vector<double> microseconds);

bool IsBeaten(double best_of_candidate, double best_of_all);

// Of candidates that ran to the end, the index of the one with the least median, if it beats the model's by the margin
// or the model's is not among them. The margin is asked of the median and of the 20th percentile: a busy machine moves
// the one, and seldom both. Empty: the model's choice stands, or there is none at all.
std::optional<std::size_t> Winner(absl::Span<const std::optional<Times>> candidates, std::optional<std::size_t> model);

}  // namespace kernd::tune
