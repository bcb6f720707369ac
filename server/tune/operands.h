// What candidates are measured with: random operands, as zeros would cost a GPU less power and so less time.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "server/core/program.h"

namespace kernd::tune {

// Of a declared shape's operands.
std::int64_t OperandBytes(const core::Step& step);

// The step with operands in host memory: normally distributed with mean 0 and variance 1 (integers 32 times that), the
// same for the same shape on every machine. About a million elements are drawn for each and repeated, which takes 0.1
// s; that number is prime, so no two rows are alike. RESOURCE_EXHAUSTED: the system has no memory for them.
absl::StatusOr<core::Step> WithNormals(core::Step step);

}  // namespace kernd::tune
