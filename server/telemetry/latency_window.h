// Quantiles of the times of the last minute.
#pragma once

#include <cstdint>

#include "absl/time/time.h"
#include "server/telemetry/sliding_counts.h"

namespace kernd::telemetry {

// The q-quantile of n times is the smallest that at least q * n of them do not exceed: one of the times themselves.
// Each is given to within kMaxRelativeError, up to kLongestNs; longer times count as that.
struct LatencySummary {
  std::uint64_t count = 0;  // the rest is 0 where this is
  absl::Duration p50, p90, p99, max;
};

// Counts times in buckets, sixteen to each power of two of nanoseconds, in 32 KiB. Thread-safe; adding is one atomic
// addition.
class LatencyWindow {
 public:
  static constexpr double kMaxRelativeError = 1.0 / 32;                    // half a bucket
  static constexpr std::int64_t kLongestNs = (std::int64_t{1} << 40) - 1;  // 18 minutes

  LatencyWindow() : counts_(BucketOf(kLongestNs) + 1) {}

  // A time below 0 counts as 0.
  void Add(absl::Duration time, core::SteadyTime now) { counts_.Add(BucketOf(absl::ToInt64Nanoseconds(time)), now); }

  LatencySummary Read(core::SteadyTime now) const;

 private:
  static std::size_t BucketOf(std::int64_t ns);
  // What stands for all times of a bucket.
  static absl::Duration MiddleOf(std::size_t bucket);

  SlidingCounts counts_;
};

}  // namespace kernd::telemetry
