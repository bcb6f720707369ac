#include "server/cpu/attention_naive.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "server/cpu/float8_table.h"
#include "server/cpu/team.h"

namespace kernd::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

template <typename T>
T Read(const void* data, std::int64_t index) {
  T value;
  std::memcpy(&value, static_cast<const char*>(data) + index * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return value;
}

float Load(DataType type, const void* data, std::int64_t index) {
  switch (type) {
    case DataType::kF16: {
      const std::uint16_t h = Read<std::uint16_t>(data, index);
      const int exponent = h >> 10 & 31, mantissa = h & 1023;
      float value = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -24)
                                  : std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
      if (exponent == 31) value = mantissa == 0 ? kInfinity : std::numeric_limits<float>::quiet_NaN();
      return h >> 15 ? -value : value;
    }
    case DataType::kBF16:
      return std::bit_cast<float>(static_cast<std::uint32_t>(Read<std::uint16_t>(data, index)) << 16);
    case DataType::kF8E4M3: return kE4M3Table[Read<std::uint8_t>(data, index)];
    case DataType::kF8E5M2: return kE5M2Table[Read<std::uint8_t>(data, index)];
    default: return Read<float>(data, index);
  }
}

void Store(DataType type, float value, void* data, std::int64_t index) {
  std::uint16_t half = 0;
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value), sign = bits >> 16 & 0x8000;
  if (type == DataType::kF32) {
    std::memcpy(static_cast<char*>(data) + 4 * index, &value, 4);
    return;
  }
  if (type == DataType::kBF16) {
    half = static_cast<std::uint16_t>(std::isnan(value) ? bits >> 16 | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  } else if (std::isnan(value)) {
    half = static_cast<std::uint16_t>(sign | 0x7e00);
  } else if (std::fabs(value) >= 65520) {
    half = static_cast<std::uint16_t>(sign | 0x7c00);
  } else {
    // The spacing of halves at this magnitude; nearbyint rounds half to even.
    const int exponent = std::max(std::ilogb(std::fabs(value) > 0 ? std::fabs(value) : 1e-30f), -14);
    const int steps = static_cast<int>(std::nearbyint(std::ldexp(std::fabs(value), 10 - exponent)));  // 0..2048
    half = static_cast<std::uint16_t>(sign | static_cast<std::uint32_t>(((exponent + 14) << 10) + steps));
  }
  std::memcpy(static_cast<char*>(data) + 2 * index, &half, 2);
}

// One query row of one head.
class Row {
 public:
  Row(const AttentionProblem& p, const AttentionGeometry& g, const AttentionArgs& args, std::int64_t b, std::int64_t h,
      std::int64_t i)
      : p_(p), g_(g), args_(args), s_(g.sequences[b]), b_(b), h_(h), i_(i), kv_head_(h / g.heads_per_kv) {}

  bool Visible(std::int64_t j) const {
    const std::int64_t distance = j - (i_ + s_.diagonal);
    if (g_.window_left && -distance > *g_.window_left) return false;
    if (g_.window_right && distance > *g_.window_right) return false;
    if (p_.bias && Bias(j) == -kInfinity) return false;
    return !p_.mask || Read<std::uint8_t>(args_.mask, At(g_.mask) + j) != 0;
  }

  float Logit(std::int64_t j) const {
    double dot = 0;
    const std::int64_t q = At(g_.q, h_, s_.q_start + i_), k = At(g_.k, kv_head_, s_.kv_start + j);
    for (std::int64_t d = 0; d < g_.head_dim; ++d) {
      dot += static_cast<double>(Load(p_.q.dtype, args_.q, q + d)) * Load(p_.k.dtype, args_.k, k + d);
    }
    double x = dot * g_.scale * g_.OperandScale(p_.q_scale, b_, kv_head_) * g_.OperandScale(p_.k_scale, b_, kv_head_);
    if (p_.softcap) x = *p_.softcap * std::tanh(x / *p_.softcap);
    if (p_.bias) x += Bias(j);
    if (!p_.alibi_slopes.empty()) x -= p_.alibi_slopes[h_] * std::fabs(static_cast<double>(i_ + s_.diagonal - j));
    return static_cast<float>(x);
  }

  void Run(float* logits) const {
    float most = -kInfinity;
    const std::int64_t keys = i_ < s_.q_length ? s_.kv_length : 0;
    for (std::int64_t j = 0; j < keys; ++j) {
      logits[j] = Visible(j) ? Logit(j) : -kInfinity;
      if (!(logits[j] <= most)) most = logits[j];
    }
    double sum = 0;
    for (std::int64_t j = 0; j < keys; ++j) {
      if (logits[j] != -kInfinity) sum += std::exp(static_cast<double>(logits[j]) - most);
    }
    const bool empty = sum == 0;
    const double sink = p_.sinks.empty() || empty ? 0 : std::exp(static_cast<double>(p_.sinks[h_]) - most);
    const std::int64_t out = At(g_.o, h_, s_.q_start + i_), v = At(g_.v, kv_head_, s_.kv_start);
    for (std::int64_t c = 0; c < g_.v_head_dim; ++c) {
      double o = 0;
      for (std::int64_t j = 0; j < keys; ++j) {
        if (logits[j] == -kInfinity) continue;
        const double weight = std::exp(static_cast<double>(logits[j]) - most) / (sum + sink);
        o += weight * Load(p_.v.dtype, args_.v, v + j * g_.v.row + c);
      }
      Store(g_.output_dtype, static_cast<float>(o * g_.OperandScale(p_.v_scale, b_, kv_head_)), args_.o, out + c);
    }
    if (p_.want_lse)
      args_.lse[At(g_.lse, h_, s_.q_start + i_)] = empty ? -kInfinity : static_cast<float>(most + std::log(sum));
  }

 private:
  std::int64_t At(const HeadStrides& t, std::int64_t head, std::int64_t row) const {
    return b_ * t.batch + head * t.head + row * t.row;
  }
  std::int64_t At(const BroadcastStrides& t) const { return b_ * t.batch + h_ * t.head + i_ * t.row; }
  float Bias(std::int64_t j) const { return Load(p_.bias->dtype, args_.bias, At(g_.bias) + j); }

  const AttentionProblem& p_;
  const AttentionGeometry& g_;
  const AttentionArgs& args_;
  const AttentionSequence& s_;
  const std::int64_t b_, h_, i_, kv_head_;
};

}  // namespace

std::int64_t NaiveWorkspaceBytes(const AttentionGeometry& g) {
  std::optional<std::int64_t> total = 0;
  for (const AttentionSequence& s : g.sequences) {
    const auto bytes = CheckedProduct({4, g.q_heads, s.q_rows, s.kv_length});
    total = total && bytes ? CheckedAdd(*total, *bytes) : std::nullopt;
  }
  return total.value_or(std::numeric_limits<std::int64_t>::max());
}

void RunNaiveAttention(const AttentionProblem& problem, const AttentionGeometry& g, const AttentionArgs& args,
                       float* logits, int threads, Stop stop) {
  for (std::int64_t b = 0; b < g.batch; ++b) {
    const AttentionSequence& s = g.sequences[b];
    ForEach(threads, g.q_heads * s.q_rows, stop, [&](int, std::int64_t row) {
      Row(problem, g, args, b, row / s.q_rows, row % s.q_rows).Run(logits + row * s.kv_length);
    });
    logits += g.q_heads * s.q_rows * s.kv_length;
  }
}

}  // namespace kernd::cpu
