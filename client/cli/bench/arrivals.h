// When calls are due in an open loop, where they come whether or not earlier ones have been answered.
#pragma once

#include <cstdint>

#include "absl/time/time.h"
#include "kernels/reference/random.h"

namespace kernd::cli {

enum class ArrivalKind : std::uint8_t {
  kConstant,  // one each 1 / rate
  kPoisson,   // independent of each other, as from many users: gaps are exponentially distributed with mean 1 / rate
};

class Arrivals {
 public:
  // `rate`: calls each second, positive and finite. The same for the same seed.
  Arrivals(ArrivalKind kind, double rate, std::uint64_t seed) : kind_(kind), rate_(rate), uniform_(seed, kStream) {}

  // Of the next call, from the start of the run; never before the last one. The first constant one is due at once, the
  // first Poisson one after a gap like all others.
  absl::Duration Next();

 private:
  static constexpr std::uint32_t kStream = 0xa11;  // apart from those of operands

  ArrivalKind kind_;
  double rate_;
  reference::Uniform uniform_;
  std::int64_t count_ = 0;
  double mean_gaps_ = 0;  // Poisson: time so far, in units of 1 / rate
};

}  // namespace kernd::cli
