// Problems together with their operands, contiguous in host memory, from a seed: what a daemon, a backend or a kernel
// is asked, and what the reference answers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernd/kernels/args.h"
#include "kernd/kernels/attention.h"
#include "kernd/kernels/matmul.h"

namespace kernd::reference {

// The elements of a contiguous tensor; its spec stands in the problem.
using Elements = std::vector<std::byte>;

// Draws from stream after stream of one seed.
class Source {
 public:
  explicit Source(std::uint64_t seed) : seed_(seed) {}

  // N(0, 1) times `size`, rounded to the spec's dtype; for I8 and I32 32 times as large, so that rounding leaves
  // something of them.
  Elements Tensor(const TensorSpec& spec, double size = 1);
  // true with the given probability.
  Elements Mask(const TensorSpec& spec, double share);
  // Uniform in [low, high).
  std::vector<float> Floats(std::int64_t count, double low, double high);

 private:
  std::uint64_t seed_;
  std::uint32_t streams_ = 0;
};

struct MatmulCase {
  MatmulProblem problem;
  Elements a, b, c, bias, a_scale, b_scale;

  MatmulArgs Args() const;  // looks into this case; `d` is null
  DataType OutputType() const;
};

struct AttentionCase {
  AttentionProblem problem;
  Elements q, k, v, mask, bias;

  AttentionArgs Args() const;  // looks into this case; `o` and `lse` are null
  DataType OutputType() const;
};

struct MatmulSizes {
  std::int64_t m = 1, n = 1, k = 1;
  Dims batch = {};
  bool transpose_a = false, transpose_b = false;
};

// A and B, and nothing else.
MatmulCase MakeMatmul(DataType type, const MatmulSizes& sizes, Source& source);

struct AttentionSizes {
  std::int64_t batch = 1, q_heads = 1, q_rows = 1, head_dim = 64;
  std::int64_t kv_heads = 1, kv_rows = 1, v_head_dim = 64;
};

// Q, K and V, and LSE is wanted. Packed: the sequences of the batch lie one after the other; their lengths differ, and
// the first one of several is empty.
AttentionCase MakeAttention(DataType type, AttentionLayout layout, const AttentionSizes& sizes, Source& source);

}  // namespace kernd::reference
