#include "client/cli/bench/histogram.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>

namespace kernd::cli {
namespace {

// Each power of two is split into 2^kBits buckets. A value is one of 2^kBits to 2^(kBits + 1) - 1 steps of 2^shift ns;
// the first 2^(kBits + 1) values have a bucket each.
constexpr int kBits = 7;
constexpr std::uint64_t kSteps = std::uint64_t{1} << kBits;

std::size_t BucketOf(std::int64_t nanoseconds) {
  const auto value = static_cast<std::uint64_t>(nanoseconds);
  const int shift = std::max(0, static_cast<int>(std::bit_width(value)) - (kBits + 1));
  return static_cast<std::size_t>(static_cast<std::uint64_t>(shift) * kSteps + (value >> shift));
}

// The middle of the bucket, from which no value in it is farther away than half a step.
std::int64_t MiddleOf(std::size_t bucket) {
  if (bucket < 2 * kSteps) return static_cast<std::int64_t>(bucket);
  const std::uint64_t shift = bucket / kSteps - 1, steps = bucket % kSteps + kSteps;
  return static_cast<std::int64_t>((steps << shift) + ((std::uint64_t{1} << shift) >> 1));
}

}  // namespace

void Histogram::Add(absl::Duration value) {
  const std::int64_t nanoseconds = std::max<std::int64_t>(0, absl::ToInt64Nanoseconds(value));
  const std::size_t bucket = BucketOf(nanoseconds);
  if (bucket >= counts_.size()) counts_.resize(bucket + 1);
  ++counts_[bucket];
  min_ = count_ == 0 ? nanoseconds : std::min(min_, nanoseconds);
  max_ = std::max(max_, nanoseconds);
  sum_ += static_cast<double>(nanoseconds);
  ++count_;
}

void Histogram::Merge(const Histogram& other) {
  if (other.count_ == 0) return;
  counts_.resize(std::max(counts_.size(), other.counts_.size()));
  for (std::size_t i = 0; i < other.counts_.size(); ++i) counts_[i] += other.counts_[i];
  min_ = count_ == 0 ? other.min_ : std::min(min_, other.min_);
  max_ = std::max(max_, other.max_);
  sum_ += other.sum_;
  count_ += other.count_;
}

absl::Duration Histogram::Mean() const {
  return count_ == 0 ? absl::ZeroDuration() : absl::Nanoseconds(sum_ / static_cast<double>(count_));
}

absl::Duration Histogram::Quantile(double q) const {
  if (count_ == 0 || q >= 1) return Max();
  const auto rank = static_cast<std::int64_t>(std::ceil(q * static_cast<double>(count_)));
  if (rank <= 1) return Min();
  std::int64_t below = 0;
  for (std::size_t i = 0; i < counts_.size(); ++i) {
    below += counts_[i];
    if (below >= rank) return absl::Nanoseconds(std::clamp(MiddleOf(i), min_, max_));
  }
  return Max();
}

}  // namespace kernd::cli
