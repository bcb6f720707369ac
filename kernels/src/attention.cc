#include "kernd/kernels/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernd/kernels/error.h"

namespace kernd {
namespace {

std::string ToText(DataType type) {
  return std::string(Name(type));
}

// Positions of the dimensions in Q, K, V and O; batch is -1 where the layout has none.
struct Axes {
  int batch, head, row, channel;
};

Axes AxesOf(AttentionLayout layout) {
  switch (layout) {
    case AttentionLayout::kBHLD: return {0, 1, 2, 3};
    case AttentionLayout::kBLHD: return {0, 2, 1, 3};
    case AttentionLayout::kPacked: return {-1, 1, 0, 2};
  }
  return {0, 1, 2, 3};
}

std::string_view ShapeRule(AttentionLayout layout, bool query) {
  switch (layout) {
    case AttentionLayout::kBHLD: return query ? "layout BHLD takes [B,Hq,Lq,D]" : "layout BHLD takes [B,Hkv,Lkv,D]";
    case AttentionLayout::kBLHD: return query ? "layout BLHD takes [B,Lq,Hq,D]" : "layout BLHD takes [B,Lkv,Hkv,D]";
    case AttentionLayout::kPacked:
      return query ? "layout PACKED takes [total,Hq,D]" : "layout PACKED takes [total,Hkv,D]";
  }
  return "";
}

HeadStrides StridesOf(const TensorSpec& spec, const Axes& axes) {
  const Dims s = spec.EffectiveStrides();
  return {.batch = axes.batch < 0 ? 0 : s[axes.batch], .head = s[axes.head], .row = s[axes.row]};
}

absl::Status CheckRank(std::string_view name, const TensorSpec& spec, AttentionLayout layout, bool query) {
  const std::string field = absl::StrCat("attention.", std::string(name));
  KERND_RETURN_IF_ERROR(CheckSpec(field, spec));
  if (spec.rank() != (layout == AttentionLayout::kPacked ? 3 : 4)) {
    return InvalidField(field + ".shape", ToString(spec.shape), ShapeRule(layout, query));
  }
  return absl::OkStatus();
}

absl::Status CheckTypes(const AttentionProblem& p, DataType output) {
  const DataType t = p.q.dtype;
  if (t != DataType::kF16 && t != DataType::kBF16 && t != DataType::kF32 && !IsFloat8(t)) {
    return UnsupportedField("attention.q.dtype", Name(t), "attention takes F16, BF16, F32, F8E4M3 and F8E5M2");
  }
  for (const auto& [name, spec] : {std::pair{"k", &p.k}, std::pair{"v", &p.v}}) {
    if (spec->dtype != t) {
      return InvalidField(absl::StrCat("attention.", name, ".dtype"), Name(spec->dtype),
                          absl::StrCat("must be Q's, ", ToText(t)));
    }
  }
  const bool ok = IsFloat8(t) ? output == DataType::kBF16 || output == DataType::kF16 || output == DataType::kF32
                              : output == t || output == DataType::kF32;
  if (!ok) {
    return UnsupportedField("attention.output_dtype", Name(output),
                            absl::StrCat("not offered for operands of ", ToText(t)));
  }
  return absl::OkStatus();
}

// A mask or bias: [1|B, 1|Hq, 1|Lq, Lkv].
absl::StatusOr<BroadcastStrides> CheckBroadcast(const std::string& field, const TensorSpec& spec,
                                                const AttentionProblem& p, const Dims& full) {
  if (p.layout == AttentionLayout::kPacked) {
    return UnsupportedField(field, "set", "the packed layout takes neither mask nor bias");
  }
  KERND_RETURN_IF_ERROR(CheckSpec(field, spec));
  bool ok = spec.rank() == 4 && spec.shape[3] == full[3];
  for (int i = 0; ok && i < 3; ++i) ok = spec.shape[i] == 1 || spec.shape[i] == full[i];
  if (!ok) {
    return InvalidField(field + ".shape", ToString(spec.shape),
                        "must broadcast from [1|B,1|Hq,1|Lq,Lkv] to " + ToString(full));
  }
  const Dims s = spec.EffectiveStrides();
  const auto stride = [&](int i) { return spec.shape[i] == 1 ? 0 : s[i]; };
  return BroadcastStrides{.batch = stride(0), .head = stride(1), .row = stride(2), .col = 1};
}

absl::Status CheckLengths(std::string_view name, const std::vector<std::int64_t>& lengths, std::int64_t batch,
                          std::int64_t limit) {
  const std::string field = absl::StrCat("attention.", std::string(name));
  if (lengths.empty()) return absl::OkStatus();
  if (static_cast<std::int64_t>(lengths.size()) != batch) {
    return InvalidField(field, absl::StrCat(lengths.size(), " entries"),
                        absl::StrCat("one for each of ", batch, " sequences"));
  }
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    if (lengths[i] < 0 || lengths[i] > limit) {
      return InvalidField(absl::StrCat(field, "[", i, "]"), absl::StrCat(lengths[i]),
                          absl::StrCat("must lie in 0..", limit));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckOffsets(std::string_view name, const std::vector<std::int64_t>& offsets, std::int64_t total) {
  const std::string field = absl::StrCat("attention.", std::string(name));
  if (offsets.empty())
    return InvalidField(field, "absent", "the packed layout needs it: B + 1 entries from 0 to the total");
  if (offsets.front() != 0) return InvalidField(field + "[0]", absl::StrCat(offsets.front()), "must be 0");
  for (std::size_t i = 1; i < offsets.size(); ++i) {
    if (offsets[i] < offsets[i - 1]) {
      return InvalidField(absl::StrCat(field, "[", i, "]"), absl::StrCat(offsets[i]),
                          absl::StrCat("must not fall below the one before, ", offsets[i - 1]));
    }
  }
  if (offsets.back() != total) {
    return InvalidField(absl::StrCat(field, "[", offsets.size() - 1, "]"), absl::StrCat(offsets.back()),
                        absl::StrCat("the last offset is the number of rows, ", total));
  }
  return absl::OkStatus();
}

absl::Status CheckPerHead(std::string_view name, const std::vector<float>& values, std::int64_t heads,
                          bool minus_infinity_ok) {
  const std::string field = absl::StrCat("attention.", std::string(name));
  if (values.empty()) return absl::OkStatus();
  if (static_cast<std::int64_t>(values.size()) != heads) {
    return InvalidField(field, absl::StrCat(values.size(), " entries"),
                        absl::StrCat("one for each of ", heads, " query heads"));
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    const bool minus_infinity = std::isinf(values[i]) && values[i] < 0;
    if (!std::isfinite(values[i]) && !(minus_infinity_ok && minus_infinity)) {
      return InvalidField(absl::StrCat(field, "[", i, "]"), absl::StrCat(values[i]),
                          minus_infinity_ok ? "must be finite or minus infinity" : "must be finite");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckOperandScale(std::string_view name, const std::vector<float>& values, const AttentionGeometry& g,
                               DataType t) {
  const std::string field = absl::StrCat("attention.", std::string(name));
  if (values.empty()) return absl::OkStatus();
  if (!IsFloat8(t)) return InvalidField(field, "set", absl::StrCat("only 8-bit operands take scales, not ", ToText(t)));
  const std::int64_t size = static_cast<std::int64_t>(values.size());
  if (size != 1 && size != g.kv_heads && CheckedMul(g.batch, g.kv_heads) != size) {
    return InvalidField(field, absl::StrCat(size, " entries"),
                        absl::StrCat("1, Hkv = ", g.kv_heads, ", or B * Hkv entries"));
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i])) {
      return InvalidField(absl::StrCat(field, "[", i, "]"), absl::StrCat(values[i]), "must be finite");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckScalars(const AttentionProblem& p) {
  if (p.scale && !std::isfinite(*p.scale))
    return InvalidField("attention.scale", absl::StrCat(*p.scale), "must be finite");
  if (p.softcap && !(std::isfinite(*p.softcap) && *p.softcap > 0)) {
    return InvalidField("attention.softcap", absl::StrCat(*p.softcap), "must be finite and positive");
  }
  if (p.window_left && *p.window_left < 0) {
    return InvalidField("attention.window_left", absl::StrCat(*p.window_left),
                        "must not be negative; leave it out for no bound");
  }
  if (p.window_right && *p.window_right < 0) {
    return InvalidField("attention.window_right", absl::StrCat(*p.window_right),
                        "must not be negative; leave it out for no bound");
  }
  if (p.causal && p.window_right && *p.window_right != 0) {
    return InvalidField("attention.window_right", absl::StrCat(*p.window_right),
                        "causal attention sees nothing to the right: 0 or absent");
  }
  return absl::OkStatus();
}

// Sequences and their diagonals. Shapes are checked already.
absl::Status FillSequences(const AttentionProblem& p, const Axes& axes, AttentionGeometry& g) {
  const std::int64_t q_rows = p.q.shape[axes.row], kv_rows = p.k.shape[axes.row];
  const bool packed = p.layout == AttentionLayout::kPacked;
  if (packed) {
    if (!p.q_lengths.empty() || !p.kv_lengths.empty()) {
      return InvalidField(p.q_lengths.empty() ? "attention.kv_lengths" : "attention.q_lengths", "set",
                          "lengths do not go together with packed offsets");
    }
    KERND_RETURN_IF_ERROR(CheckOffsets("q_offsets", p.q_offsets, q_rows));
    KERND_RETURN_IF_ERROR(CheckOffsets("kv_offsets", p.kv_offsets, kv_rows));
    if (p.q_offsets.size() != p.kv_offsets.size()) {
      return InvalidField("attention.kv_offsets", absl::StrCat(p.kv_offsets.size(), " entries"),
                          absl::StrCat("as many as q_offsets, ", p.q_offsets.size()));
    }
    g.batch = static_cast<std::int64_t>(p.q_offsets.size()) - 1;
  } else {
    if (!p.q_offsets.empty() || !p.kv_offsets.empty()) {
      return InvalidField(p.q_offsets.empty() ? "attention.kv_offsets" : "attention.q_offsets", "set",
                          "offsets belong to the packed layout");
    }
    KERND_RETURN_IF_ERROR(CheckLengths("q_lengths", p.q_lengths, g.batch, q_rows));
    KERND_RETURN_IF_ERROR(CheckLengths("kv_lengths", p.kv_lengths, g.batch, kv_rows));
  }

  // A shape without elements may still name any batch: bound what is kept for each sequence.
  if (g.batch > kMaxSequences) {
    return UnsupportedField("attention.q.shape", ToString(p.q.shape),
                            absl::StrCat("at most ", kMaxSequences, " sequences a call"));
  }
  g.sequences.resize(g.batch);
  std::optional<std::int64_t> scores = 0;
  for (std::int64_t b = 0; b < g.batch; ++b) {
    AttentionSequence& s = g.sequences[b];
    if (packed) {
      s.q_start = p.q_offsets[b];
      s.q_rows = s.q_length = p.q_offsets[b + 1] - p.q_offsets[b];
      s.kv_start = p.kv_offsets[b];
      s.kv_length = p.kv_offsets[b + 1] - p.kv_offsets[b];
    } else {
      s.q_rows = q_rows;
      s.q_length = p.q_lengths.empty() ? q_rows : p.q_lengths[b];
      s.kv_length = p.kv_lengths.empty() ? kv_rows : p.kv_lengths[b];
    }
    if (g.positional && s.q_length != s.kv_length && p.alignment == MaskAlignment::kUnset) {
      return InvalidField("attention.alignment", "unset",
                          absl::StrCat("sequence ", b, " has ", s.q_length, " queries and ", s.kv_length,
                                       " keys: name TOP_LEFT or BOTTOM_RIGHT"));
    }
    s.diagonal = p.alignment == MaskAlignment::kBottomRight ? s.kv_length - s.q_length : 0;
    g.max_q_rows = std::max(g.max_q_rows, s.q_rows);
    g.max_kv_length = std::max(g.max_kv_length, s.kv_length);
    const std::optional<std::int64_t> own = CheckedProduct({g.q_heads, s.q_rows, s.kv_length});
    scores = scores && own ? CheckedAdd(*scores, *own) : std::nullopt;
  }
  if (!scores || *scores > kMaxScores) {
    return UnsupportedField("attention.k.shape", ToString(p.k.shape),
                            absl::StrCat("with Q's ", ToString(p.q.shape), " more than 2^53 scores in a call"));
  }
  return absl::OkStatus();
}

}  // namespace

float AttentionGeometry::OperandScale(const std::vector<float>& values, std::int64_t b, std::int64_t kv_head) const {
  if (values.empty()) return 1.0f;
  const std::int64_t size = static_cast<std::int64_t>(values.size());
  if (size == 1) return values[0];
  return size == kv_heads ? values[kv_head] : values[b * kv_heads + kv_head];
}

DataType DefaultAttentionOutput(DataType operand) {
  return IsFloat8(operand) ? DataType::kBF16 : operand;
}

absl::StatusOr<AttentionGeometry> Validate(const AttentionProblem& p) {
  KERND_RETURN_IF_ERROR(CheckRank("q", p.q, p.layout, true));
  KERND_RETURN_IF_ERROR(CheckRank("k", p.k, p.layout, false));
  KERND_RETURN_IF_ERROR(CheckRank("v", p.v, p.layout, false));
  const Axes axes = AxesOf(p.layout);
  const Dims &q = p.q.shape, &k = p.k.shape, &v = p.v.shape;

  AttentionGeometry g;
  g.output_dtype = p.output_dtype == DataType::kInvalid ? DefaultAttentionOutput(p.q.dtype) : p.output_dtype;
  KERND_RETURN_IF_ERROR(CheckTypes(p, g.output_dtype));
  g.batch = axes.batch < 0 ? 0 : q[axes.batch];
  g.q_heads = q[axes.head];
  g.kv_heads = k[axes.head];
  g.head_dim = q[axes.channel];
  g.v_head_dim = v[axes.channel];

  if (k[axes.channel] != g.head_dim) {
    return InvalidField("attention.k.shape", ToString(k), absl::StrCat("its head_dim must be Q's, ", g.head_dim));
  }
  for (const auto& [name, shape] : {std::pair{"k", &k}, std::pair{"v", &v}}) {
    const std::string field = absl::StrCat("attention.", name, ".shape");
    if (axes.batch >= 0 && (*shape)[axes.batch] != g.batch) {
      return InvalidField(field, ToString(*shape), absl::StrCat("its batch must be Q's, ", g.batch));
    }
  }
  if (v[axes.head] != g.kv_heads) {
    return InvalidField("attention.v.shape", ToString(v), absl::StrCat("its heads must be K's, ", g.kv_heads));
  }
  if (v[axes.row] != k[axes.row]) {
    return InvalidField("attention.v.shape", ToString(v), absl::StrCat("its length must be K's, ", k[axes.row]));
  }
  if (g.kv_heads == 0 ? g.q_heads != 0 : g.q_heads % g.kv_heads != 0) {
    return InvalidField("attention.k.shape", ToString(k),
                        absl::StrCat("Q's ", g.q_heads, " heads must be a multiple of its ", g.kv_heads));
  }
  g.heads_per_kv = g.kv_heads == 0 ? 1 : g.q_heads / g.kv_heads;
  if (g.head_dim == 0 && !p.scale) {
    return InvalidField("attention.q.shape", ToString(q), "a head_dim of 0 has no default scale: give one");
  }
  KERND_RETURN_IF_ERROR(CheckScalars(p));
  g.scale = p.scale ? *p.scale : 1.0 / std::sqrt(static_cast<double>(g.head_dim));
  g.window_left = p.window_left;
  g.window_right = p.causal ? std::optional<std::int64_t>(0) : p.window_right;
  g.positional = g.window_left || g.window_right || !p.alibi_slopes.empty();

  g.o_spec.dtype = g.output_dtype;
  g.o_spec.shape = q;
  g.o_spec.shape[axes.channel] = g.v_head_dim;
  if (!CheckSpec("attention.o", g.o_spec).ok()) {
    return InvalidField("attention.o.shape", ToString(g.o_spec.shape), "the result must be below 2^63 bytes");
  }
  if (p.want_lse) {
    g.lse_spec.emplace().dtype = DataType::kF32;
    if (axes.batch >= 0) g.lse_spec->shape.push_back(g.batch);
    g.lse_spec->shape.push_back(g.q_heads);
    g.lse_spec->shape.push_back(q[axes.row]);
    if (!CheckSpec("attention.lse", *g.lse_spec).ok()) {
      return InvalidField("attention.lse.shape", ToString(g.lse_spec->shape), "the result must be below 2^63 bytes");
    }
  }
  KERND_RETURN_IF_ERROR(FillSequences(p, axes, g));

  KERND_RETURN_IF_ERROR(CheckPerHead("alibi_slopes", p.alibi_slopes, g.q_heads, false));
  KERND_RETURN_IF_ERROR(CheckPerHead("sinks", p.sinks, g.q_heads, true));
  KERND_RETURN_IF_ERROR(CheckOperandScale("q_scale", p.q_scale, g, p.q.dtype));
  KERND_RETURN_IF_ERROR(CheckOperandScale("k_scale", p.k_scale, g, p.q.dtype));
  KERND_RETURN_IF_ERROR(CheckOperandScale("v_scale", p.v_scale, g, p.q.dtype));

  const Dims full = {g.batch, g.q_heads, q[axes.row], k[axes.row]};
  if (p.mask) {
    if (p.mask->dtype != DataType::kBool)
      return InvalidField("attention.mask.dtype", Name(p.mask->dtype), "a mask is BOOL");
    KERND_ASSIGN_OR_RETURN(g.mask, CheckBroadcast("attention.mask", *p.mask, p, full));
  }
  if (p.bias) {
    if (p.bias->dtype != DataType::kF32 && p.bias->dtype != p.q.dtype) {
      return InvalidField("attention.bias.dtype", Name(p.bias->dtype),
                          absl::StrCat("must be F32 or Q's, ", ToText(p.q.dtype)));
    }
    KERND_ASSIGN_OR_RETURN(g.bias, CheckBroadcast("attention.bias", *p.bias, p, full));
  }

  g.q = StridesOf(p.q, axes);
  g.k = StridesOf(p.k, axes);
  g.v = StridesOf(p.v, axes);
  g.o = StridesOf(g.o_spec, axes);
  const std::int64_t rows = q[axes.row];
  g.lse = axes.batch < 0 ? HeadStrides{.batch = 0, .head = rows, .row = 1}
                         : HeadStrides{.batch = CheckedMul(g.q_heads, rows).value_or(0), .head = rows, .row = 1};
  return g;
}

std::int64_t NaiveBytes(const AttentionProblem& p, const AttentionGeometry& g) {
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  std::optional<std::int64_t> total = 0;
  const auto add = [&](std::optional<std::int64_t> bytes) {
    total = total && bytes ? CheckedAdd(*total, *bytes) : std::nullopt;
  };
  for (const TensorSpec* spec : {&p.q, &p.k, &p.v, &g.o_spec}) add(spec->bytes());
  if (p.mask) add(p.mask->bytes());
  if (p.bias) add(p.bias->bytes());
  if (g.lse_spec) add(g.lse_spec->bytes());
  for (const AttentionSequence& s : g.sequences) add(CheckedProduct({4, g.q_heads, s.q_rows, s.kv_length}));
  return total.value_or(kMax);
}

std::string_view Name(AttentionLayout layout) {
  switch (layout) {
    case AttentionLayout::kBHLD: return "BHLD";
    case AttentionLayout::kBLHD: return "BLHD";
    case AttentionLayout::kPacked: return "PACKED";
  }
  return "invalid";
}

std::string_view Name(MaskAlignment alignment) {
  switch (alignment) {
    case MaskAlignment::kUnset: return "unset";
    case MaskAlignment::kTopLeft: return "top_left";
    case MaskAlignment::kBottomRight: return "bottom_right";
  }
  return "invalid";
}

}  // namespace kernd
