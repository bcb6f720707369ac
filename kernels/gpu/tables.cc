#include "kernd/kernels/gpu.h"

#include <algorithm>
#include <cstring>

namespace kernd {
namespace {

std::int64_t Aligned(std::int64_t bytes) {
  return (bytes + kDeviceAlignment - 1) / kDeviceAlignment * kDeviceAlignment;
}

}  // namespace

AttentionTableLayout::AttentionTableLayout(const AttentionProblem& p, const AttentionGeometry& g) {
  // Counts are bounded by kMaxSequences and by the number of heads, each of which has rows: no product can wrap.
  const auto place = [this](std::int64_t count, std::int64_t size) {
    const std::int64_t at = bytes_;
    bytes_ = Aligned(bytes_ + count * size);
    return at;
  };
  sequences_ = place(g.batch, sizeof(AttentionSequence));
  if (!p.alibi_slopes.empty()) slopes_ = place(g.q_heads, sizeof(float));
  if (!p.sinks.empty()) sinks_ = place(g.q_heads, sizeof(float));
  if (!p.q_scale.empty()) q_scale_ = place(g.batch * g.kv_heads, sizeof(float));
  if (!p.k_scale.empty()) k_scale_ = place(g.batch * g.kv_heads, sizeof(float));
  if (!p.v_scale.empty()) v_scale_ = place(g.batch * g.kv_heads, sizeof(float));
}

void AttentionTableLayout::Write(const AttentionProblem& p, const AttentionGeometry& g, std::byte* to) const {
  const auto copy = [to](std::int64_t at, const auto& values) {
    if (at >= 0 && !values.empty()) std::memcpy(to + at, values.data(), values.size() * sizeof(values[0]));
  };
  copy(sequences_, g.sequences);
  copy(slopes_, p.alibi_slopes);
  copy(sinks_, p.sinks);
  const auto expand = [&](std::int64_t at, const std::vector<float>& values) {
    if (at < 0) return;
    float* out = reinterpret_cast<float*>(to + at);
    for (std::int64_t b = 0; b < g.batch; ++b) {
      for (std::int64_t h = 0; h < g.kv_heads; ++h) *out++ = g.OperandScale(values, b, h);
    }
  };
  expand(q_scale_, p.q_scale);
  expand(k_scale_, p.k_scale);
  expand(v_scale_, p.v_scale);
}

AttentionTables AttentionTableLayout::At(const std::byte* base) const {
  const auto floats = [base](std::int64_t at) { return at < 0 ? nullptr : reinterpret_cast<const float*>(base + at); };
  return {.sequences = reinterpret_cast<const AttentionSequence*>(base + sequences_),
          .alibi_slopes = floats(slopes_),
          .sinks = floats(sinks_),
          .q_scale = floats(q_scale_),
          .k_scale = floats(k_scale_),
          .v_scale = floats(v_scale_)};
}

}  // namespace kernd
