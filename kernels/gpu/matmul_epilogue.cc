#include "kernels/gpu/matmul_epilogue.h"

#include <cmath>
#include <limits>

namespace kernd {
namespace {

bool FitsFloat(double x) {
  const double size = std::abs(x);
  return size == 0 || (size >= std::numeric_limits<float>::min() && size <= std::numeric_limits<float>::max());
}

}  // namespace

MatmulEpilogue MatmulEpilogueOf(const MatmulProblem& p, const MatmulGeometry& g, const MatmulArgs& args) {
  MatmulEpilogue e{.output = g.output_dtype,
                   .activation = p.activation,
                   .wide = g.output_dtype == DataType::kF64 || g.output_dtype == DataType::kI32 ||
                           !FitsFloat(p.alpha) || !FitsFloat(p.beta),
                   .alpha = p.alpha,
                   .beta = p.beta,
                   .m = g.m,
                   .n = g.n,
                   .batch = g.batch,
                   .d = args.d};
  if (p.beta != 0) {
    e.c = args.c;
    e.ldc = g.ldc;
    e.c_batch = BatchStridesOf(g.batch_shape, g.c_batch_strides);
  }
  if (p.bias) {
    e.bias = args.bias;
    e.bias_type = p.bias->dtype;
  }
  if (!HasNoProduct(p, g) && !HasBlockScales(p)) {
    const auto stride = [](const ScaleSpec& s) { return s.kind == ScaleSpec::Kind::kRow ? 1 : 0; };
    if (p.a_scale) {
      e.a_scale = args.a_scale;
      e.a_scale_stride = stride(*p.a_scale);
    }
    if (p.b_scale) {
      e.b_scale = args.b_scale;
      e.b_scale_stride = stride(*p.b_scale);
    }
  }
  e.plain = e.alpha == 1 && p.beta == 0 && !p.bias && e.a_scale == nullptr && e.b_scale == nullptr &&
            (e.activation == Activation::kNone || e.activation == Activation::kRelu);
  return e;
}

}  // namespace kernd
