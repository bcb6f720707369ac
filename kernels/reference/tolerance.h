// How far a correct kernel may be from the reference, and whether one is.
//
// A kernel computes some x near the exact e and stores Round(x). The bounds below are on |x - e|; storing needs none,
// as rounding is monotone: an element passes when it lies in [Round(e - bound), Round(e + bound)]. So a bound of 0 asks
// for the correctly rounded value, overflow to infinity is judged like every other value, and NaN must meet NaN.
//
// The bounds are those of rounding error analysis: a sum of n terms, each step with relative error u, is off by at most
// c(n) * u * sum |terms|, where c(n) = n - 1 in the worst case and about sqrt(n) for errors of random sign (N. J.
// Higham, Accuracy and Stability of Numerical Algorithms, 3.1; Higham and Mary, SIAM J. Sci. Comput. 41, 2019). We take
//
//   Growth(n) = 8 + 4 sqrt(n) + n / 8
//
// for the random part with room to spare, for the scalar operations around the sum, and, in n / 8, for tensor cores,
// which cut off instead of rounding, once for each 8 or more terms. u is 2^-24 (F32 accumulation, whatever the
// operands' dtype) or 2^-53 (F64). On top come the roundings that a dtype's fastest correct kernels make of their own:
//
//   matmul, TF32     2^-10   each operand rounded to 11 bits
//   matmul, F8       2^-10   tensor cores add F8 products in about 14 bits before F32 takes over (an H200's were seen
//                            to be off by a little more than 2^-11)
//   attention        P, the probabilities, rounded to the operands' dtype before P V:
//     F16            2^-11   and 2^-24 of the largest |O| for those that become subnormal
//     BF16           2^-8
//     F8             2^-4    and 2^-10 of the largest |O|; Q K and P V as in matmul
//
// In attention an error d of the logits changes weights by a factor of up to exp(2 d), and LSE by d. Where logits are
// so large that their rounding alone decides the weights, as with a finite bias near the end of F32, O's bound is
// infinite.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "kernd/kernels/attention.h"
#include "kernd/kernels/matmul.h"
#include "kernels/reference/attention.h"
#include "kernels/reference/values.h"

namespace kernd::reference {

// One bound for each element of D, O or LSE. Never negative or NaN; 0 where the magnitude is not finite: such values
// are to be met exactly. An infinite bound takes everything but NaN.
std::vector<double> MatmulBounds(const MatmulProblem& problem, const Values& d);
std::vector<double> OutputBounds(const AttentionProblem& problem, const AttentionResult& result);
std::vector<double> LseBounds(const AttentionProblem& problem, const AttentionResult& result);

struct Comparison {
  std::int64_t count = 0;
  std::int64_t mismatches = 0;
  std::int64_t first_mismatch = -1;  // index, or -1
  double first_actual = 0, first_expected = 0, first_bound = 0;
  // Over the elements where both values are finite; `max_rel` is max_abs over the largest |expected|.
  double max_abs = 0, max_rel = 0, mean_abs = 0;

  bool ok() const { return mismatches == 0; }
  // "3 of 4096 differ, first [17]: 0.5, expected 0.25 +- 0.001; max 0.25 (2.1e-1 relative), mean 1.0e-4"
  std::string ToString() const;
};

// `actual` is a contiguous tensor of `dtype` with as many elements as `expected` and `bounds`.
Comparison Compare(DataType dtype, const void* actual, absl::Span<const double> expected,
                   absl::Span<const double> bounds);

}  // namespace kernd::reference
