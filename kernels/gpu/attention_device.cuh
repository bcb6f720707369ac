// What the portable attention kernels share on the device: the problem as they get it, who sees what, and the way from
// a dot product to a logit. kernd/kernels/attention.h is the rule; kernels/reference has its own code for all of this.
#pragma once

#include <algorithm>
#include <cfloat>
#include <cstdint>

#include "kernd/kernels/gpu.h"
#include "kernels/gpu/device/math.cuh"
#include "kernels/gpu/element.cuh"

namespace kernd::gpu {

struct AttentionParams {
  AttentionArgs args;
  AttentionTables tables;
  HeadStrides q, k, v, o, lse;
  BroadcastStrides mask, bias;
  std::int64_t batch, kv_heads, group, head_dim, v_head_dim;  // group: query heads of a kv head
  std::int64_t window_left, window_right;                     // at most kUnbounded
  double scale;
  float softcap;  // 0: none
  DataType type, bias_type, o_type;
  int type_bytes;  // of an element of Q, K or V
};

// Sums of positions and windows stay far from overflow.
inline constexpr std::int64_t kUnbounded = std::int64_t{1} << 61;

inline AttentionParams ParamsOf(const AttentionProblem& p, const AttentionGeometry& g, const AttentionArgs& args,
                                const AttentionTables& tables) {
  AttentionParams out{.args = args,
                      .tables = tables,
                      .q = g.q,
                      .k = g.k,
                      .v = g.v,
                      .o = g.o,
                      .lse = g.lse,
                      .mask = g.mask,
                      .bias = g.bias,
                      .batch = g.batch,
                      .kv_heads = g.kv_heads,
                      .group = g.heads_per_kv,
                      .head_dim = g.head_dim,
                      .v_head_dim = g.v_head_dim,
                      .window_left = std::min(g.window_left.value_or(kUnbounded), kUnbounded),
                      .window_right = std::min(g.window_right.value_or(kUnbounded), kUnbounded),
                      .scale = g.scale,
                      .softcap = 0,
                      .type = p.q.dtype,
                      .bias_type = p.bias ? p.bias->dtype : DataType::kInvalid,
                      .o_type = g.output_dtype,
                      .type_bytes = static_cast<int>(ElementBytes(p.q.dtype))};
  // A cap past F32's range caps nothing that F32 can hold; one below it must stay apart from "none".
  if (p.softcap && *p.softcap <= FLT_MAX) out.softcap = std::max(static_cast<float>(*p.softcap), FLT_MIN);
  return out;
}

// Blocks for so many pieces of work; kernels go on in strides of the grid.
inline unsigned GridOf(std::int64_t works) {
  return static_cast<unsigned>(std::min<std::int64_t>(works, 0x7fffffff));
}

// Scores that rows may see, by their windows alone; to estimate times with.
double VisibleScores(const AttentionGeometry& g);

#if defined(__CUDACC__) || defined(KERND_EMULATOR)

// Not numeric_limits: a call that device code would need a flag for.
#define KERND_INFINITY __int_as_float(0x7f800000)

// Element (b, h, row) of a tensor, `start` being the sequence's first row.
__device__ inline std::int64_t At(const HeadStrides& s, std::int64_t b, std::int64_t h, std::int64_t row) {
  return b * s.batch + h * s.head + row * s.row;
}

// What belongs to one query of one head.
struct AttentionRow {
  std::int64_t q, mask, bias;  // offsets of its elements; of key 0 in mask and bias
  std::int64_t position;       // i + off
  std::int64_t first, last;    // keys first .. last - 1 are in its window; none: 0, 0
  float slope;
};

__device__ inline AttentionRow RowOf(const AttentionParams& p, const AttentionSequence& s, std::int64_t b,
                                     std::int64_t head, std::int64_t query) {
  AttentionRow row;
  row.q = At(p.q, b, head, s.q_start + query);
  row.mask = b * p.mask.batch + head * p.mask.head + query * p.mask.row;
  row.bias = b * p.bias.batch + head * p.bias.head + query * p.bias.row;
  row.position = query + s.diagonal;
  row.first = max(static_cast<std::int64_t>(0), row.position - p.window_left);
  row.last = min(s.kv_length, row.position + p.window_right + 1);
  if (row.first >= row.last) row.first = row.last = 0;
  row.slope = p.tables.alibi_slopes != nullptr ? p.tables.alibi_slopes[head] : 0.0f;
  return row;
}

// What q . k is multiplied with: the scale and those of 8-bit operands. In double, as a product of three may leave F32
// on its way.
__device__ inline float LogitFactor(const AttentionParams& p, std::int64_t b, std::int64_t kv_head) {
  double factor = p.scale;
  if (p.tables.q_scale != nullptr) factor *= p.tables.q_scale[b * p.kv_heads + kv_head];
  if (p.tables.k_scale != nullptr) factor *= p.tables.k_scale[b * p.kv_heads + kv_head];
  return static_cast<float>(factor);
}

__device__ inline float ValueFactor(const AttentionParams& p, std::int64_t b, std::int64_t kv_head) {
  return p.tables.v_scale != nullptr ? p.tables.v_scale[b * p.kv_heads + kv_head] : 1.0f;
}

// The logit of a key in the row's window from the scaled dot product; `distance` is |i + off - j|. Reads the mask and
// the bias at the key, nothing else.
__device__ inline float Logit(const AttentionParams& p, const AttentionRow& row, std::int64_t key, float distance,
                              float x) {
  if (p.args.mask != nullptr && static_cast<const std::uint8_t*>(p.args.mask)[row.mask + key] == 0) {
    return -KERND_INFINITY;
  }
  // tanhf saturates; a quotient rather than a product with 1 / c, which may be subnormal.
  if (p.softcap > 0) x = p.softcap * tanhf(x / p.softcap);
  if (p.args.bias != nullptr) {
    const float bias = LoadElement(p.args.bias, row.bias + key, p.bias_type);
    x = bias == -KERND_INFINITY ? bias : x + bias;  // hides a key that is NaN, too
  }
  if (p.tables.alibi_slopes != nullptr) x -= row.slope * distance;
  return x;
}

inline constexpr float kLog2E = 1.44269504088896340736f;

// e^x for x <= 0 with ex2.approx: off by 2 units in the last place of the result and |x| 2^-24 of it, which is what
// the rounding of x itself, a difference of F32 logits, already costs. Exactly 1 at 0, so that a tile in which a row
// sees nothing leaves its bits alone.
__device__ inline float ExpOfNegative(float x) {
  return Exp2(x * kLog2E);
}

// P of a key that weighs nothing, whose value must not show even if it is NaN: -0, which no exponential gives.
__device__ inline bool IsHidden(float p) {
  return __float_as_uint(p) == 0x80000000u;
}

__device__ inline float Probability(float logit, float pivot) {
  return logit == -KERND_INFINITY ? -0.0f : ExpOfNegative(logit - pivot);
}

// What O's sums are multiplied with: V's scale over the denominator, sink included. `sum` is that of
// exp(logit - largest), not 0.
__device__ inline float OutputFactor(const AttentionParams& p, std::int64_t head, float largest, float sum,
                                     float value_factor) {
  if (p.tables.sinks == nullptr) return value_factor / sum;
  const float sink = p.tables.sinks[head], most = fmaxf(sink, largest);
  const float ours = expf(largest - most);
  return value_factor * ours / (sum * ours + expf(sink - most));
}

#endif  // __CUDACC__ || KERND_EMULATOR

}  // namespace kernd::gpu
