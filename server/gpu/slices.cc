#include "server/gpu/slices.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

namespace kernd::gpu {
namespace {

constexpr std::int64_t kRows = 256;  // of a matmul: then any row stride leaves a slice aligned

template <typename T>
T* Moved(T* data, std::int64_t bytes) {
  if (data == nullptr) return nullptr;
  return reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(data) + static_cast<std::uintptr_t>(bytes));
}

template <typename T>
const T* Element(const T* data, std::int64_t index) {
  return data == nullptr ? nullptr : data + index;
}

// Steps of `stride` bytes that lead from one aligned address to the next; a power of two.
std::int64_t AlignedSteps(std::int64_t stride) {
  return kDeviceAlignment / std::gcd(kDeviceAlignment, stride);
}

// The first half of `count`, a multiple of `grain`; 0: it cannot be halved.
std::int64_t FirstHalf(std::int64_t count, std::int64_t grain) {
  const std::int64_t half = (count / 2 + grain - 1) / grain * grain;
  return half < count ? half : 0;
}

double Bound(double longest, double estimate) {
  return std::max(longest, estimate / kMaxSlices);
}

// ---- matmul

// Dimension `t` of the result's batch, in an operand with these; nullopt where it repeats along it.
std::optional<std::size_t> BatchDimension(const TensorSpec& operand, std::size_t t, std::size_t batch_rank) {
  const std::size_t own = operand.shape.size() - 2;
  if (t + own < batch_rank || operand.shape[t + own - batch_rank] == 1) return std::nullopt;
  return t + own - batch_rank;
}

// Items or rows [start, start + count) of a dimension. Bytes from the whole to the part.
std::int64_t Narrow(TensorSpec& spec, std::size_t dimension, std::int64_t start, std::int64_t count) {
  spec.strides = spec.EffectiveStrides();
  spec.shape[dimension] = count;
  return start * spec.strides[dimension] * ElementBytes(spec.dtype);
}

class MatmulCutter {
 public:
  MatmulCutter(const MatmulVariant& variant, const DeviceInfo& device, double longest)
      : variant_(variant), device_(device), longest_(longest) {}

  void Cut(MatmulSlice slice) {
    const MatmulGeometry& g = slice.geometry;
    possible_ = possible_ && variant_.why_not(slice.problem, g, device_).empty();
    if (!possible_) return;
    if (variant_.estimate(slice.problem, g, device_) > longest_) {
      std::size_t t = 0;
      while (t < g.batch_shape.size() && g.batch_shape[t] == 1) ++t;
      if (t < g.batch_shape.size() ? CutBatch(slice, t) : CutRows(slice)) return;
    }
    slices.push_back(std::move(slice));
  }

  bool possible() const { return possible_; }
  std::vector<MatmulSlice> slices;

 private:
  bool CutBatch(const MatmulSlice& slice, std::size_t t) {
    const MatmulGeometry& g = slice.geometry;
    std::int64_t d_stride = g.m * g.n * ElementBytes(g.output_dtype);
    for (std::size_t i = t + 1; i < g.batch_shape.size(); ++i) d_stride *= g.batch_shape[i];
    std::int64_t grain = AlignedSteps(d_stride);
    const auto align = [&](const TensorSpec& spec) {
      const std::optional<std::size_t> own = BatchDimension(spec, t, g.batch_shape.size());
      if (own) grain = std::max(grain, AlignedSteps(spec.EffectiveStrides()[*own] * ElementBytes(spec.dtype)));
    };
    align(slice.problem.a);
    align(slice.problem.b);
    if (slice.problem.c) align(*slice.problem.c);
    const std::int64_t half = FirstHalf(g.batch_shape[t], grain);
    if (half == 0) return false;
    for (const auto& [start, count] : {std::pair{std::int64_t{0}, half}, {half, g.batch_shape[t] - half}}) {
      MatmulSlice part = slice;
      const auto narrow = [&, start = start, count = count](TensorSpec& spec, std::int64_t& at) {
        const std::optional<std::size_t> own = BatchDimension(spec, t, g.batch_shape.size());
        if (own) at += Narrow(spec, *own, start, count);
      };
      narrow(part.problem.a, part.a);
      narrow(part.problem.b, part.b);
      if (part.problem.c) narrow(*part.problem.c, part.c);
      part.d += start * d_stride;
      CutPart(std::move(part));
    }
    return true;
  }

  bool CutRows(const MatmulSlice& slice) {
    const MatmulGeometry& g = slice.geometry;
    const std::optional<ScaleSpec>& scale = slice.problem.a_scale;
    const std::int64_t half = FirstHalf(g.m, kRows);
    if (half == 0 || (scale && scale->kind == ScaleSpec::Kind::kBlock)) return false;
    for (const auto& [start, count] : {std::pair{std::int64_t{0}, half}, {half, g.m - half}}) {
      MatmulSlice part = slice;
      MatmulProblem& p = part.problem;
      const std::size_t rank = p.a.shape.size();
      part.a += Narrow(p.a, p.transpose_a ? rank - 1 : rank - 2, start, count);
      if (p.c) part.c += Narrow(*p.c, p.c->shape.size() - 2, start, count);
      if (scale && scale->kind == ScaleSpec::Kind::kRow) part.a_scale += Narrow(p.a_scale->spec, 0, start, count);
      part.d += start * g.n * ElementBytes(g.output_dtype);
      CutPart(std::move(part));
    }
    return true;
  }

  void CutPart(MatmulSlice part) {
    absl::StatusOr<MatmulGeometry> geometry = Validate(part.problem);
    possible_ = possible_ && geometry.ok();
    if (!possible_) return;
    part.geometry = *std::move(geometry);
    Cut(std::move(part));
  }

  const MatmulVariant& variant_;
  const DeviceInfo& device_;
  const double longest_;
  bool possible_ = true;
};

// ---- attention

class AttentionCutter {
 public:
  AttentionCutter(const AttentionProblem& p, const AttentionGeometry& g, const AttentionVariant& variant,
                  const DeviceInfo& device, double longest)
      : p_(p), g_(g), variant_(variant), device_(device), longest_(longest) {
    const std::int64_t element = ElementBytes(p.q.dtype), out = ElementBytes(g.output_dtype);
    sequence_grain_ = std::max({AlignedSteps(g.q.batch * element), AlignedSteps(g.k.batch * element),
                                AlignedSteps(g.v.batch * element), AlignedSteps(g.o.batch * out)});
    head_grain_ = std::max({AlignedSteps(g.heads_per_kv * g.q.head * element), AlignedSteps(g.k.head * element),
                            AlignedSteps(g.v.head * element), AlignedSteps(g.heads_per_kv * g.o.head * out)});
  }

  // Sequences [b, b + count), key/value heads [head, head + heads).
  void Cut(std::int64_t b, std::int64_t count, std::int64_t head, std::int64_t heads) {
    AttentionSlice slice = Part(b, count, head, heads);
    possible_ = possible_ && variant_.why_not(p_, slice.geometry, device_).empty();
    if (!possible_) return;
    if (variant_.estimate(p_, slice.geometry, device_) > longest_) {
      if (const std::int64_t half = FirstHalf(count, sequence_grain_); half > 0) {
        Cut(b, half, head, heads);
        return Cut(b + half, count - half, head, heads);
      }
      // The tables of scales are [B, Hkv], so that part of the heads is one run in a single sequence only.
      if (const std::int64_t half = count == 1 ? FirstHalf(heads, head_grain_) : 0; half > 0) {
        Cut(b, 1, head, half);
        return Cut(b, 1, head + half, heads - half);
      }
    }
    slices.push_back(std::move(slice));
  }

  bool possible() const { return possible_; }
  std::vector<AttentionSlice> slices;

 private:
  AttentionSlice Part(std::int64_t b, std::int64_t count, std::int64_t head, std::int64_t heads) const {
    const std::int64_t q_head = head * g_.heads_per_kv;
    AttentionSlice slice{.geometry = g_, .sequence = b, .q_head = q_head, .scale = b * g_.kv_heads + head};
    AttentionGeometry& g = slice.geometry;
    g.batch = count;
    g.kv_heads = heads;
    g.q_heads = heads * g.heads_per_kv;
    g.sequences.assign(g_.sequences.begin() + b, g_.sequences.begin() + b + count);
    g.max_q_rows = g.max_kv_length = 0;
    for (const AttentionSequence& s : g.sequences) {
      g.max_q_rows = std::max(g.max_q_rows, s.q_rows);
      g.max_kv_length = std::max(g.max_kv_length, s.kv_length);
    }
    const std::int64_t element = ElementBytes(p_.q.dtype);
    const auto at = [b](const auto& strides, std::int64_t h, std::int64_t bytes) {
      return (b * strides.batch + h * strides.head) * bytes;
    };
    slice.q = at(g_.q, q_head, element);
    slice.k = at(g_.k, head, element);
    slice.v = at(g_.v, head, element);
    slice.o = at(g_.o, q_head, ElementBytes(g_.output_dtype));
    slice.lse = at(g_.lse, q_head, sizeof(float));
    slice.mask = at(g_.mask, q_head, 1);
    if (p_.bias) slice.bias = at(g_.bias, q_head, ElementBytes(p_.bias->dtype));
    return slice;
  }

  const AttentionProblem& p_;
  const AttentionGeometry& g_;
  const AttentionVariant& variant_;
  const DeviceInfo& device_;
  const double longest_;
  std::int64_t sequence_grain_ = 1, head_grain_ = 1;
  bool possible_ = true;
};

template <typename Cutter>
auto Slices(Cutter& cutter) {
  if (!cutter.possible() || cutter.slices.size() < 2) cutter.slices.clear();
  return std::move(cutter.slices);
}

}  // namespace

MatmulArgs MatmulSlice::Of(const MatmulArgs& whole) const {
  MatmulArgs args = whole;
  args.a = Moved(whole.a, a);
  args.b = Moved(whole.b, b);
  args.c = Moved(whole.c, c);
  args.a_scale = Moved(whole.a_scale, a_scale);
  args.d = Moved(whole.d, d);
  return args;
}

AttentionArgs AttentionSlice::Of(const AttentionArgs& whole) const {
  return {.q = Moved(whole.q, q),
          .k = Moved(whole.k, k),
          .v = Moved(whole.v, v),
          .mask = Moved(whole.mask, mask),
          .bias = Moved(whole.bias, bias),
          .o = Moved(whole.o, o),
          .lse = Moved(whole.lse, lse)};
}

AttentionTables AttentionSlice::Of(const AttentionTables& whole) const {
  return {.sequences = whole.sequences + sequence,
          .alibi_slopes = Element(whole.alibi_slopes, q_head),
          .sinks = Element(whole.sinks, q_head),
          .q_scale = Element(whole.q_scale, scale),
          .k_scale = Element(whole.k_scale, scale),
          .v_scale = Element(whole.v_scale, scale)};
}

std::vector<MatmulSlice> SlicesOf(const MatmulProblem& p, const MatmulGeometry& g, const MatmulVariant& variant,
                                  const DeviceInfo& device, double longest) {
  if (g.d.elements() == 0) return {};
  const double whole = variant.estimate(p, g, device);
  if (whole <= longest) return {};
  MatmulCutter cutter(variant, device, Bound(longest, whole));
  cutter.Cut({.problem = p, .geometry = g});
  return Slices(cutter);
}

std::vector<AttentionSlice> SlicesOf(const AttentionProblem& p, const AttentionGeometry& g,
                                     const AttentionVariant& variant, const DeviceInfo& device, double longest) {
  if (g.o_spec.elements() == 0 || g.kv_heads == 0) return {};
  const double whole = variant.estimate(p, g, device);
  if (whole <= longest) return {};
  AttentionCutter cutter(p, g, variant, device, Bound(longest, whole));
  cutter.Cut(0, g.batch, 0, g.kv_heads);
  return Slices(cutter);
}

}  // namespace kernd::gpu
