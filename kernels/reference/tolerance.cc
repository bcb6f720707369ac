#include "kernels/reference/tolerance.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_format.h"
#include "kernels/reference/convert.h"

namespace kernd::reference {
namespace {

constexpr double kUnit32 = 0x1p-24, kUnit64 = 0x1p-53;
constexpr double kTf32 = 0x1p-10, kFloat8Sum = 0x1p-10;
constexpr double kTiny32 = 0x1p-126;  // an F32 result that a GPU may flush to zero
constexpr double kTiny64 = 0x1p-1074;

double Growth(std::int64_t terms) {
  const double n = static_cast<double>(terms);
  return 8.0 + 4.0 * std::sqrt(n) + n / 8.0;
}

double Finite(double bound) {
  return std::isfinite(bound) ? bound : 0.0;
}

// What rounding P to the operands' dtype costs: relative to the sum of |p v|, and in all, relative to the largest O.
struct ProbabilityError {
  double relative, absolute;
};

ProbabilityError ProbabilityErrorOf(DataType operand) {
  if (operand == DataType::kF16) return {0x1p-11, 0x1p-24};
  if (operand == DataType::kBF16) return {0x1p-8, 0};
  if (IsFloat8(operand)) return {0x1p-4, 0x1p-10};
  return {0, 0};
}

// The most keys that a row may see.
std::int64_t Keys(const AttentionProblem& p) {
  switch (p.layout) {
    case AttentionLayout::kBHLD: return p.k.shape[2];
    case AttentionLayout::kBLHD: return p.k.shape[1];
    case AttentionLayout::kPacked: return p.k.shape[0];
  }
  return 0;
}

// Absolute error of a row's logits, from the magnitude of the largest.
double LogitError(const AttentionProblem& p, double magnitude) {
  const double sum = Growth(p.q.shape.back()) * kUnit32 + (IsFloat8(p.q.dtype) ? kFloat8Sum : 0);
  return Finite(sum * magnitude);
}

// Where LSE keeps row `row` of O, a row being Dv elements.
std::int64_t LseIndex(const AttentionProblem& p, std::int64_t row) {
  if (p.layout == AttentionLayout::kBHLD) return row;
  const bool packed = p.layout == AttentionLayout::kPacked;
  const std::int64_t length = p.q.shape[packed ? 0 : 1], heads = p.q.shape[packed ? 1 : 2];
  const std::int64_t head = row % heads, position = row / heads % length, batch = row / heads / length;
  return (batch * heads + head) * length + position;
}

}  // namespace

std::vector<double> MatmulBounds(const MatmulProblem& p, const Values& d) {
  const std::int64_t k = p.a.shape[p.a.rank() - (p.transpose_a ? 2 : 1)];
  const bool integer_result =
      p.a.dtype == DataType::kI8 && (p.output_dtype == DataType::kInvalid || p.output_dtype == DataType::kI32);
  const bool exact = integer_result && p.alpha == 1.0 && p.beta == 0.0 && !p.bias &&
                     (p.activation == Activation::kNone || p.activation == Activation::kRelu);
  if (exact) return std::vector<double>(d.value.size(), 0.0);

  const bool wide = p.a.dtype == DataType::kF64;
  // I8 products are summed without error; what follows is not.
  double relative = p.a.dtype == DataType::kI8 ? Growth(0) * kUnit32 : Growth(k) * (wide ? kUnit64 : kUnit32);
  if (p.a_scale || p.b_scale) relative += Growth(p.a.dtype == DataType::kI8 ? k : 0) * kUnit32;
  if (p.numerics == Numerics::kTf32) relative += kTf32;
  if (IsFloat8(p.a.dtype)) relative += kFloat8Sum;
  // The slopes of gelu and silu stay below 1.13; their own evaluation costs some steps more.
  if (p.activation == Activation::kGelu || p.activation == Activation::kSilu) {
    relative = 1.13 * relative + 8 * (wide ? kUnit64 : kUnit32);
  }
  const double absolute = static_cast<double>(k + 2) * (wide ? kTiny64 : kTiny32);
  std::vector<double> bounds(d.magnitude.size());
  for (std::size_t i = 0; i < bounds.size(); ++i) bounds[i] = Finite(relative * d.magnitude[i] + absolute);
  return bounds;
}

std::vector<double> OutputBounds(const AttentionProblem& p, const AttentionResult& result) {
  const ProbabilityError rounding = ProbabilityErrorOf(p.q.dtype);
  const double sum = 2 * Growth(Keys(p)) * kUnit32 + (IsFloat8(p.q.dtype) ? kFloat8Sum : 0);
  double largest = 0;
  for (const double x : result.o.magnitude) {
    if (std::isfinite(x)) largest = std::max(largest, x);
  }
  const std::int64_t dv = p.v.shape.back();
  std::vector<double> bounds(result.o.magnitude.size());
  for (std::size_t i = 0; i < bounds.size(); ++i) {
    const std::int64_t row = LseIndex(p, static_cast<std::int64_t>(i) / dv);
    const double weights = std::expm1(2 * LogitError(p, result.contest[row]));
    const double size = result.o.magnitude[i];
    // A row without keys is zero to the bit.
    const bool empty = result.lse.value[row] == -std::numeric_limits<double>::infinity();
    if (empty || !std::isfinite(size)) continue;
    bounds[i] = std::isinf(weights)
                    ? weights
                    : (weights + rounding.relative + sum) * size + rounding.absolute * largest + kTiny32;
  }
  return bounds;
}

std::vector<double> LseBounds(const AttentionProblem& p, const AttentionResult& result) {
  std::vector<double> bounds(result.lse.value.size());
  for (std::size_t i = 0; i < bounds.size(); ++i) {
    const double around = (Growth(Keys(p)) + 4 * std::abs(result.lse.value[i])) * kUnit32;
    bounds[i] = Finite(LogitError(p, result.lse.magnitude[i]) + around);
  }
  return bounds;
}

std::string Comparison::ToString() const {
  std::string text;
  if (!ok()) {
    text = absl::StrFormat("%d of %d differ, first [%d]: %.9g, expected %.9g +- %.3g; ", mismatches, count,
                           first_mismatch, first_actual, first_expected, first_bound);
  }
  return text + absl::StrFormat("max %.3g (%.3g relative), mean %.3g", max_abs, max_rel, mean_abs);
}

Comparison Compare(DataType dtype, const void* actual, absl::Span<const double> expected,
                   absl::Span<const double> bounds) {
  Comparison out;
  out.count = static_cast<std::int64_t>(expected.size());
  std::int64_t finite = 0;
  double largest = 0, total = 0;
  for (std::int64_t i = 0; i < out.count; ++i) {
    const double a = Load(dtype, actual, i), e = expected[i];
    const double slack = std::isfinite(e) ? bounds[i] : 0.0;
    const double low = Round(dtype, e - slack), high = Round(dtype, e + slack);
    const bool match = std::isnan(Round(dtype, e)) ? std::isnan(a) : low <= a && a <= high;
    if (!match && out.mismatches++ == 0) {
      out.first_mismatch = i;
      out.first_actual = a;
      out.first_expected = e;
      out.first_bound = slack;
    }
    if (std::isfinite(a) && std::isfinite(e)) {
      ++finite;
      out.max_abs = std::max(out.max_abs, std::abs(a - e));
      total += std::abs(a - e);
      largest = std::max(largest, std::abs(e));
    }
  }
  if (finite > 0) out.mean_abs = total / static_cast<double>(finite);
  if (largest > 0) out.max_rel = out.max_abs / largest;
  return out;
}

}  // namespace kernd::reference
