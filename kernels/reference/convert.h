// Every element type to double and back, by the definition of the formats. Slow and plain on purpose: kernels convert
// with their hardware, and are compared with this.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kernd/kernels/dtype.h"

namespace kernd::reference {

// Element `index` of the buffer `data`, which need not be aligned. Exact, but for an I64 beyond 2^53 (rounded to the
// nearest double). BOOL gives 0 or 1. kInvalid gives NaN.
double Load(DataType type, const void* data, std::int64_t index);

// Stores `value` as element `index`.
// * Floating types round to nearest, ties to even, through the subnormals. NaN stays NaN (quiet, with its sign).
//   Past the largest finite value: infinity; F8E4M3 has none and gives NaN (the non-saturating mode of the OCP FP8
//   specification), 448 being the largest, so that 464 still rounds to 448.
// * Integers round half to even and saturate; NaN gives 0.
// * BOOL stores whether the value is not zero.
void Store(DataType type, double value, void* data, std::int64_t index);

// `value` as the type can hold it: Load after Store.
double Round(DataType type, double value);

// `count` elements from `data` on.
std::vector<double> LoadAll(DataType type, const void* data, std::int64_t count);

// The bytes of `values` as a contiguous tensor of `type`.
std::vector<std::byte> StoreAll(DataType type, absl::Span<const double> values);

}  // namespace kernd::reference
