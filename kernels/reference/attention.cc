#include "kernels/reference/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernd/kernels/error.h"
#include "kernels/reference/convert.h"

namespace kernd::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Element (b, h, i, c) of a tensor in one of the layouts. In the packed one, `i` counts from the start of the tensor.
std::int64_t ElementOf(AttentionLayout layout, const TensorSpec& spec, std::int64_t b, std::int64_t h, std::int64_t i,
                       std::int64_t c) {
  const Dims s = spec.EffectiveStrides();
  switch (layout) {
    case AttentionLayout::kBHLD: return b * s[0] + h * s[1] + i * s[2] + c * s[3];
    case AttentionLayout::kBLHD: return b * s[0] + i * s[1] + h * s[2] + c * s[3];
    case AttentionLayout::kPacked: return i * s[0] + h * s[1] + c * s[2];
  }
  return 0;
}

// Element (b, h, i, j) of a mask or bias, where a dimension of size 1 repeats.
std::int64_t BroadcastElementOf(const TensorSpec& spec, std::int64_t b, std::int64_t h, std::int64_t i,
                                std::int64_t j) {
  const Dims s = spec.EffectiveStrides();
  const auto at = [&](int dim, std::int64_t index) { return spec.shape[dim] == 1 ? 0 : index * s[dim]; };
  return at(0, b) + at(1, h) + at(2, i) + at(3, j);
}

// Sizes of the whole problem.
struct Sizes {
  std::int64_t batch, q_heads, kv_heads, q_rows, kv_rows, d, dv;  // rows: of the tensor; of all sequences where packed
};

Sizes SizesOf(const AttentionProblem& p) {
  const Dims &q = p.q.shape, &k = p.k.shape, &v = p.v.shape;
  switch (p.layout) {
    case AttentionLayout::kBHLD: return {q[0], q[1], k[1], q[2], k[2], q[3], v[3]};
    case AttentionLayout::kBLHD: return {q[0], q[2], k[2], q[1], k[1], q[3], v[3]};
    case AttentionLayout::kPacked: break;
  }
  return {static_cast<std::int64_t>(p.q_offsets.size()) - 1, q[1], k[1], q[0], k[0], q[2], v[2]};
}

// What belongs to one sequence: the first row of each tensor, and how many there are.
struct Sequence {
  std::int64_t q_begin, queries, kv_begin, keys, off;
};

Sequence SequenceOf(const AttentionProblem& p, const Sizes& n, std::int64_t b) {
  Sequence s{0, n.q_rows, 0, n.kv_rows, 0};
  if (p.layout == AttentionLayout::kPacked) {
    s = {p.q_offsets[b], p.q_offsets[b + 1] - p.q_offsets[b], p.kv_offsets[b], p.kv_offsets[b + 1] - p.kv_offsets[b],
         0};
  }
  if (!p.q_lengths.empty()) s.queries = p.q_lengths[b];
  if (!p.kv_lengths.empty()) s.keys = p.kv_lengths[b];
  if (p.alignment == MaskAlignment::kBottomRight) s.off = s.keys - s.queries;
  return s;
}

// The factor of an 8-bit operand: absent, one for all, one for each kv head, or one for each head of each sequence.
double OperandFactor(const std::vector<float>& values, const Sizes& n, std::int64_t b, std::int64_t kv_head) {
  if (values.empty()) return 1.0;
  if (values.size() == 1) return values[0];
  return values[static_cast<std::int64_t>(values.size()) == n.kv_heads ? kv_head : b * n.kv_heads + kv_head];
}

// Rows of one head of one sequence, with the operand's factor: [rows, channels].
std::vector<double> ReadHead(const AttentionProblem& p, const TensorSpec& spec, const void* data, std::int64_t b,
                             std::int64_t h, std::int64_t begin, std::int64_t rows, std::int64_t channels,
                             double factor) {
  std::vector<double> out(rows * channels);
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t c = 0; c < channels; ++c) {
      out[i * channels + c] = factor * Load(spec.dtype, data, ElementOf(p.layout, spec, b, h, begin + i, c));
    }
  }
  return out;
}

// One row's way through the definition.
class Row {
 public:
  Row(const AttentionProblem& p, const AttentionArgs& args, const Sizes& n, const Sequence& s, std::int64_t b,
      std::int64_t h, std::int64_t i)
      : p_(p), args_(args), n_(n), s_(s), b_(b), h_(h), i_(i) {}

  bool Sees(std::int64_t j) const {
    const std::int64_t position = i_ + s_.off;
    if (p_.causal && j > position) return false;
    // Distances, as position + window may pass the end of int64.
    if (p_.window_left && position - j > *p_.window_left) return false;
    if (p_.window_right && j - position > *p_.window_right) return false;
    if (p_.bias && Bias(j) == -kInfinity) return false;
    return !p_.mask || Load(DataType::kBool, args_.mask, BroadcastElementOf(*p_.mask, b_, h_, i_, j)) != 0;
  }

  // From the dot product q_i . k_j; `size` becomes the logit's magnitude.
  double Logit(std::int64_t j, double dot, double dot_size, double* size) const {
    const double scale = p_.scale ? *p_.scale : 1.0 / std::sqrt(static_cast<double>(n_.d));
    double x = scale * dot;
    *size = std::abs(scale) * dot_size;
    if (p_.softcap) {
      x = *p_.softcap * std::tanh(x / *p_.softcap);
      *size += *p_.softcap;
    }
    if (p_.bias) {
      const double bias = Bias(j);
      x += bias;
      *size += std::abs(bias);
    }
    if (!p_.alibi_slopes.empty()) {
      const double penalty = p_.alibi_slopes[h_] * std::abs(static_cast<double>(i_ + s_.off - j));
      x -= penalty;
      *size += std::abs(penalty);
    }
    return x;
  }

  // softmax(logits) V over the visible keys, which `keys` and `logits` list; `v` is [keys of the sequence, Dv].
  // `o` and `o_size`, [Dv], are zeros. Returns LSE.
  double Reduce(const std::vector<std::int64_t>& keys, const std::vector<double>& logits, const std::vector<double>& v,
                double* o, double* o_size) const {
    double largest = -kInfinity;
    for (const double x : logits) {
      if (std::isnan(x)) largest = x;
      if (x > largest) largest = x;  // never true once it is NaN
    }
    if (largest == -kInfinity) return -kInfinity;
    const double sink = p_.sinks.empty() ? -kInfinity : p_.sinks[h_];
    const double pivot = std::max(largest, sink);
    double sum = 0;
    for (const double x : logits) sum += std::exp(x - largest);
    const double denominator = sum * std::exp(largest - pivot) + std::exp(sink - pivot);
    for (std::size_t t = 0; t < keys.size(); ++t) {
      if (logits[t] == -kInfinity) continue;
      const double weight = std::exp(logits[t] - pivot) / denominator;
      const double* row = v.data() + keys[t] * n_.dv;
      for (std::int64_t c = 0; c < n_.dv; ++c) {
        o[c] += weight * row[c];
        o_size[c] += std::abs(weight * row[c]);
      }
    }
    return largest + std::log(sum);
  }

 private:
  double Bias(std::int64_t j) const {
    return Load(p_.bias->dtype, args_.bias, BroadcastElementOf(*p_.bias, b_, h_, i_, j));
  }

  const AttentionProblem& p_;
  const AttentionArgs& args_;
  const Sizes& n_;
  const Sequence& s_;
  const std::int64_t b_, h_, i_;
};

// The contenders of a row: the logits that may have a weight beside the largest, even if each is off by 1/64 of its
// magnitude, more than any kernel's rounding. The others are as good as invisible.
struct Contest {
  std::int64_t contenders = 0;
  double magnitude = 0;  // the largest among them
};

Contest ContestOf(const std::vector<double>& logits, const std::vector<double>& sizes) {
  constexpr double kSlack = 1.0 / 64, kWeightless = 1000;  // exp(-1000) is 0 in any type
  double bar = -kInfinity;
  for (std::size_t t = 0; t < logits.size(); ++t) bar = std::max(bar, logits[t] - kSlack * sizes[t] - kWeightless);
  Contest contest;
  for (std::size_t t = 0; t < logits.size(); ++t) {
    if (logits[t] + kSlack * sizes[t] < bar) continue;
    ++contest.contenders;
    contest.magnitude = std::max(contest.magnitude, sizes[t]);
  }
  return contest;
}

}  // namespace

absl::StatusOr<AttentionResult> AttentionValues(const AttentionProblem& p, const AttentionArgs& args) {
  const absl::StatusOr<AttentionGeometry> valid = Validate(p);
  KERND_RETURN_IF_ERROR(valid.status());
  const Sizes n = SizesOf(p);
  const std::int64_t lse_count = (p.layout == AttentionLayout::kPacked ? 1 : n.batch) * n.q_heads * n.q_rows;
  TensorSpec o_spec = p.q;
  o_spec.strides.clear();
  o_spec.shape.back() = n.dv;

  AttentionResult out;
  out.o = {.value = std::vector<double>(o_spec.elements()), .magnitude = std::vector<double>(o_spec.elements())};
  out.lse = {.value = std::vector<double>(lse_count, -kInfinity), .magnitude = std::vector<double>(lse_count)};
  out.contest.resize(lse_count);
  for (std::int64_t b = 0; b < n.batch; ++b) {
    const Sequence s = SequenceOf(p, n, b);
    for (std::int64_t h = 0; h < n.q_heads; ++h) {
      const std::int64_t kv_head = h / (n.q_heads / n.kv_heads);
      const auto factor = [&](const std::vector<float>& values) { return OperandFactor(values, n, b, kv_head); };
      const std::vector<double> q = ReadHead(p, p.q, args.q, b, h, s.q_begin, s.queries, n.d, factor(p.q_scale));
      const std::vector<double> k = ReadHead(p, p.k, args.k, b, kv_head, s.kv_begin, s.keys, n.d, factor(p.k_scale));
      const std::vector<double> v = ReadHead(p, p.v, args.v, b, kv_head, s.kv_begin, s.keys, n.dv, factor(p.v_scale));
      // Threads pay only for problems that take a while; each row is one thread's, so results do not depend on them.
      const double products =
          static_cast<double>(s.queries) * static_cast<double>(s.keys) * static_cast<double>(n.d + n.dv);
#pragma omp parallel for schedule(dynamic) if (products > 1e7)
      for (std::int64_t i = 0; i < s.queries; ++i) {
        const Row row(p, args, n, s, b, h, i);
        std::vector<std::int64_t> keys;
        std::vector<double> logits, sizes;
        for (std::int64_t j = 0; j < s.keys; ++j) {
          if (!row.Sees(j)) continue;
          double dot = 0, dot_size = 0, size = 0;
          for (std::int64_t c = 0; c < n.d; ++c) {
            const double term = q[i * n.d + c] * k[j * n.d + c];
            dot += term;
            dot_size += std::abs(term);
          }
          keys.push_back(j);
          logits.push_back(row.Logit(j, dot, dot_size, &size));
          sizes.push_back(size);
        }
        const std::int64_t o_at = ElementOf(p.layout, o_spec, b, h, s.q_begin + i, 0);
        const std::int64_t lse_row = p.layout == AttentionLayout::kPacked ? h : b * n.q_heads + h;
        const std::int64_t lse_at = lse_row * n.q_rows + s.q_begin + i;
        out.lse.value[lse_at] = row.Reduce(keys, logits, v, out.o.value.data() + o_at, out.o.magnitude.data() + o_at);
        const Contest contest = ContestOf(logits, sizes);
        out.lse.magnitude[lse_at] = contest.magnitude;
        out.contest[lse_at] = contest.contenders > 1 ? contest.magnitude : 0;
      }
    }
  }
  return out;
}

absl::Status Attention(const AttentionProblem& p, const AttentionArgs& args) {
  KERND_ASSIGN_OR_RETURN(const AttentionResult result, AttentionValues(p, args));
  const DataType type = p.output_dtype == DataType::kInvalid ? DefaultAttentionOutput(p.q.dtype) : p.output_dtype;
  const auto store = [](DataType to, const std::vector<double>& values, void* data) {
    for (std::size_t i = 0; i < values.size(); ++i) Store(to, values[i], data, static_cast<std::int64_t>(i));
  };
  store(type, result.o.value, args.o);
  if (p.want_lse) store(DataType::kF32, result.lse.value, args.lse);
  return absl::OkStatus();
}

AttentionPart Merge(absl::Span<const AttentionPart> parts) {
  if (parts.empty()) return {};
  const std::size_t rows = parts[0].lse.size(), dv = rows == 0 ? 0 : parts[0].o.size() / rows;
  AttentionPart out{.o = std::vector<double>(rows * dv), .lse = std::vector<double>(rows, -kInfinity)};
  for (std::size_t r = 0; r < rows; ++r) {
    double largest = -kInfinity;
    for (const AttentionPart& part : parts) {
      if (std::isnan(part.lse[r]) || part.lse[r] > largest) largest = part.lse[r];
    }
    if (largest == -kInfinity) continue;
    double sum = 0;
    for (const AttentionPart& part : parts) sum += std::exp(part.lse[r] - largest);
    out.lse[r] = largest + std::log(sum);
    for (const AttentionPart& part : parts) {
      if (part.lse[r] == -kInfinity) continue;
      const double weight = std::exp(part.lse[r] - out.lse[r]);
      for (std::size_t c = 0; c < dv; ++c) out.o[r * dv + c] += weight * part.o[r * dv + c];
    }
  }
  return out;
}

}  // namespace kernd::reference
