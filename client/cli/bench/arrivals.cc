#include "client/cli/bench/arrivals.h"

#include <cmath>

namespace kernd::cli {

absl::Duration Arrivals::Next() {
  // Each time from the start, and none from the one before it, so that rounding to nanoseconds does not add up.
  if (kind_ == ArrivalKind::kConstant) return absl::Seconds(static_cast<double>(count_++) / rate_);
  mean_gaps_ -= std::log1p(-uniform_.Next());
  return absl::Seconds(mean_gaps_ / rate_);
}

}  // namespace kernd::cli
