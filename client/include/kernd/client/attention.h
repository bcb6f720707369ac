// O = softmax(QK^T) V with masks, windows and the rest. Dimensions: B batch, Hq query heads, Hkv key/value heads (Hq a
// multiple of Hkv), Lq and Lkv lengths, D head dimension of Q and K, Dv of V and O.
//
//   logits = softcap(scale * q.k) + bias - slope[h] * |i + off - j|,  softcap(x) = c * tanh(x / c)
//
// Row i sees the keys j from i + off - window_left to i + off + window_right, inclusive; causal is window_right = 0. A
// row that sees no key gives O = 0 and LSE = minus infinity.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kernd/client/kernel.h"
#include "kernd/client/operand.h"
#include "kernd/client/result.h"
#include "kernd/client/tensor.h"

namespace kernd::client {

enum class AttentionLayout : std::uint8_t {
  kBHLD = 1,    // Q [B, Hq, Lq, D], K [B, Hkv, Lkv, D], V [B, Hkv, Lkv, Dv], O [B, Hq, Lq, Dv]
  kBLHD = 2,    // Q [B, Lq, Hq, D], K [B, Lkv, Hkv, D], V [B, Lkv, Hkv, Dv], O [B, Lq, Hq, Dv]
  kPacked = 3,  // Q [total_q, Hq, D], K [total_kv, Hkv, D], V [total_kv, Hkv, Dv], O [total_q, Hq, Dv]
};

// Where the diagonal of causal masks, windows and slopes lies when a sequence has Lq != Lkv.
enum class MaskAlignment : std::uint8_t {
  kUnset = 0,        // refused where it matters
  kTopLeft = 1,      // off = 0
  kBottomRight = 2,  // off = Lkv - Lq of the sequence
};

struct AttentionArgs {
  AttentionLayout layout = AttentionLayout::kBHLD;
  Operand q, k, v;              // F16, BF16, F32, F8E4M3, F8E5M2; one dtype for the three
  std::optional<double> scale;  // absent: 1 / sqrt(D); finite, 0 and negative are legal
  bool causal = false;
  MaskAlignment alignment = MaskAlignment::kUnset;
  std::optional<std::int64_t> window_left, window_right;  // absent: unbounded; not negative
  std::optional<double> softcap;                          // absent: none; finite, positive
  std::optional<Operand> mask;                      // BOOL, true = visible, [1|B, 1|Hq, 1|Lq, Lkv]; not with kPacked
  std::optional<Operand> bias;                      // F32 or Q's dtype, same broadcast; not with kPacked
  std::vector<float> alibi_slopes;                  // [Hq] or empty
  std::vector<float> sinks;                         // [Hq] or empty: logits that add to the denominator only
  std::vector<std::int64_t> q_lengths, kv_lengths;  // [B] each, or empty; not with kPacked
  std::vector<std::int64_t> q_offsets, kv_offsets;  // kPacked only: [B + 1] each, rising from 0 to the total
  std::vector<float> q_scale, k_scale, v_scale;     // 8-bit operands only: empty, one number, [Hkv] or [B * Hkv]
  Numerics numerics = Numerics::kDefault;
  KernelChoice kernel;
  DataType o_dtype = DataType::kUnspecified;  // unspecified: the operands'; F8 -> BF16
  bool want_lse = false;
  ResultPlace o, lse;  // where they shall be
};

struct AttentionReply {
  Tensor o;    // the layout's O
  Tensor lse;  // with want_lse: natural logarithm, F32, [B, Hq, Lq], or [Hq, total_q] for kPacked
  Timing timing;
  Memory memory;
  KernelUsed kernel;
};

}  // namespace kernd::client
