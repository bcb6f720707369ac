// Shapes without data, and arithmetic on sizes that cannot wrap.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernd/kernels/dtype.h"

namespace kernd {

inline constexpr int kMaxRank = 8;

using Dims = absl::InlinedVector<std::int64_t, 4>;

// Products and sums of sizes; nullopt on overflow of int64 or a negative operand.
std::optional<std::int64_t> CheckedMul(std::int64_t a, std::int64_t b);
std::optional<std::int64_t> CheckedAdd(std::int64_t a, std::int64_t b);
std::optional<std::int64_t> CheckedProduct(absl::Span<const std::int64_t> factors);

// A tensor's element type, shape and, for views, strides. Row-major, little-endian.
struct TensorSpec {
  DataType dtype = DataType::kInvalid;
  Dims shape;
  Dims strides;  // elements; empty: contiguous. The last one is 1.

  int rank() const { return static_cast<int>(shape.size()); }
  // Elements of the shape. Only for specs that CheckSpec accepted.
  std::int64_t elements() const;
  // Bytes of a contiguous tensor of this shape. Only for specs that CheckSpec accepted.
  std::int64_t bytes() const;
  // The given strides, or those of a contiguous tensor (a dimension of size 0 counts as 1).
  Dims EffectiveStrides() const;
  // "F16[2,8,128,64]"
  std::string ToString() const;

  bool operator==(const TensorSpec&) const = default;
};

// "[2,8,128,64]"
std::string ToString(absl::Span<const std::int64_t> dims);

// Accepts a known dtype, at most kMaxRank dimensions, none negative, a size in bytes below 2^63, and strides that are
// empty or as many as dimensions, not negative, with the last one 1 and a span below 2^63 bytes.
// INVALID_ARGUMENT otherwise, naming `field`.
absl::Status CheckSpec(std::string_view field, const TensorSpec& spec);

}  // namespace kernd
