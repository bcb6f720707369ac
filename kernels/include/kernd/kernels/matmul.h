// D = act(alpha * op(A) op(B) + beta * C + bias): the problem, and the rules it must obey.
//
// Dimensions in math order: op(A) [batch..., M, K], op(B) [batch..., K, N], C and D [batch..., M, N], bias [N].
// Batch dimensions broadcast as in numpy. Accumulation is exact for I8 (int32, see below) and F32 or wider otherwise.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernd/kernels/tensor.h"

namespace kernd {

enum class Activation : std::uint8_t {
  kNone,
  kRelu,  // max(x, 0); NaN stays NaN
  kGelu,  // 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
  kSilu,  // x / (1 + exp(-x))
};

enum class Numerics : std::uint8_t {
  kDefault,         // F32 stays F32; a kernel's own order of summation
  kTf32,            // F32 operands may be rounded to TF32; echoed in the reply
  kBatchInvariant,  // the variant depends on N, K and dtype only, never on M or the batch
};

// Scales of an 8-bit operand X [R, Kdim] (A as op(A): R = M; B as op(B) transposed: R = N). The operand's value is
// X[r, k] * scale. F32, shared by the whole batch.
struct ScaleSpec {
  enum class Kind : std::uint8_t {
    kTensor,  // [1] or []: one number
    kRow,     // [R]: one for each row of A or column of B
    kBlock,   // [ceil(R / block_rows), ceil(K / block_k)]
  };
  Kind kind = Kind::kTensor;
  TensorSpec spec;
  std::int64_t block_rows = 0;  // kBlock only, positive
  std::int64_t block_k = 0;     // kBlock only, positive

  bool operator==(const ScaleSpec&) const = default;
};

struct MatmulProblem {
  TensorSpec a;                      // [..., M, K], or [..., K, M] with transpose_a
  TensorSpec b;                      // [..., K, N], or [..., N, K] with transpose_b
  std::optional<TensorSpec> c;       // [..., M, N], output dtype; needed when beta != 0, not read when beta == 0
  std::optional<TensorSpec> bias;    // [N], output dtype or F32
  std::optional<ScaleSpec> a_scale;  // 8-bit operands only
  std::optional<ScaleSpec> b_scale;
  bool transpose_a = false;
  bool transpose_b = false;
  double alpha = 1.0;
  double beta = 0.0;
  Activation activation = Activation::kNone;
  Numerics numerics = Numerics::kDefault;
  DataType output_dtype = DataType::kInvalid;  // kInvalid: DefaultMatmulOutput

  bool operator==(const MatmulProblem&) const = default;
};

// A validated problem as a kernel wants it: one loop over `batch_shape`, strides in elements, 0 where broadcast.
struct MatmulGeometry {
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t batch = 1;                                  // product of batch_shape
  Dims batch_shape;                                        // of D
  Dims a_batch_strides, b_batch_strides, c_batch_strides;  // one for each of batch_shape
  std::int64_t lda = 0, ldb = 0, ldc = 0;                  // row strides of A, B as stored, and of C
  DataType output_dtype = DataType::kInvalid;
  TensorSpec d;  // contiguous [batch_shape..., M, N]

  // Element offset of batch item `index` (row-major in batch_shape), 0 <= index < batch.
  std::int64_t AOffset(std::int64_t index) const { return Offset(index, a_batch_strides); }
  std::int64_t BOffset(std::int64_t index) const { return Offset(index, b_batch_strides); }
  std::int64_t COffset(std::int64_t index) const { return Offset(index, c_batch_strides); }

 private:
  std::int64_t Offset(std::int64_t index, const Dims& strides) const;
};

// F8 -> BF16, I8 -> I32, else the operands' own.
DataType DefaultMatmulOutput(DataType operand);

// The rules of the operation, whatever the device:
// * A and B: F16, BF16, F32, F64, I8, F8E4M3, F8E5M2; one dtype for both, except that the two F8 types may be mixed.
// * D: F16 and BF16 -> own or F32; F32 -> F32; F64 -> F64; F8 -> BF16, F16, F32;
//   I8 -> I32, or F32, F16, BF16. I8 accumulates in int32 (modulo 2^32 past K = 2^17); without scales, alpha, beta,
//   bias and activation other than none and relu the result is exact. A floating epilogue of an I32 result rounds half
//   to even and saturates. Scales with an I32 result are refused.
// * alpha and beta are finite. Zero sizes are legal: K = 0 gives act(beta * C + bias), M, N or batch = 0 nothing.
// * alpha = 0 reads neither A nor B; beta = 0 does not read C.
// Errors: INVALID_ARGUMENT or UNIMPLEMENTED with the field ("matmul.a.shape"), its value and the rule.
absl::StatusOr<MatmulGeometry> Validate(const MatmulProblem& problem);

std::string_view Name(Activation activation);
std::string_view Name(Numerics numerics);

}  // namespace kernd
