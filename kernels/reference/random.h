// Numbers that are the same for the same seed on every machine with IEEE doubles and the same libm: the distributions
// of the standard library may differ from one to the next.
#pragma once

#include <cstdint>
#include <random>

namespace kernd::reference {

// Uniform in [0, 1), 53 bits.
class Uniform {
 public:
  // Streams of one seed are independent.
  explicit Uniform(std::uint64_t seed, std::uint32_t stream = 0);
  double Next() { return static_cast<double>(random_() >> 11) * 0x1p-53; }

 private:
  std::mt19937_64 random_;
};

// Mean 0, variance 1.
class Normal {
 public:
  explicit Normal(std::uint64_t seed, std::uint32_t stream = 0) : uniform_(seed, stream) {}
  double Next();

 private:
  Uniform uniform_;
  double spare_ = 0;
  bool have_spare_ = false;
};

}  // namespace kernd::reference
