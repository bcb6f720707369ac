// Durations counted in buckets whose width grows with what they hold, as in HdrHistogram (G. Tene): any number of
// values in a few KiB, and quantiles within a known part of the true ones.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/time/time.h"

namespace kernd::cli {

class Histogram {
 public:
  // A quantile is at most this part of the true one away from it; below 256 ns it is exact.
  static constexpr double kRelativeError = 1.0 / 256;

  // Negative ones count as zero. Whole nanoseconds, less than 2^63 of them.
  void Add(absl::Duration value);
  void Merge(const Histogram& other);

  std::int64_t count() const { return count_; }
  // Exact. Zero where nothing was added.
  absl::Duration Min() const { return absl::Nanoseconds(min_); }
  absl::Duration Max() const { return absl::Nanoseconds(max_); }
  absl::Duration Mean() const;

  // The value of rank ceil(q * count), from 1: the smallest one that has the part `q` of all values at or below it. `q`
  // from 0 to 1; 0 is the minimum, 1 the maximum, both exact. Zero where nothing was added.
  absl::Duration Quantile(double q) const;

 private:
  std::vector<std::int64_t> counts_;  // as many buckets as the largest value so far needs
  std::int64_t count_ = 0;
  std::int64_t min_ = 0, max_ = 0;  // ns
  double sum_ = 0;                  // ns
};

}  // namespace kernd::cli
