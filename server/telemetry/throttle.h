// A bound on the lines that somebody else can cause.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>

#include "absl/time/time.h"

namespace kernd::telemetry {

// Lets `lines` pass in each period, which begins with the first line after the last one's end. Thread-safe.
class Throttle {
 public:
  Throttle(int lines, absl::Duration period) : lines_(lines), period_(period) {}

  // Nothing: keep this line back. A number: write it, and say that so many were kept back in the period before.
  std::optional<std::int64_t> Admit(absl::Time now);

 private:
  const int lines_;
  const absl::Duration period_;
  std::mutex mutex_;
  absl::Time end_ = absl::InfinitePast();  // guarded by mutex_
  int passed_ = 0;                         // guarded by mutex_; in this period
  std::int64_t kept_back_ = 0;             // guarded by mutex_; since it was last told
};

}  // namespace kernd::telemetry
