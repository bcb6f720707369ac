// What happens to the sums of a matmul: D = act(alpha * scales * sums + beta * C + bias), rounded once. The numbers
// that a kernel needs for it, made on the host; the arithmetic is in matmul_epilogue.cuh.
#pragma once

#include <cstdint>
#include <optional>

#include "kernd/kernels/args.h"
#include "kernd/kernels/matmul.h"

namespace kernd {

inline constexpr int kMaxBatchRank = kMaxRank - 2;

// Where batch item i of an operand starts, for i row-major in `shape`. Passed to kernels by value.
struct BatchStrides {
  int rank = 0;
  std::int64_t shape[kMaxBatchRank] = {};
  std::int64_t strides[kMaxBatchRank] = {};  // elements
};

// Shape and strides of equal length, at most kMaxBatchRank.
inline BatchStrides BatchStridesOf(const Dims& shape, const Dims& strides) {
  BatchStrides out{.rank = static_cast<int>(shape.size())};
  for (int i = 0; i < out.rank; ++i) {
    out.shape[i] = shape[i];
    out.strides[i] = strides.empty() ? 0 : strides[i];  // an operand that is absent has none
  }
  return out;
}

struct MatmulEpilogue {
  DataType output = DataType::kInvalid, bias_type = DataType::kInvalid;
  Activation activation = Activation::kNone;
  // In doubles: F64 and I32 results, and factors that a float cannot hold.
  bool wide = false;
  // Nothing to scale or add: sums are results but for relu and rounding.
  bool plain = false;
  double alpha = 1, beta = 0;
  std::int64_t m = 0, n = 0, batch = 0;
  const void* c = nullptr;     // null: beta is 0
  const void* bias = nullptr;  // null: none
  std::int64_t ldc = 0;
  BatchStrides c_batch;
  // One factor for each row (column) at this stride, 0 for a single one; null: 1. Block scales are not among them.
  const float *a_scale = nullptr, *b_scale = nullptr;
  std::int64_t a_scale_stride = 0, b_scale_stride = 0;
  void* d = nullptr;  // contiguous [batch, M, N]
};

// Scales belong to the sum when either of them changes along K.
inline bool HasBlockScales(const MatmulProblem& p) {
  const auto block = [](const std::optional<ScaleSpec>& s) { return s && s->kind == ScaleSpec::Kind::kBlock; };
  return block(p.a_scale) || block(p.b_scale);
}

// The sums are zero, whatever A, B and their scales hold.
inline bool HasNoProduct(const MatmulProblem& p, const MatmulGeometry& g) {
  return p.alpha == 0 || g.k == 0;
}

MatmulEpilogue MatmulEpilogueOf(const MatmulProblem& problem, const MatmulGeometry& geometry, const MatmulArgs& args);

}  // namespace kernd
