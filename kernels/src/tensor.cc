#include "kernd/kernels/tensor.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernd/kernels/error.h"

namespace kernd {

std::optional<std::int64_t> CheckedMul(std::int64_t a, std::int64_t b) {
  std::int64_t result;
  if (a < 0 || b < 0 || __builtin_mul_overflow(a, b, &result)) return std::nullopt;
  return result;
}

std::optional<std::int64_t> CheckedAdd(std::int64_t a, std::int64_t b) {
  std::int64_t result;
  if (a < 0 || b < 0 || __builtin_add_overflow(a, b, &result)) return std::nullopt;
  return result;
}

std::optional<std::int64_t> CheckedProduct(absl::Span<const std::int64_t> factors) {
  // Zero wins over overflow: [2^62, 4, 0] holds no element.
  if (std::any_of(factors.begin(), factors.end(), [](std::int64_t f) { return f < 0; })) return std::nullopt;
  if (std::find(factors.begin(), factors.end(), 0) != factors.end()) return 0;
  std::int64_t result = 1;
  for (const std::int64_t factor : factors) {
    const std::optional<std::int64_t> next = CheckedMul(result, factor);
    if (!next) return std::nullopt;
    result = *next;
  }
  return result;
}

std::int64_t TensorSpec::elements() const {
  return CheckedProduct(shape).value_or(0);
}

std::int64_t TensorSpec::bytes() const {
  return elements() * ElementBytes(dtype);
}

Dims TensorSpec::EffectiveStrides() const {
  if (!strides.empty()) return strides;
  Dims result(shape.size());
  std::int64_t stride = 1;
  for (int i = rank() - 1; i >= 0; --i) {
    result[i] = stride;
    // An empty tensor's strides are never used; saturate rather than wrap.
    stride = CheckedMul(stride, std::max<std::int64_t>(shape[i], 1)).value_or(stride);
  }
  return result;
}

std::string ToString(absl::Span<const std::int64_t> dims) {
  return absl::StrCat("[", absl::StrJoin(dims, ","), "]");
}

std::string TensorSpec::ToString() const {
  return std::string(Name(dtype)) + kernd::ToString(shape);
}

absl::Status CheckSpec(std::string_view field, const TensorSpec& spec) {
  const std::string path(field);
  if (spec.dtype == DataType::kInvalid) return InvalidField(path + ".dtype", "unset", "must name an element type");
  if (spec.rank() > kMaxRank) {
    return InvalidField(path + ".shape", absl::StrCat(spec.rank(), " dimensions"), "at most 8 dimensions");
  }
  for (const std::int64_t dim : spec.shape) {
    if (dim < 0) return InvalidField(path + ".shape", ToString(spec.shape), "no dimension may be negative");
  }
  const std::optional<std::int64_t> elements = CheckedProduct(spec.shape);
  if (!elements || !CheckedMul(*elements, ElementBytes(spec.dtype))) {
    return InvalidField(path + ".shape", ToString(spec.shape), "the size in bytes must be below 2^63");
  }
  if (spec.strides.empty()) return absl::OkStatus();

  const std::string strides = ToString(spec.strides);
  if (spec.strides.size() != spec.shape.size()) {
    return InvalidField(path + ".strides", strides, "as many strides as dimensions, or none");
  }
  std::optional<std::int64_t> span = ElementBytes(spec.dtype);
  for (int i = 0; i < spec.rank(); ++i) {
    if (spec.strides[i] < 0) return InvalidField(path + ".strides", strides, "no stride may be negative");
    const std::optional<std::int64_t> reach = CheckedMul(spec.strides[i], std::max<std::int64_t>(spec.shape[i] - 1, 0));
    const std::optional<std::int64_t> bytes = reach ? CheckedMul(*reach, ElementBytes(spec.dtype)) : std::nullopt;
    span = span && bytes ? CheckedAdd(*span, *bytes) : std::nullopt;
    if (!span) return InvalidField(path + ".strides", strides, "the view must span less than 2^63 bytes");
  }
  if (spec.strides.back() != 1) return InvalidField(path + ".strides", strides, "the last stride must be 1");
  return absl::OkStatus();
}

}  // namespace kernd
