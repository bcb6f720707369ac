// D = act(alpha * op(A) op(B) + beta * C + bias) in double precision, from the definition in kernd/kernels/matmul.h.
//
// Operands are in host memory. Results are exact up to the rounding of doubles, but for I8, whose products are summed
// as integers: modulo 2^32 as int32 accumulation does, or, with block scales, without wrapping.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernd/kernels/args.h"
#include "kernd/kernels/matmul.h"
#include "kernels/reference/values.h"

namespace kernd::reference {

// D before it is rounded to the output dtype, [batch..., M, N] row-major. `args.d` is not used.
// Errors: those of Validate.
absl::StatusOr<Values> MatmulValues(const MatmulProblem& problem, const MatmulArgs& args);

// The same, rounded to the output dtype and written to `args.d`.
absl::Status Matmul(const MatmulProblem& problem, const MatmulArgs& args);

}  // namespace kernd::reference
