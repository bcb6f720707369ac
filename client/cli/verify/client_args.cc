#include "client/cli/verify/client_args.h"

#include <optional>

#include "client/cli/types.h"

namespace kernd::cli {
namespace {

client::TensorView ViewOf(const TensorSpec& spec, const void* data) {
  return {.dtype = ClientType(spec.dtype),
          .shape = {spec.shape.begin(), spec.shape.end()},
          .data = {static_cast<const std::byte*>(data), static_cast<std::size_t>(spec.bytes())}};
}

std::optional<client::TensorView> ViewOf(const std::optional<TensorSpec>& spec, const void* data) {
  return spec ? std::optional(ViewOf(*spec, data)) : std::nullopt;
}

std::optional<client::Scales> ScalesOf(const std::optional<ScaleSpec>& scale, const float* data) {
  if (!scale) return std::nullopt;
  client::Scales out{.block_rows = scale->block_rows, .block_k = scale->block_k, .values = ViewOf(scale->spec, data)};
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

}  // namespace

client::MatmulArgs ClientArgs(const MatmulProblem& p, const MatmulArgs& args) {
  client::MatmulArgs out{.a = ViewOf(p.a, args.a), .b = ViewOf(p.b, args.b)};
  out.transpose_a = p.transpose_a;
  out.transpose_b = p.transpose_b;
  if (p.alpha != 1) out.alpha = p.alpha;
  if (p.beta != 0) out.beta = p.beta;
  out.c = ViewOf(p.c, args.c);
  out.bias = ViewOf(p.bias, args.bias);
  out.activation = ActivationOf(p.activation);
  out.a_scale = ScalesOf(p.a_scale, args.a_scale);
  out.b_scale = ScalesOf(p.b_scale, args.b_scale);
  out.numerics = NumericsOf(p.numerics);
  out.d_dtype = ClientType(p.output_dtype);
  return out;
}

client::AttentionArgs ClientArgs(const AttentionProblem& p, const AttentionArgs& args) {
  client::AttentionArgs out{
      .layout = LayoutOf(p.layout), .q = ViewOf(p.q, args.q), .k = ViewOf(p.k, args.k), .v = ViewOf(p.v, args.v)};
  out.scale = p.scale;
  out.causal = p.causal;
  out.alignment = AlignmentOf(p.alignment);
  out.window_left = p.window_left;
  out.window_right = p.window_right;
  out.softcap = p.softcap;
  out.mask = ViewOf(p.mask, args.mask);
  out.bias = ViewOf(p.bias, args.bias);
  out.alibi_slopes = p.alibi_slopes;
  out.sinks = p.sinks;
  out.q_lengths = p.q_lengths;
  out.kv_lengths = p.kv_lengths;
  out.q_offsets = p.q_offsets;
  out.kv_offsets = p.kv_offsets;
  out.q_scale = p.q_scale;
  out.k_scale = p.k_scale;
  out.v_scale = p.v_scale;
  out.o_dtype = ClientType(p.output_dtype);
  out.want_lse = p.want_lse;
  return out;
}

}  // namespace kernd::cli
