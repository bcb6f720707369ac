// D = act(alpha * op(A) op(B) + beta * C + bias). Batch dimensions broadcast as in numpy.
#pragma once

#include <cstdint>
#include <optional>

#include "kernd/client/kernel.h"
#include "kernd/client/operand.h"
#include "kernd/client/result.h"
#include "kernd/client/tensor.h"

namespace kernd::client {

enum class Activation : std::uint8_t { kNone = 0, kRelu = 1, kGelu = 2, kSilu = 3 };  // gelu: tanh form

// Scales of an 8-bit operand X [R, K]: A as op(A) (R = M), B as op(B) transposed (R = N). X[r, k] stands for
// X[r, k] * scale.
struct Scales {
  enum class Kind : std::uint8_t {
    kTensor = 1,  // [] or [1]
    kRow = 2,     // [R]
    kBlock = 3,   // [ceil(R / block_rows), ceil(K / block_k)]
  };
  Kind kind = Kind::kTensor;
  std::int64_t block_rows = 0, block_k = 0;  // kBlock only, positive
  Operand values;                            // F32
};

struct MatmulArgs {
  Operand a;  // [batch..., M, K], or [batch..., K, M] with transpose_a
  Operand b;  // [batch..., K, N], or [batch..., N, K] with transpose_b
  bool transpose_a = false;
  bool transpose_b = false;
  std::optional<double> alpha;  // absent: 1; at 0, A and B are not read
  std::optional<double> beta;   // absent: 0; at 0, C is not read
  std::optional<Operand> c;     // [batch..., M, N], the result's dtype; needed when beta is not 0
  std::optional<Operand> bias;  // [N]; F32 or the result's dtype
  Activation activation = Activation::kNone;
  std::optional<Scales> a_scale, b_scale;
  Numerics numerics = Numerics::kDefault;
  KernelChoice kernel;
  DataType d_dtype = DataType::kUnspecified;  // unspecified: the operands'; F8 -> BF16, I8 -> I32
  ResultPlace d;                              // where it shall be
};

struct MatmulReply {
  Tensor d;  // [batch..., M, N]
  Timing timing;
  Memory memory;
  KernelUsed kernel;
};

}  // namespace kernd::client
