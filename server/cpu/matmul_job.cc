#include "server/cpu/matmul_job.h"

#include <optional>

namespace kernd::cpu {
namespace {

TileScale ScaleOf(const std::optional<ScaleSpec>& spec, const float* values) {
  TileScale scale;
  if (!spec) return scale;
  scale.values = values;
  if (spec->kind == ScaleSpec::Kind::kRow) scale.row_stride = 1;
  if (spec->kind == ScaleSpec::Kind::kBlock) {
    scale.along_k = true;
    scale.row_stride = spec->spec.EffectiveStrides()[0];
    scale.k_stride = 1;
    scale.block_rows = spec->block_rows;
    scale.block_k = spec->block_k;
  }
  return scale;
}

}  // namespace

bool HasBlockScales(const MatmulProblem& p) {
  return (p.a_scale && p.a_scale->kind == ScaleSpec::Kind::kBlock) ||
         (p.b_scale && p.b_scale->kind == ScaleSpec::Kind::kBlock);
}

bool HasNoProduct(const MatmulProblem& p, const MatmulGeometry& g) {
  return g.k == 0 || p.alpha == 0;
}

TileSum SumOf(const MatmulProblem& p) {
  if (p.a.dtype == DataType::kF64) return TileSum::kF64;
  return p.a.dtype == DataType::kI8 && !HasBlockScales(p) ? TileSum::kI32 : TileSum::kF32;
}

MatmulJob JobOf(const MatmulProblem& p, const MatmulGeometry& g, const MatmulArgs& args) {
  MatmulJob job;
  job.sum = SumOf(p);
  job.a_type = p.a.dtype;
  job.b_type = p.b.dtype;
  job.d_type = g.output_dtype;
  job.transpose_a = p.transpose_a;
  job.transpose_b = p.transpose_b;
  job.k = HasNoProduct(p, g) ? 0 : g.k;
  job.n = g.n;
  job.lda = g.lda;
  job.ldb = g.ldb;
  job.ldc = g.ldc;
  job.beta = p.beta;
  if (p.bias) {
    job.bias = args.bias;
    job.bias_type = p.bias->dtype;
  }
  if (job.k != 0) {
    job.alpha = p.alpha;
    job.a_scale = ScaleOf(p.a_scale, args.a_scale);
    job.b_scale = ScaleOf(p.b_scale, args.b_scale);
  }
  job.activation = static_cast<TileActivation>(p.activation);
  return job;
}
static_assert(static_cast<int>(TileActivation::kSilu) == static_cast<int>(Activation::kSilu));

MatmulTile ItemOf(const MatmulProblem& p, const MatmulGeometry& g, const MatmulArgs& args, std::int64_t index) {
  MatmulTile tile;
  if (!HasNoProduct(p, g)) {
    tile.a = Offset(args.a, g.AOffset(index), p.a.dtype);
    tile.b = Offset(args.b, g.BOffset(index), p.b.dtype);
  }
  if (p.beta != 0) tile.c = Offset(args.c, g.COffset(index), g.output_dtype);
  tile.d = static_cast<char*>(args.d) + index * g.m * g.n * ElementBytes(g.output_dtype);
  return tile;
}

}  // namespace kernd::cpu
