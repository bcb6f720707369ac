#include "kernels/reference/random.h"

#include <cmath>
#include <numbers>

namespace kernd::reference {

Uniform::Uniform(std::uint64_t seed, std::uint32_t stream) {
  std::seed_seq sequence{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32), stream};
  random_.seed(sequence);
}

// Box and Muller, Ann. Math. Stat. 29, 1958.
double Normal::Next() {
  if (have_spare_) {
    have_spare_ = false;
    return spare_;
  }
  // The first one is never 0, whose logarithm there is none of.
  const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform_.Next()));
  const double angle = 2.0 * std::numbers::pi * uniform_.Next();
  spare_ = radius * std::sin(angle);
  have_spare_ = true;
  return radius * std::cos(angle);
}

}  // namespace kernd::reference
