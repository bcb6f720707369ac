#include "server/tune/race.h"

#include <algorithm>
#include <cmath>

namespace kernd::tune {

Times Summarise(std::vector<double> us) {
  if (us.empty()) return {};
  std::sort(us.begin(), us.end());
  const auto at = [&](double share) {
    const double rank = std::ceil(share * static_cast<double>(us.size()));
    return us[static_cast<std::size_t>(std::max(rank, 1.0)) - 1];
  };
  return {.median = at(0.5), .p20 = at(0.2), .p80 = at(0.8), .runs = static_cast<int>(us.size())};
}

bool IsBeaten(double best_of_candidate, double best_of_all) {
  return best_of_candidate > kGiveUp * best_of_all;
}

std::optional<std::size_t> Winner(absl::Span<const std::optional<Times>> candidates, std::optional<std::size_t> model) {
  std::optional<std::size_t> best;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    if (candidates[i] && (!best || candidates[i]->median < candidates[*best]->median)) best = i;
  }
  if (!best || !model || !candidates[*model]) return best;
  const Times &won = *candidates[*best], &own = *candidates[*model];
  const bool gains = won.median < (1 - kMargin) * own.median && won.p20 < (1 - kMargin) * own.p20;
  return gains ? best : std::nullopt;
}

}  // namespace kernd::tune
