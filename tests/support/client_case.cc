#include "tests/support/client_case.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/verify/client_args.h"
#include "kernels/reference/convert.h"

namespace kernd::testing {
namespace {

// " name [1,2]", or nothing.
template <typename T>
std::string Part(const char* name, const std::vector<T>& values) {
  return values.empty() ? "" : absl::StrCat(" ", name, " [", absl::StrJoin(values, ","), "]");
}
template <typename T>
std::string Part(const char* name, const std::optional<T>& value) {
  return value ? absl::StrCat(" ", name, " ", *value) : "";
}
std::string Part(const char* name, const std::optional<TensorSpec>& spec) {
  return spec ? absl::StrCat(" ", name, " ", spec->ToString()) : "";
}
std::string Part(const char* name, const std::optional<ScaleSpec>& scale) {
  if (!scale) return "";
  return absl::StrCat(" ", name, " ", scale->spec.ToString(),
                      scale->kind == ScaleSpec::Kind::kBlock
                          ? absl::StrCat(" of blocks ", scale->block_rows, "x", scale->block_k)
                          : "");
}
std::string TypePart(DataType type) {
  return type == DataType::kInvalid ? "" : absl::StrCat(" to ", std::string(Name(type)));
}

// Takes the operand that `data` and `spec` say, whatever its strides.
void Take(TensorSpec& spec, const void* data, Operand& operand) {
  const Dims strides = spec.EffectiveStrides();
  const DataType type = spec.dtype;
  spec.strides.clear();
  operand = Operand(spec, 0);
  operand.Fill([&](const Dims& at) {
    std::int64_t offset = 0;
    for (std::size_t i = 0; i < at.size(); ++i) offset += at[i] * strides[i];
    return reference::Load(type, data, offset);
  });
}
}  // namespace

client::DataType ClientType(DataType type) {
  return client::ParseDataType(Name(type)).value_or(client::DataType::kUnspecified);
}

MatmulArgs MatmulCase::Args() const {
  return {.a = a.data(),
          .b = b.data(),
          .c = p.c ? c.data() : nullptr,
          .bias = p.bias ? bias.data() : nullptr,
          .a_scale = p.a_scale ? static_cast<const float*>(a_scale.data()) : nullptr,
          .b_scale = p.b_scale ? static_cast<const float*>(b_scale.data()) : nullptr};
}

client::MatmulArgs MatmulCase::ClientArgs() const {
  return cli::ClientArgs(p, Args());
}

DataType MatmulCase::OutputType() const {
  return p.output_dtype == DataType::kInvalid ? DefaultMatmulOutput(p.a.dtype) : p.output_dtype;
}

std::string MatmulCase::ToString() const {
  return absl::StrCat("a ", p.a.ToString(), p.transpose_a ? "^T" : "", " b ", p.b.ToString(), p.transpose_b ? "^T" : "",
                      TypePart(p.output_dtype), " alpha ", p.alpha, " beta ", p.beta, Part("c", p.c),
                      Part("bias", p.bias), " ", std::string(Name(p.activation)), Part("a_scale", p.a_scale),
                      Part("b_scale", p.b_scale), " ", std::string(Name(p.numerics)));
}

AttentionArgs AttentionCase::Args() const {
  return {.q = q.data(),
          .k = k.data(),
          .v = v.data(),
          .mask = p.mask ? mask.data() : nullptr,
          .bias = p.bias ? bias.data() : nullptr};
}

client::AttentionArgs AttentionCase::ClientArgs() const {
  return cli::ClientArgs(p, Args());
}

DataType AttentionCase::OutputType() const {
  return p.output_dtype == DataType::kInvalid ? DefaultAttentionOutput(p.q.dtype) : p.output_dtype;
}

std::string AttentionCase::ToString() const {
  return absl::StrCat(std::string(Name(p.layout)), " q ", p.q.ToString(), " k ", p.k.ToString(), " v ", p.v.ToString(),
                      TypePart(p.output_dtype), Part("mask", p.mask), Part("bias", p.bias), Part("scale", p.scale),
                      Part("softcap", p.softcap), p.causal ? " causal" : "", " ", std::string(Name(p.alignment)),
                      Part("left", p.window_left), Part("right", p.window_right)) +
         Part("q_lengths", p.q_lengths) + Part("kv_lengths", p.kv_lengths) + Part("q_offsets", p.q_offsets) +
         Part("kv_offsets", p.kv_offsets) + Part("slopes", p.alibi_slopes) + Part("sinks", p.sinks) +
         Part("q_scale", p.q_scale) + Part("k_scale", p.k_scale) + Part("v_scale", p.v_scale);
}

AttentionCase MakeAttention(const AttentionSizes& n, std::uint64_t seed, DataType type, AttentionLayout layout) {
  Random random(seed);
  AttentionCase c;
  const bool packed = layout == AttentionLayout::kPacked;
  const auto shape = [&](std::int64_t heads, std::int64_t rows, std::int64_t channels) {
    if (packed) return Dims{n.batch * rows, heads, channels};
    return layout == AttentionLayout::kBHLD ? Dims{n.batch, heads, rows, channels}
                                            : Dims{n.batch, rows, heads, channels};
  };
  c.p.layout = layout;
  SetNormal(c.p.q, c.q, type, shape(n.q_heads, n.q_rows, n.d), random);
  SetNormal(c.p.k, c.k, type, shape(n.kv_heads, n.kv_rows, n.d), random);
  SetNormal(c.p.v, c.v, type, shape(n.kv_heads, n.kv_rows, n.dv), random);
  const auto offsets = [&](std::int64_t total) {
    std::vector<std::int64_t> cuts(static_cast<std::size_t>(n.batch) + 1, 0);
    for (std::size_t i = 1; i + 1 < cuts.size(); ++i) cuts[i] = Pick(random, 0, total);
    cuts.back() = n.batch == 0 ? 0 : total;
    std::sort(cuts.begin(), cuts.end());
    return cuts;
  };
  if (packed) {
    c.p.q_offsets = offsets(n.batch * n.q_rows);
    c.p.kv_offsets = offsets(n.batch * n.kv_rows);
  }
  c.p.want_lse = true;
  return c;
}

MatmulCase MakeMatmul(DataType type, std::int64_t m, std::int64_t n, std::int64_t k, std::uint64_t seed) {
  Random random(seed);
  MatmulCase c;
  SetNormal(c.p.a, c.a, type, {m, k}, random);
  SetNormal(c.p.b, c.b, type, {k, n}, random);
  return c;
}

void SetNormal(TensorSpec& spec, Operand& operand, DataType type, Dims shape, Random& random, double scale) {
  spec = {.dtype = type, .shape = std::move(shape)};
  operand = Operand(spec, 0);
  operand.FillNormal(random, scale);
}

std::vector<float> Draw(Random& random, std::int64_t count, double low, double high) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& x : values) x = static_cast<float>(std::uniform_real_distribution<double>(low, high)(random));
  return values;
}

void Transpose(MatmulCase& c, bool a, bool b, Random& random) {
  c.p.transpose_a = a;
  c.p.transpose_b = b;
  if (a) SetNormal(c.p.a, c.a, c.p.a.dtype, {c.p.a.shape[1], c.p.a.shape[0]}, random);
  if (b) SetNormal(c.p.b, c.b, c.p.b.dtype, {c.p.b.shape[1], c.p.b.shape[0]}, random);
}

void SetC(MatmulCase& c, double beta, Dims shape, Random& random) {
  c.p.beta = beta;
  SetNormal(c.p.c.emplace(), c.c, c.OutputType(), std::move(shape), random,
            c.OutputType() == DataType::kI32 ? 9999 : 4);
}

void SetBias(MatmulCase& c, DataType type, std::int64_t n, Random& random) {
  SetNormal(c.p.bias.emplace(), c.bias, type, {n}, random, type == DataType::kI32 ? 9999 : 4);
}

void SetWindow(AttentionCase& c, MaskAlignment alignment, bool causal, std::optional<std::int64_t> left,
               std::optional<std::int64_t> right) {
  c.p.alignment = alignment;
  c.p.causal = causal;
  c.p.window_left = left;
  c.p.window_right = right;
}

MatmulCase MatmulOf(const Golden& golden) {
  MatmulArgs args;
  MatmulCase c;
  c.p = golden.Matmul(&args);
  Take(c.p.a, args.a, c.a);
  Take(c.p.b, args.b, c.b);
  if (c.p.c) Take(*c.p.c, args.c, c.c);
  if (c.p.bias) Take(*c.p.bias, args.bias, c.bias);
  if (c.p.a_scale) Take(c.p.a_scale->spec, args.a_scale, c.a_scale);
  if (c.p.b_scale) Take(c.p.b_scale->spec, args.b_scale, c.b_scale);
  return c;
}

AttentionCase AttentionOf(const Golden& golden) {
  AttentionArgs args;
  AttentionCase c;
  c.p = golden.Attention(&args);
  Take(c.p.q, args.q, c.q);
  Take(c.p.k, args.k, c.k);
  Take(c.p.v, args.v, c.v);
  if (c.p.mask) Take(*c.p.mask, args.mask, c.mask);
  if (c.p.bias) Take(*c.p.bias, args.bias, c.bias);
  return c;
}
}  // namespace kernd::testing
