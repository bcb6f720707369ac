#include "kernd/kernels/matmul.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernd/kernels/error.h"

namespace kernd {
namespace {

std::string ToText(DataType type) {
  return std::string(Name(type));
}

absl::Status CheckOperandTypes(DataType a, DataType b) {
  const auto supported = [](DataType t) {
    return t == DataType::kF16 || t == DataType::kBF16 || t == DataType::kF32 || t == DataType::kF64 ||
           t == DataType::kI8 || IsFloat8(t);
  };
  constexpr std::string_view kRule = "matmul takes F16, BF16, F32, F64, I8, F8E4M3 and F8E5M2";
  if (!supported(a)) return UnsupportedField("matmul.a.dtype", Name(a), kRule);
  if (!supported(b)) return UnsupportedField("matmul.b.dtype", Name(b), kRule);
  if (a != b && !(IsFloat8(a) && IsFloat8(b))) {
    return InvalidField("matmul.b.dtype", Name(b), absl::StrCat("must be A's, ", ToText(a)));
  }
  return absl::OkStatus();
}

absl::Status CheckOutputType(DataType operand, DataType output, bool scaled) {
  const auto one_of = [&](std::initializer_list<DataType> types) {
    return std::find(types.begin(), types.end(), output) != types.end();
  };
  bool ok = false;
  if (operand == DataType::kI8) {
    ok = one_of({DataType::kI32, DataType::kF32, DataType::kF16, DataType::kBF16});
    if (output == DataType::kI32 && scaled) {
      return InvalidField("matmul.output_dtype", "I32", "a product with scales needs F32, F16 or BF16");
    }
  } else if (IsFloat8(operand)) {
    ok = one_of({DataType::kBF16, DataType::kF16, DataType::kF32});
  } else if (operand == DataType::kF64) {
    ok = output == DataType::kF64;
  } else {
    ok = output == operand || output == DataType::kF32;
  }
  if (!ok) {
    return UnsupportedField("matmul.output_dtype", Name(output),
                            absl::StrCat("not offered for operands of ", ToText(operand)));
  }
  return absl::OkStatus();
}

// `rows` and `k` of the operand that the scales belong to.
absl::Status CheckScale(const std::string& field, const std::optional<ScaleSpec>& scale, DataType operand,
                        std::int64_t rows, std::int64_t k) {
  if (!scale) return absl::OkStatus();
  if (ElementBytes(operand) != 1) {
    return InvalidField(field, "set", absl::StrCat("only 8-bit operands take scales, not ", ToText(operand)));
  }
  KERND_RETURN_IF_ERROR(CheckSpec(field, scale->spec));
  if (scale->spec.dtype != DataType::kF32) {
    return InvalidField(field + ".dtype", Name(scale->spec.dtype), "scales are F32");
  }
  const std::string shape = ToString(scale->spec.shape);
  switch (scale->kind) {
    case ScaleSpec::Kind::kTensor:
      if (scale->spec.rank() > 1 || scale->spec.elements() != 1) {
        return InvalidField(field + ".shape", shape, "a tensor-wide scale is [] or [1]");
      }
      break;
    case ScaleSpec::Kind::kRow:
      if (scale->spec.shape != Dims{rows}) {
        return InvalidField(field + ".shape", shape, absl::StrCat("one scale a row: [", rows, "]"));
      }
      break;
    case ScaleSpec::Kind::kBlock: {
      if (scale->block_rows <= 0 || scale->block_k <= 0) {
        return InvalidField(field + ".block", ToString({scale->block_rows, scale->block_k}),
                            "block sizes are positive");
      }
      // Not (size + block - 1) / block, which can wrap.
      const auto blocks = [](std::int64_t size, std::int64_t block) {
        return size / block + (size % block != 0 ? 1 : 0);
      };
      const Dims expected = {blocks(rows, scale->block_rows), blocks(k, scale->block_k)};
      if (scale->spec.shape != expected) {
        return InvalidField(field + ".shape", shape, "one scale a block: " + ToString(expected));
      }
      break;
    }
  }
  return absl::OkStatus();
}

// Numpy broadcasting of the dimensions before the last two. nullopt: they do not match.
std::optional<Dims> BroadcastBatch(const TensorSpec& a, const TensorSpec& b) {
  const int rank = std::max(a.rank(), b.rank()) - 2;
  Dims result(rank);
  for (int i = 0; i < rank; ++i) {
    const int ai = a.rank() - 3 - i, bi = b.rank() - 3 - i;
    const std::int64_t ad = ai >= 0 ? a.shape[ai] : 1, bd = bi >= 0 ? b.shape[bi] : 1;
    if (ad != bd && ad != 1 && bd != 1) return std::nullopt;
    result[rank - 1 - i] = ad == 1 ? bd : ad;
  }
  return result;
}

// Strides of `spec` over the dimensions of `batch`, 0 where it broadcasts. Its own batch dimensions must match.
Dims BatchStrides(const TensorSpec& spec, const Dims& batch) {
  const Dims strides = spec.EffectiveStrides();
  Dims result(batch.size(), 0);
  const int own = spec.rank() - 2;
  for (int i = 0; i < own; ++i) {
    const int at = static_cast<int>(batch.size()) - own + i;
    result[at] = spec.shape[i] == 1 ? 0 : strides[i];
  }
  return result;
}

bool BatchFits(const TensorSpec& spec, const Dims& batch) {
  const int own = spec.rank() - 2;
  if (own > static_cast<int>(batch.size())) return false;
  for (int i = 0; i < own; ++i) {
    const std::int64_t d = spec.shape[i];
    if (d != 1 && d != batch[batch.size() - own + i]) return false;
  }
  return true;
}

}  // namespace

std::int64_t MatmulGeometry::Offset(std::int64_t index, const Dims& strides) const {
  std::int64_t offset = 0;
  for (int i = static_cast<int>(batch_shape.size()) - 1; i >= 0; --i) {
    offset += index % batch_shape[i] * strides[i];
    index /= batch_shape[i];
  }
  return offset;
}

DataType DefaultMatmulOutput(DataType operand) {
  if (IsFloat8(operand)) return DataType::kBF16;
  return operand == DataType::kI8 ? DataType::kI32 : operand;
}

absl::StatusOr<MatmulGeometry> Validate(const MatmulProblem& p) {
  KERND_RETURN_IF_ERROR(CheckSpec("matmul.a", p.a));
  KERND_RETURN_IF_ERROR(CheckSpec("matmul.b", p.b));
  if (p.a.rank() < 2) return InvalidField("matmul.a.shape", ToString(p.a.shape), "at least two dimensions");
  if (p.b.rank() < 2) return InvalidField("matmul.b.shape", ToString(p.b.shape), "at least two dimensions");
  KERND_RETURN_IF_ERROR(CheckOperandTypes(p.a.dtype, p.b.dtype));

  MatmulGeometry g;
  const std::int64_t a_rows = p.a.shape[p.a.rank() - 2], a_cols = p.a.shape[p.a.rank() - 1];
  const std::int64_t b_rows = p.b.shape[p.b.rank() - 2], b_cols = p.b.shape[p.b.rank() - 1];
  g.m = p.transpose_a ? a_cols : a_rows;
  g.k = p.transpose_a ? a_rows : a_cols;
  g.n = p.transpose_b ? b_rows : b_cols;
  const std::int64_t b_k = p.transpose_b ? b_cols : b_rows;
  if (b_k != g.k) {
    return InvalidField("matmul.b.shape", ToString(p.b.shape),
                        absl::StrCat("its K is ", b_k, " and A's, of ", ToString(p.a.shape), ", is ", g.k));
  }
  const std::optional<Dims> batch = BroadcastBatch(p.a, p.b);
  if (!batch) {
    return InvalidField("matmul.b.shape", ToString(p.b.shape),
                        "its batch dimensions must broadcast with A's, " + ToString(p.a.shape));
  }
  g.batch_shape = *batch;
  g.batch = CheckedProduct(g.batch_shape).value_or(-1);
  g.output_dtype = p.output_dtype == DataType::kInvalid ? DefaultMatmulOutput(p.a.dtype) : p.output_dtype;
  KERND_RETURN_IF_ERROR(CheckOutputType(p.a.dtype, g.output_dtype, p.a_scale || p.b_scale));

  g.d.dtype = g.output_dtype;
  g.d.shape = g.batch_shape;
  g.d.shape.push_back(g.m);
  g.d.shape.push_back(g.n);
  if (g.batch < 0 || !CheckSpec("matmul.d", g.d).ok()) {
    return InvalidField("matmul.d.shape", ToString(g.d.shape), "the result must be below 2^63 bytes");
  }

  if (!std::isfinite(p.alpha)) return InvalidField("matmul.alpha", absl::StrCat(p.alpha), "must be finite");
  if (!std::isfinite(p.beta)) return InvalidField("matmul.beta", absl::StrCat(p.beta), "must be finite");
  if (p.numerics == Numerics::kTf32 && p.a.dtype != DataType::kF32) {
    return InvalidField("matmul.numerics", "TF32", "only F32 operands can be rounded to TF32");
  }

  if (p.c) {
    KERND_RETURN_IF_ERROR(CheckSpec("matmul.c", *p.c));
    if (p.c->dtype != g.output_dtype) {
      return InvalidField("matmul.c.dtype", Name(p.c->dtype),
                          absl::StrCat("must be the result's, ", ToText(g.output_dtype)));
    }
    const int rank = p.c->rank();
    if (rank < 2 || p.c->shape[rank - 2] != g.m || p.c->shape[rank - 1] != g.n || !BatchFits(*p.c, g.batch_shape)) {
      return InvalidField("matmul.c.shape", ToString(p.c->shape),
                          "must broadcast to the result's " + ToString(g.d.shape));
    }
    g.c_batch_strides = BatchStrides(*p.c, g.batch_shape);
    g.ldc = p.c->EffectiveStrides()[rank - 2];
  } else if (p.beta != 0) {
    return InvalidField("matmul.c", "absent", absl::StrCat("needed, as beta is ", p.beta));
  }
  if (p.bias) {
    KERND_RETURN_IF_ERROR(CheckSpec("matmul.bias", *p.bias));
    if (p.bias->dtype != g.output_dtype && p.bias->dtype != DataType::kF32) {
      return InvalidField("matmul.bias.dtype", Name(p.bias->dtype),
                          absl::StrCat("must be F32 or the result's, ", ToText(g.output_dtype)));
    }
    if (p.bias->shape != Dims{g.n}) {
      return InvalidField("matmul.bias.shape", ToString(p.bias->shape), absl::StrCat("must be [N], [", g.n, "]"));
    }
  }
  KERND_RETURN_IF_ERROR(CheckScale("matmul.a_scale", p.a_scale, p.a.dtype, g.m, g.k));
  KERND_RETURN_IF_ERROR(CheckScale("matmul.b_scale", p.b_scale, p.b.dtype, g.n, g.k));

  g.a_batch_strides = BatchStrides(p.a, g.batch_shape);
  g.b_batch_strides = BatchStrides(p.b, g.batch_shape);
  g.lda = p.a.EffectiveStrides()[p.a.rank() - 2];
  g.ldb = p.b.EffectiveStrides()[p.b.rank() - 2];
  return g;
}

std::string_view Name(Activation activation) {
  switch (activation) {
    case Activation::kNone: return "none";
    case Activation::kRelu: return "relu";
    case Activation::kGelu: return "gelu";
    case Activation::kSilu: return "silu";
  }
  return "invalid";
}

std::string_view Name(Numerics numerics) {
  switch (numerics) {
    case Numerics::kDefault: return "default";
    case Numerics::kTf32: return "tf32";
    case Numerics::kBatchInvariant: return "batch_invariant";
  }
  return "invalid";
}

}  // namespace kernd
