// Problems of the kernels with their operands, as the reference and as the client library take them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernd/client/client.h"
#include "kernd/kernels/args.h"
#include "kernd/kernels/attention.h"
#include "kernd/kernels/matmul.h"
#include "tests/support/golden.h"
#include "tests/support/operand.h"

namespace kernd::testing {

// A problem with its operands, all contiguous, as inline tensors are.
struct MatmulCase {
  MatmulProblem p;
  Operand a, b, c, bias, a_scale, b_scale;

  MatmulArgs Args() const;                // for the reference
  client::MatmulArgs ClientArgs() const;  // the same for the client; looks into this case
  DataType OutputType() const;
  std::string ToString() const;
};

struct AttentionCase {
  AttentionProblem p;
  Operand q, k, v, mask, bias;

  AttentionArgs Args() const;
  client::AttentionArgs ClientArgs() const;
  DataType OutputType() const;
  std::string ToString() const;
};

client::DataType ClientType(DataType type);

// Uniform in [low, high).
std::vector<float> Draw(Random& random, std::int64_t count, double low, double high);

// Sets a spec and its operand together, filled with normal numbers (I8: any).
void SetNormal(TensorSpec& spec, Operand& operand, DataType type, Dims shape, Random& random, double scale = 1);

// A [M, K] times B [K, N] and nothing else.
MatmulCase MakeMatmul(DataType type, std::int64_t m, std::int64_t n, std::int64_t k, std::uint64_t seed = 1);

// Of a problem without a batch: the same sizes, with new operands where transposed.
void Transpose(MatmulCase& c, bool a, bool b, Random& random);
// Normal numbers of about the size of the products.
void SetC(MatmulCase& c, double beta, Dims shape, Random& random);
void SetBias(MatmulCase& c, DataType type, std::int64_t n, Random& random);

struct AttentionSizes {
  std::int64_t batch = 2, q_heads = 4, kv_heads = 2, q_rows = 33, kv_rows = 65, d = 32, dv = 32;
};

// Plain attention with LSE. Packed: batch * rows rows in all, cut into sequences at random, some of them empty.
AttentionCase MakeAttention(const AttentionSizes& sizes, std::uint64_t seed = 1, DataType type = DataType::kF32,
                            AttentionLayout layout = AttentionLayout::kBHLD);

// Which keys a row sees by its position.
void SetWindow(AttentionCase& c, MaskAlignment alignment, bool causal, std::optional<std::int64_t> left,
               std::optional<std::int64_t> right);

// The case of a golden; views are copied into contiguous tensors.
MatmulCase MatmulOf(const Golden& golden);
AttentionCase AttentionOf(const Golden& golden);

}  // namespace kernd::testing
