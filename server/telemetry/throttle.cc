#include "server/telemetry/throttle.h"

#include <utility>

namespace kernd::telemetry {

std::optional<std::int64_t> Throttle::Admit(absl::Time now) {
  const std::lock_guard lock(mutex_);
  if (now >= end_) {
    end_ = now + period_;
    passed_ = 0;
  }
  if (passed_ == lines_) {
    ++kept_back_;
    return std::nullopt;
  }
  ++passed_;
  return std::exchange(kept_back_, 0);
}

}  // namespace kernd::telemetry
