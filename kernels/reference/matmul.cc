#include "kernels/reference/matmul.h"

#include <cmath>
#include <cstdint>
#include <vector>

#include "kernd/kernels/error.h"
#include "kernels/reference/convert.h"

namespace kernd::reference {
namespace {

// Elements from the start of `spec` to its matrix for `batch_index`, an index over `batch` (the dimensions of D before
// its last two). Dimensions align at the right; one of size 1 repeats.
std::int64_t MatrixOffset(const TensorSpec& spec, const Dims& batch, std::int64_t batch_index) {
  const Dims strides = spec.EffectiveStrides();
  std::int64_t offset = 0;
  for (int from_right = 1; from_right <= static_cast<int>(batch.size()); ++from_right) {
    const std::int64_t size = batch[batch.size() - from_right];
    const std::int64_t at = batch_index % size;
    batch_index /= size;
    const int own = spec.rank() - 2 - from_right;
    if (own >= 0 && spec.shape[own] != 1) offset += at * strides[own];
  }
  return offset;
}

// A matrix of doubles, row-major.
struct Matrix {
  std::int64_t rows = 0, cols = 0;
  std::vector<double> data;

  double* row(std::int64_t i) { return data.data() + i * cols; }
  const double* row(std::int64_t i) const { return data.data() + i * cols; }
};

// The matrix that starts `offset` elements into a tensor, transposed if asked for.
Matrix Read(const TensorSpec& spec, const void* data, std::int64_t offset, bool transpose) {
  const std::int64_t stored_rows = spec.shape[spec.rank() - 2], stored_cols = spec.shape[spec.rank() - 1];
  const std::int64_t row_stride = spec.EffectiveStrides()[spec.rank() - 2];
  Matrix m{.rows = transpose ? stored_cols : stored_rows, .cols = transpose ? stored_rows : stored_cols};
  m.data.resize(m.rows * m.cols);
  for (std::int64_t i = 0; i < stored_rows; ++i) {
    for (std::int64_t j = 0; j < stored_cols; ++j) {
      const double x = Load(spec.dtype, data, offset + i * row_stride + j);
      (transpose ? m.row(j)[i] : m.row(i)[j]) = x;
    }
  }
  return m;
}

// The factor of element (r, k) of an operand whose scales are `scale`; 1 without.
double ScaleAt(const std::optional<ScaleSpec>& scale, const float* data, std::int64_t r, std::int64_t k) {
  if (!scale) return 1.0;
  switch (scale->kind) {
    case ScaleSpec::Kind::kTensor: return data[0];
    case ScaleSpec::Kind::kRow: return data[r];
    case ScaleSpec::Kind::kBlock:
      return data[r / scale->block_rows * scale->spec.EffectiveStrides()[0] + k / scale->block_k];
  }
  return 1.0;
}

bool IsBlock(const std::optional<ScaleSpec>& scale) {
  return scale && scale->kind == ScaleSpec::Kind::kBlock;
}

double Activate(Activation activation, double x) {
  switch (activation) {
    case Activation::kNone: return x;
    case Activation::kRelu: return x < 0 ? 0.0 : x;  // in this order a NaN stays
    case Activation::kGelu: return 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
    case Activation::kSilu: return x / (1.0 + std::exp(-x));
  }
  return x;
}

// An exact sum of I8 products as int32 accumulation leaves it.
double WrapToInt32(double exact) {
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(static_cast<std::int64_t>(exact)));
}

}  // namespace

absl::StatusOr<Values> MatmulValues(const MatmulProblem& p, const MatmulArgs& args) {
  const absl::StatusOr<MatmulGeometry> geometry = Validate(p);
  KERND_RETURN_IF_ERROR(geometry.status());
  const Dims& d_shape = geometry->d.shape;
  const std::int64_t m = d_shape[d_shape.size() - 2], n = d_shape[d_shape.size() - 1];
  const Dims batch(d_shape.begin(), d_shape.end() - 2);
  const std::int64_t total = geometry->d.elements();
  if (total == 0) return Values();

  const bool wraps = p.a.dtype == DataType::kI8 && !IsBlock(p.a_scale) && !IsBlock(p.b_scale);
  std::vector<double> bias(n, 0.0);
  if (p.bias) bias = LoadAll(p.bias->dtype, args.bias, n);

  Values out{.value = std::vector<double>(total), .magnitude = std::vector<double>(total)};
  for (std::int64_t item = 0; item < total / (m * n); ++item) {
    // alpha = 0 reads neither A nor B: both are left empty, and K is 0.
    Matrix a{.rows = m}, b{.cols = n};
    if (p.alpha != 0) {
      a = Read(p.a, args.a, MatrixOffset(p.a, batch, item), p.transpose_a);
      b = Read(p.b, args.b, MatrixOffset(p.b, batch, item), p.transpose_b);
    }
    const std::int64_t k_size = a.cols;
    const std::int64_t c_offset = p.beta != 0 ? MatrixOffset(*p.c, batch, item) : 0;
    const std::int64_t c_stride = p.beta != 0 ? p.c->EffectiveStrides()[p.c->rank() - 2] : 0;

    // Threads pay only for problems that take a while; each row is one thread's, so results do not depend on them.
    const bool large = static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k_size) > 1e7;
#pragma omp parallel for schedule(dynamic) if (large)
    for (std::int64_t i = 0; i < m; ++i) {
      double* value = out.value.data() + (item * m + i) * n;
      double* magnitude = out.magnitude.data() + (item * m + i) * n;
      const auto add_products = [&](std::int64_t k, auto scale_of_column) {
        const double x = a.row(i)[k];
        const double* y = b.row(k);
        for (std::int64_t j = 0; j < n; ++j) {
          const double term = x * y[j] * scale_of_column(j);
          value[j] += term;
          magnitude[j] += std::abs(term);
        }
      };
      // Scales that change along K belong inside the sum; the others wait, so that I8 sums are whole numbers (exact in
      // a double up to K = 2^39).
      for (std::int64_t k = 0; k < k_size; ++k) {
        if (IsBlock(p.a_scale) || IsBlock(p.b_scale)) {
          const double a_scale = ScaleAt(p.a_scale, args.a_scale, i, k);
          add_products(k, [&](std::int64_t j) { return a_scale * ScaleAt(p.b_scale, args.b_scale, j, k); });
        } else {
          add_products(k, [](std::int64_t) { return 1.0; });
        }
      }
      for (std::int64_t j = 0; j < n; ++j) {
        double factor = p.alpha;
        if (!IsBlock(p.a_scale) && !IsBlock(p.b_scale)) {
          factor *= ScaleAt(p.a_scale, args.a_scale, i, 0) * ScaleAt(p.b_scale, args.b_scale, j, 0);
        }
        // Not even a NaN scale counts without a product that it belongs to.
        double x = k_size == 0 ? 0.0 : factor * (wraps ? WrapToInt32(value[j]) : value[j]);
        double size = k_size == 0 ? 0.0 : std::abs(factor) * magnitude[j];
        if (p.beta != 0) {
          const double c = p.beta * Load(p.c->dtype, args.c, c_offset + i * c_stride + j);
          x += c;
          size += std::abs(c);
        }
        if (p.bias) {
          x += bias[j];
          size += std::abs(bias[j]);
        }
        value[j] = Activate(p.activation, x);
        magnitude[j] = size;
      }
    }
  }
  return out;
}

absl::Status Matmul(const MatmulProblem& p, const MatmulArgs& args) {
  KERND_ASSIGN_OR_RETURN(const Values d, MatmulValues(p, args));
  const DataType type = p.output_dtype == DataType::kInvalid ? DefaultMatmulOutput(p.a.dtype) : p.output_dtype;
  for (std::size_t i = 0; i < d.value.size(); ++i) Store(type, d.value[i], args.d, static_cast<std::int64_t>(i));
  return absl::OkStatus();
}

}  // namespace kernd::reference
