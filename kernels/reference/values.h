// What the reference says of a result.
#pragma once

#include <vector>

namespace kernd::reference {

// A tensor of results before rounding to its dtype, row-major.
struct Values {
  std::vector<double> value;
  // The size that each value would have if none of its terms cancelled: the sum of their absolute values. Rounding
  // errors of a correct kernel are in proportion to it, not to the value (see tolerance.h).
  std::vector<double> magnitude;
};

}  // namespace kernd::reference
