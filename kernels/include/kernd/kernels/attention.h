// O = softmax(logits) V, exactly as every kernel must compute it: the problem, and the rules it must obey.
//
// Dimensions: B batch, Hq query heads, Hkv key/value heads (Hq a multiple of Hkv; head h reads h / (Hq / Hkv)), Lq and
// Lkv lengths, D head_dim of Q and K, Dv of V and O.
//
//   logits[i, j] = softcap(scale * q_i . k_j) + bias[i, j] - slope[h] * |i + off - j|,  softcap(x) = c * tanh(x / c)
//   then every key that row i may not see is *selected* to minus infinity. A bias of minus infinity hides its key from
//   the row just as the mask does.
//   off = Lkv - Lq of the sequence (bottom-right alignment) or 0 (top-left).
//   Row i sees the keys j from i + off - window_left to i + off + window_right, inclusive; absent: unbounded; causal:
//   window_right = 0. Only keys below the sequence's kv_length exist.
//   A sink s[h] adds exp(s) to the denominator and nothing else; LSE leaves it out.
//   LSE[i] = ln(sum over visible j of exp(logits[i, j])), natural logarithm, F32.
//   A row that sees no key, and a row at or past its sequence's q_length: O = 0 and LSE = minus infinity.
//   A NaN in a key or value spoils only the rows that see it. Bytes of keys that no row may see never matter. A key
//   that a row sees, but whose logit overflows to minus infinity, weighs nothing: its value does not matter either.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernd/kernels/tensor.h"

namespace kernd {

// Of one call. They bound what a few bytes of shapes can ask for.
inline constexpr std::int64_t kMaxSequences = std::int64_t{1} << 17;
inline constexpr std::int64_t kMaxScores = std::int64_t{1} << 53;  // sum over sequences of Hq * q_rows * kv_length

enum class AttentionLayout : std::uint8_t {
  kBHLD,    // Q [B, Hq, Lq, D], K [B, Hkv, Lkv, D], V [B, Hkv, Lkv, Dv], O [B, Hq, Lq, Dv]
  kBLHD,    // Q [B, Lq, Hq, D], K [B, Lkv, Hkv, D], V [B, Lkv, Hkv, Dv], O [B, Lq, Hq, Dv]
  kPacked,  // Q [total_q, Hq, D], K [total_kv, Hkv, D], V [total_kv, Hkv, Dv], O [total_q, Hq, Dv]
};

enum class MaskAlignment : std::uint8_t { kUnset, kTopLeft, kBottomRight };

struct AttentionProblem {
  AttentionLayout layout = AttentionLayout::kBHLD;
  TensorSpec q, k, v;              // one dtype: F16, BF16, F32, F8E4M3 or F8E5M2
  std::optional<TensorSpec> mask;  // BOOL, true = visible, [1|B, 1|Hq, 1|Lq, Lkv]; not with kPacked
  std::optional<TensorSpec> bias;  // F32 or Q's dtype, [1|B, 1|Hq, 1|Lq, Lkv]; not with kPacked
  std::optional<double> scale;     // absent: 1/sqrt(D); finite, 0 and negative are legal
  std::optional<double> softcap;   // absent: none; finite and positive
  bool causal = false;
  MaskAlignment alignment = MaskAlignment::kUnset;        // needed where positions matter and a sequence has Lq != Lkv
  std::optional<std::int64_t> window_left, window_right;  // >= 0
  std::vector<std::int64_t> q_lengths, kv_lengths;        // [B] each, or empty; 0..Lq, 0..Lkv; not with kPacked
  std::vector<std::int64_t> q_offsets, kv_offsets;        // kPacked only: [B + 1] each, rising from 0 to the total
  std::vector<float> alibi_slopes;                        // [Hq] or empty; finite
  std::vector<float> sinks;                               // [Hq] or empty; finite or minus infinity
  std::vector<float> q_scale, k_scale, v_scale;           // 8-bit only: empty, [1], [Hkv] or [B * Hkv]
  bool want_lse = false;
  DataType output_dtype = DataType::kInvalid;  // kInvalid: DefaultAttentionOutput
};

// Strides in elements. Row i of sequence b, head h of a tensor starts at
// b * batch + h * head + (start + i) * row, with `start` from AttentionSequence (0 unless packed).
struct HeadStrides {
  std::int64_t batch = 0, head = 0, row = 0;
};

// Strides of a mask or bias over (b, h, i, j); 0 where broadcast.
struct BroadcastStrides {
  std::int64_t batch = 0, head = 0, row = 0, col = 1;
};

struct AttentionSequence {
  std::int64_t q_start = 0, q_rows = 0;  // rows of Q and O that belong to this sequence
  std::int64_t q_length = 0;             // of these, the first q_length are computed, the rest are zeros
  std::int64_t kv_start = 0, kv_length = 0;
  std::int64_t diagonal = 0;  // `off` above
};

// A validated problem as a kernel wants it.
struct AttentionGeometry {
  std::int64_t batch = 0, q_heads = 0, kv_heads = 0, head_dim = 0, v_head_dim = 0;
  std::int64_t heads_per_kv = 1;  // 0 where there are no query heads
  std::int64_t max_q_rows = 0, max_kv_length = 0;
  HeadStrides q, k, v, o;
  HeadStrides lse;  // row stride 1; [B, Hq, Lq] or [Hq, total_q]
  BroadcastStrides mask, bias;
  std::vector<AttentionSequence> sequences;  // one for each of `batch`
  double scale = 0;
  bool positional = false;                                // causal, a window or slopes: `diagonal` matters
  std::optional<std::int64_t> window_left, window_right;  // causal folded in
  DataType output_dtype = DataType::kInvalid;
  TensorSpec o_spec;                   // contiguous
  std::optional<TensorSpec> lse_spec;  // contiguous F32

  // Scale factor of an 8-bit operand for (b, kv head): 1 where `values` is empty.
  float OperandScale(const std::vector<float>& values, std::int64_t b, std::int64_t kv_head) const;
};

// F8 -> BF16, else the operands' own.
DataType DefaultAttentionOutput(DataType operand);

// The rules above, whatever the device. O may be the operands' dtype (not for F8), F32, or for F8 also F16 and BF16.
// Zero sizes are legal. Errors: INVALID_ARGUMENT or UNIMPLEMENTED with the field ("attention.k.shape"), value and rule.
absl::StatusOr<AttentionGeometry> Validate(const AttentionProblem& problem);

// Bytes that the textbook algorithm holds: inputs + outputs + 4 * sum over sequences of Hq * q_rows * kv_length.
// Saturates at 2^63 - 1.
std::int64_t NaiveBytes(const AttentionProblem& problem, const AttentionGeometry& geometry);

std::string_view Name(AttentionLayout layout);
std::string_view Name(MaskAlignment alignment);

}  // namespace kernd
