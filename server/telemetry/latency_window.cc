#include "server/telemetry/latency_window.h"

#include <algorithm>
#include <array>
#include <bit>
#include <vector>

namespace kernd::telemetry {
namespace {

// Times below 2^(kBits + 1) ns have a bucket each; above, the kBits bits behind the first one choose it.
constexpr int kBits = 4;
constexpr std::uint64_t kExact = std::uint64_t{2} << kBits;

}  // namespace

std::size_t LatencyWindow::BucketOf(std::int64_t ns) {
  const auto time = static_cast<std::uint64_t>(std::clamp<std::int64_t>(ns, 0, kLongestNs));
  if (time < kExact) return time;
  const int shift = std::bit_width(time) - kBits - 1;
  return (static_cast<std::size_t>(shift) << kBits) + (time >> shift);
}

absl::Duration LatencyWindow::MiddleOf(std::size_t bucket) {
  if (bucket < kExact) return absl::Nanoseconds(bucket);
  const std::size_t shift = (bucket >> kBits) - 1;
  const std::uint64_t first = (bucket - (shift << kBits)) << shift, width = std::uint64_t{1} << shift;
  return absl::Nanoseconds(first + width / 2);
}

LatencySummary LatencyWindow::Read(core::SteadyTime now) const {
  const std::vector<std::uint64_t> counts = counts_.Sum(now);
  LatencySummary summary;
  for (const std::uint64_t count : counts) summary.count += count;
  if (summary.count == 0) return summary;
  struct Wanted {
    std::uint64_t percent;
    absl::Duration LatencySummary::*field;
  };
  constexpr std::array<Wanted, 4> kWanted = {{{50, &LatencySummary::p50},
                                              {90, &LatencySummary::p90},
                                              {99, &LatencySummary::p99},
                                              {100, &LatencySummary::max}}};
  std::size_t bucket = 0;
  std::uint64_t reached = counts[0];  // times up to and with `bucket`
  for (const auto& [percent, field] : kWanted) {
    const std::uint64_t rank = (percent * summary.count + 99) / 100;
    while (reached < rank) reached += counts[++bucket];
    summary.*field = MiddleOf(bucket);
  }
  return summary;
}

}  // namespace kernd::telemetry
