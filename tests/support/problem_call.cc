#include "tests/support/problem_call.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/reference/convert.h"
#include "kernels/reference/matmul.h"
#include "kernels/reference/tolerance.h"

namespace kernd::testing {
namespace {

std::optional<client::Client> shared_client;
std::vector<client::KernelInfo> shared_kernels;

client::DataType ClientType(DataType type) {
  return client::ParseDataType(Name(type)).value_or(client::DataType::kUnspecified);
}

client::TensorView ViewOf(const TensorSpec& spec, const Operand& operand) {
  return {.dtype = ClientType(spec.dtype),
          .shape = {spec.shape.begin(), spec.shape.end()},
          .data = {static_cast<const std::byte*>(operand.data()), static_cast<std::size_t>(spec.bytes())}};
}

std::optional<client::TensorView> ViewOf(const std::optional<TensorSpec>& spec, const Operand& operand) {
  return spec ? std::optional(ViewOf(*spec, operand)) : std::nullopt;
}

std::optional<client::Scales> ScalesOf(const std::optional<ScaleSpec>& scale, const Operand& operand) {
  if (!scale) return std::nullopt;
  client::Scales out{
      .block_rows = scale->block_rows, .block_k = scale->block_k, .values = ViewOf(scale->spec, operand)};
  switch (scale->kind) {
    case ScaleSpec::Kind::kTensor: out.kind = client::Scales::Kind::kTensor; break;
    case ScaleSpec::Kind::kRow: out.kind = client::Scales::Kind::kRow; break;
    case ScaleSpec::Kind::kBlock: out.kind = client::Scales::Kind::kBlock; break;
  }
  return out;
}

client::AttentionLayout LayoutOf(AttentionLayout layout) {
  switch (layout) {
    case AttentionLayout::kBHLD: return client::AttentionLayout::kBHLD;
    case AttentionLayout::kBLHD: return client::AttentionLayout::kBLHD;
    case AttentionLayout::kPacked: return client::AttentionLayout::kPacked;
  }
  return client::AttentionLayout::kBHLD;
}

client::MaskAlignment AlignmentOf(MaskAlignment alignment) {
  switch (alignment) {
    case MaskAlignment::kUnset: return client::MaskAlignment::kUnset;
    case MaskAlignment::kTopLeft: return client::MaskAlignment::kTopLeft;
    case MaskAlignment::kBottomRight: return client::MaskAlignment::kBottomRight;
  }
  return client::MaskAlignment::kUnset;
}

client::Activation ActivationOf(Activation activation) {
  switch (activation) {
    case Activation::kNone: return client::Activation::kNone;
    case Activation::kRelu: return client::Activation::kRelu;
    case Activation::kGelu: return client::Activation::kGelu;
    case Activation::kSilu: return client::Activation::kSilu;
  }
  return client::Activation::kNone;
}

client::Numerics NumericsOf(Numerics numerics) {
  switch (numerics) {
    case Numerics::kDefault: return client::Numerics::kDefault;
    case Numerics::kTf32: return client::Numerics::kTf32;
    case Numerics::kBatchInvariant: return client::Numerics::kBatchInvariant;
  }
  return client::Numerics::kDefault;
}

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

// The bytes of a result, which must be what `spec` says.
Bits Received(const char* name, const client::Tensor& tensor, const TensorSpec& spec) {
  const Dims shape(tensor.shape().begin(), tensor.shape().end());
  EXPECT_EQ(tensor.dtype(), ClientType(spec.dtype)) << name;
  EXPECT_EQ(shape, spec.shape) << name;
  EXPECT_EQ(static_cast<std::int64_t>(tensor.bytes().size()), spec.bytes()) << name;
  return {tensor.bytes().begin(), tensor.bytes().end()};
}

void ExpectKernel(const client::KernelUsed& used, const std::string& forced) {
  EXPECT_EQ(used.device, "cpu");
  if (forced.empty()) return;
  EXPECT_EQ(used.name, forced);
  EXPECT_EQ(used.reason, "forced");
}

}  // namespace

void SharedDaemon::SetUp() {
  daemon_ = Daemon::Start();
  ASSERT_NE(daemon_, nullptr);
  // Without retries: a daemon that is gone fails the tests at once.
  auto client = client::Client::Connect({.endpoint = daemon_->endpoint(), .retry = {.max_attempts = 1}});
  ASSERT_TRUE(client.ok()) << client.status();
  auto kernels = client->ListKernels();
  ASSERT_TRUE(kernels.ok()) << kernels.status();
  shared_client = *std::move(client);
  shared_kernels = *std::move(kernels);
}

void SharedDaemon::TearDown() {
  shared_client.reset();
  if (daemon_ == nullptr) return;
  EXPECT_TRUE(daemon_->WaitForMetric("kernd_memory_used_bytes{pool=\"memory\"}", 0));
  EXPECT_TRUE(daemon_->WaitForMetric("kernd_body_budget_used_bytes", 0));
  EXPECT_EQ(daemon_->Stop(), 0) << daemon_->Log();
}

const client::Client& SharedDaemon::client() {
  if (!shared_client) std::abort();
  return *shared_client;
}

const std::vector<client::KernelInfo>& SharedDaemon::kernels() {
  return shared_kernels;
}

MatmulArgs MatmulCase::Args() const {
  return {.a = a.data(),
          .b = b.data(),
          .c = p.c ? c.data() : nullptr,
          .bias = p.bias ? bias.data() : nullptr,
          .a_scale = p.a_scale ? static_cast<const float*>(a_scale.data()) : nullptr,
          .b_scale = p.b_scale ? static_cast<const float*>(b_scale.data()) : nullptr};
}

// alpha and beta at their defaults are left out: the tests of presence name them.
client::MatmulArgs MatmulCase::ClientArgs() const {
  client::MatmulArgs args{.a = ViewOf(p.a, a), .b = ViewOf(p.b, b)};
  args.transpose_a = p.transpose_a;
  args.transpose_b = p.transpose_b;
  if (p.alpha != 1) args.alpha = p.alpha;
  if (p.beta != 0) args.beta = p.beta;
  args.c = ViewOf(p.c, c);
  args.bias = ViewOf(p.bias, bias);
  args.activation = ActivationOf(p.activation);
  args.a_scale = ScalesOf(p.a_scale, a_scale);
  args.b_scale = ScalesOf(p.b_scale, b_scale);
  args.numerics = NumericsOf(p.numerics);
  args.d_dtype = ClientType(p.output_dtype);
  return args;
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
  client::AttentionArgs args{
      .layout = LayoutOf(p.layout), .q = ViewOf(p.q, q), .k = ViewOf(p.k, k), .v = ViewOf(p.v, v)};
  args.scale = p.scale;
  args.causal = p.causal;
  args.alignment = AlignmentOf(p.alignment);
  args.window_left = p.window_left;
  args.window_right = p.window_right;
  args.softcap = p.softcap;
  args.mask = ViewOf(p.mask, mask);
  args.bias = ViewOf(p.bias, bias);
  args.alibi_slopes = p.alibi_slopes;
  args.sinks = p.sinks;
  args.q_lengths = p.q_lengths;
  args.kv_lengths = p.kv_lengths;
  args.q_offsets = p.q_offsets;
  args.kv_offsets = p.kv_offsets;
  args.q_scale = p.q_scale;
  args.k_scale = p.k_scale;
  args.v_scale = p.v_scale;
  args.o_dtype = ClientType(p.output_dtype);
  args.want_lse = p.want_lse;
  return args;
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

Bits Ask(const MatmulCase& c, const std::string& kernel) {
  const auto geometry = Validate(c.p);
  EXPECT_TRUE(geometry.ok()) << geometry.status();
  client::MatmulArgs args = c.ClientArgs();
  args.kernel.name = kernel;
  const auto reply = SharedDaemon::client().Matmul(args);
  EXPECT_TRUE(reply.ok()) << reply.status();
  if (!geometry.ok() || !reply.ok()) return {};
  ExpectKernel(reply->kernel, kernel);
  EXPECT_EQ(reply->kernel.numerics, Name(c.p.numerics));
  return Received("D", reply->d, geometry->d);
}

AttentionBits Ask(const AttentionCase& c, const std::string& kernel) {
  const auto geometry = Validate(c.p);
  EXPECT_TRUE(geometry.ok()) << geometry.status();
  client::AttentionArgs args = c.ClientArgs();
  args.kernel.name = kernel;
  const auto reply = SharedDaemon::client().Attention(args);
  EXPECT_TRUE(reply.ok()) << reply.status();
  if (!geometry.ok() || !reply.ok()) return {};
  ExpectKernel(reply->kernel, kernel);
  AttentionBits bits{.o = Received("O", reply->o, geometry->o_spec)};
  if (c.p.want_lse) bits.lse = Received("LSE", reply->lse, *geometry->lse_spec);
  return bits;
}

void ExpectMatches(const MatmulCase& c, const Bits& d, const reference::Values& expected) {
  const auto size = static_cast<std::int64_t>(expected.value.size()) * ElementBytes(c.OutputType());
  ASSERT_EQ(static_cast<std::int64_t>(d.size()), size);
  const auto result =
      reference::Compare(c.OutputType(), d.data(), expected.value, reference::MatmulBounds(c.p, expected));
  EXPECT_TRUE(result.ok()) << "D: " << result.ToString();
}

void ExpectMatches(const AttentionCase& c, const AttentionBits& result, const reference::AttentionResult& expected) {
  const auto o_size = static_cast<std::int64_t>(expected.o.value.size()) * ElementBytes(c.OutputType());
  ASSERT_EQ(static_cast<std::int64_t>(result.o.size()), o_size);
  const auto o =
      reference::Compare(c.OutputType(), result.o.data(), expected.o.value, reference::OutputBounds(c.p, expected));
  EXPECT_TRUE(o.ok()) << "O: " << o.ToString();
  if (!c.p.want_lse) return;
  ASSERT_EQ(result.lse.size(), expected.lse.value.size() * sizeof(float));
  const auto lse =
      reference::Compare(DataType::kF32, result.lse.data(), expected.lse.value, reference::LseBounds(c.p, expected));
  EXPECT_TRUE(lse.ok()) << "LSE: " << lse.ToString();
}

Bits AskAndCheck(const MatmulCase& c, const std::string& kernel) {
  Bits d = Ask(c, kernel);
  const auto expected = reference::MatmulValues(c.p, c.Args());
  EXPECT_TRUE(expected.ok()) << expected.status();
  if (expected.ok()) ExpectMatches(c, d, *expected);
  return d;
}

AttentionBits AskAndCheck(const AttentionCase& c, const std::string& kernel) {
  AttentionBits bits = Ask(c, kernel);
  const auto expected = reference::AttentionValues(c.p, c.Args());
  EXPECT_TRUE(expected.ok()) << expected.status();
  if (expected.ok()) ExpectMatches(c, bits, *expected);
  return bits;
}

Bits Slice(const Bits& bits, std::int64_t begin, std::int64_t count) {
  const auto size = static_cast<std::int64_t>(bits.size());
  EXPECT_TRUE(begin >= 0 && count > 0 && count <= size - begin) << begin << " + " << count << " of " << size;
  if (begin < 0 || count <= 0 || count > size - begin) return {};
  return {bits.begin() + begin, bits.begin() + begin + count};
}

}  // namespace kernd::testing
