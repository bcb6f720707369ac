#include "kernels/reference/problem_case.h"

#include <utility>

#include "kernels/reference/convert.h"
#include "kernels/reference/random.h"

namespace kernd::reference {
namespace {

const void* DataOf(const Elements& elements) {
  return elements.empty() ? nullptr : elements.data();
}

TensorSpec SpecOf(DataType type, Dims shape) {
  return {.dtype = type, .shape = std::move(shape), .strides = {}};
}

// Where each of `batch` sequences begins, and the total: lengths in proportion to 0, 1, 2, ...
std::vector<std::int64_t> RisingOffsets(std::int64_t batch, std::int64_t total) {
  std::vector<std::int64_t> offsets = {0};
  const std::int64_t shares = batch * (batch - 1) / 2;
  for (std::int64_t i = 1, sum = 0; i < batch; ++i) {
    sum += i - 1;
    offsets.push_back(total * sum / shares);
  }
  if (batch > 0) offsets.push_back(total);
  return offsets;
}

}  // namespace

Elements Source::Tensor(const TensorSpec& spec, double size) {
  const bool integer = spec.dtype == DataType::kI8 || spec.dtype == DataType::kI32;
  Elements out(static_cast<std::size_t>(spec.bytes()));
  Normal normal(seed_, streams_++);
  const std::int64_t count = spec.elements();
  for (std::int64_t i = 0; i < count; ++i) {
    Store(spec.dtype, (integer ? 32.0 : 1.0) * size * normal.Next(), out.data(), i);
  }
  return out;
}

Elements Source::Mask(const TensorSpec& spec, double share) {
  Elements out(static_cast<std::size_t>(spec.bytes()));
  Uniform uniform(seed_, streams_++);
  for (std::byte& x : out) x = uniform.Next() < share ? std::byte{1} : std::byte{0};
  return out;
}

std::vector<float> Source::Floats(std::int64_t count, double low, double high) {
  std::vector<float> out(static_cast<std::size_t>(count));
  Uniform uniform(seed_, streams_++);
  for (float& x : out) x = static_cast<float>(low + (high - low) * uniform.Next());
  return out;
}

MatmulArgs MatmulCase::Args() const {
  return {.a = DataOf(a),
          .b = DataOf(b),
          .c = DataOf(c),
          .bias = DataOf(bias),
          .a_scale = static_cast<const float*>(DataOf(a_scale)),
          .b_scale = static_cast<const float*>(DataOf(b_scale))};
}

DataType MatmulCase::OutputType() const {
  return problem.output_dtype == DataType::kInvalid ? DefaultMatmulOutput(problem.a.dtype) : problem.output_dtype;
}

AttentionArgs AttentionCase::Args() const {
  return {.q = DataOf(q), .k = DataOf(k), .v = DataOf(v), .mask = DataOf(mask), .bias = DataOf(bias)};
}

DataType AttentionCase::OutputType() const {
  return problem.output_dtype == DataType::kInvalid ? DefaultAttentionOutput(problem.q.dtype) : problem.output_dtype;
}

MatmulCase MakeMatmul(DataType type, const MatmulSizes& n, Source& source) {
  const auto shape = [&](std::int64_t rows, std::int64_t cols, bool transpose) {
    Dims dims = n.batch;
    dims.push_back(transpose ? cols : rows);
    dims.push_back(transpose ? rows : cols);
    return dims;
  };
  MatmulCase c;
  c.problem.transpose_a = n.transpose_a;
  c.problem.transpose_b = n.transpose_b;
  c.problem.a = SpecOf(type, shape(n.m, n.k, n.transpose_a));
  c.problem.b = SpecOf(type, shape(n.k, n.n, n.transpose_b));
  c.a = source.Tensor(c.problem.a);
  c.b = source.Tensor(c.problem.b);
  return c;
}

AttentionCase MakeAttention(DataType type, AttentionLayout layout, const AttentionSizes& n, Source& source) {
  const auto shape = [&](std::int64_t heads, std::int64_t rows, std::int64_t dim) -> Dims {
    switch (layout) {
      case AttentionLayout::kBHLD: return {n.batch, heads, rows, dim};
      case AttentionLayout::kBLHD: return {n.batch, rows, heads, dim};
      case AttentionLayout::kPacked: break;
    }
    return {n.batch * rows, heads, dim};
  };
  AttentionCase c;
  c.problem.layout = layout;
  c.problem.want_lse = true;
  c.problem.q = SpecOf(type, shape(n.q_heads, n.q_rows, n.head_dim));
  c.problem.k = SpecOf(type, shape(n.kv_heads, n.kv_rows, n.head_dim));
  c.problem.v = SpecOf(type, shape(n.kv_heads, n.kv_rows, n.v_head_dim));
  c.q = source.Tensor(c.problem.q);
  c.k = source.Tensor(c.problem.k);
  c.v = source.Tensor(c.problem.v);
  if (layout == AttentionLayout::kPacked) {
    c.problem.q_offsets = RisingOffsets(n.batch, n.batch * n.q_rows);
    c.problem.kv_offsets = RisingOffsets(n.batch, n.batch * n.kv_rows);
  }
  return c;
}

}  // namespace kernd::reference
