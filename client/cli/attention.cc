#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/cli/commands.h"
#include "client/cli/operands.h"
#include "client/cli/operation_run.h"
#include "client/cli/sizes.h"
#include "client/cli/values.h"
#include "kernd/client/attention.h"
#include "kernd/kernels/attention.h"
#include "kernd/kernels/error.h"

namespace kernd::cli {
namespace {

struct Flags {
  OperationFlags common;
  std::string q, k, v, mask, bias;
  std::string layout = "bhld", alignment;
  std::string lse_out;
  client::AttentionArgs args;  // what needs no reading
};

client::AttentionLayout LayoutOf(const std::string& name) {
  if (name == "blhd") return client::AttentionLayout::kBLHD;
  if (name == "packed") return client::AttentionLayout::kPacked;
  return client::AttentionLayout::kBHLD;
}

client::MaskAlignment AlignmentOf(const std::string& name) {
  if (name == "top-left") return client::MaskAlignment::kTopLeft;
  if (name == "bottom-right") return client::MaskAlignment::kBottomRight;
  return client::MaskAlignment::kUnset;
}

// Whether `batch` sequences may be packed, one after the other.
bool IsBatch(const AttentionDims& s) {
  std::int64_t rows = 0;
  return s.batch <= kMaxSequences && !__builtin_mul_overflow(s.batch, s.q_length, &rows) &&
         !__builtin_mul_overflow(s.batch, s.kv_length, &rows);
}

// Offsets of `batch` sequences of one length.
std::vector<std::int64_t> EqualOffsets(std::int64_t batch, std::int64_t length) {
  std::vector<std::int64_t> offsets;
  for (std::int64_t i = 0; i <= batch; ++i) offsets.push_back(i * length);
  return offsets;
}

absl::Status SetRandom(const Flags& flags, Operands& operands, client::AttentionArgs& args) {
  KERND_ASSIGN_OR_RETURN(const AttentionDims s, ParseAttentionDims("--random", flags.common.random));
  const client::DataType dtype = DataTypeOf(flags.common.dtype);
  const bool packed = args.layout == client::AttentionLayout::kPacked;
  if (packed && !IsBatch(s)) {
    return absl::InvalidArgumentError("--random " + flags.common.random + ": more sequences or rows than a call takes");
  }
  const auto shape = [&](std::int64_t heads, std::int64_t length, std::int64_t dim) -> std::vector<std::int64_t> {
    if (packed) return {s.batch * length, heads, dim};
    if (args.layout == client::AttentionLayout::kBLHD) return {s.batch, length, heads, dim};
    return {s.batch, heads, length, dim};
  };
  const std::vector<std::int64_t> q_shape = shape(s.q_heads, s.q_length, s.head_dim),
                                  k_shape = shape(s.kv_heads, s.kv_length, s.head_dim),
                                  v_shape = shape(s.kv_heads, s.kv_length, s.v_head_dim);
  if (!flags.common.plan) {
    KERND_RETURN_IF_ERROR(CheckSize("--random " + flags.common.random, dtype, {q_shape, k_shape, v_shape}));
  }
  const auto make = [&](const std::vector<std::int64_t>& dims) -> absl::StatusOr<client::TensorView> {
    if (flags.common.plan) return client::TensorView{dtype, dims};
    return operands.Random(dtype, dims, flags.common.seed);
  };
  KERND_ASSIGN_OR_RETURN(args.q, make(q_shape));
  KERND_ASSIGN_OR_RETURN(args.k, make(k_shape));
  KERND_ASSIGN_OR_RETURN(args.v, make(v_shape));
  if (packed) {
    if (args.q_offsets.empty()) args.q_offsets = EqualOffsets(s.batch, s.q_length);
    if (args.kv_offsets.empty()) args.kv_offsets = EqualOffsets(s.batch, s.kv_length);
  }
  return absl::OkStatus();
}

absl::Status SetFiles(const Flags& flags, Operands& operands, client::AttentionArgs& args) {
  if (flags.q.empty() || flags.k.empty() || flags.v.empty()) {
    return absl::InvalidArgumentError("attention needs --q, --k and --v, or --random BxHqxLqxD");
  }
  for (const auto& [file, view] : {std::pair(&flags.q, &args.q), {&flags.k, &args.k}, {&flags.v, &args.v}}) {
    KERND_ASSIGN_OR_RETURN(*view, operands.FromFile(*file));
  }
  return absl::OkStatus();
}

absl::StatusOr<client::AttentionArgs> ArgsOf(const Flags& flags, Operands& operands) {
  client::AttentionArgs args = flags.args;
  args.layout = LayoutOf(flags.layout);
  args.alignment = AlignmentOf(flags.alignment);
  args.numerics = NumericsOf(flags.common);
  args.o_dtype = DataTypeOf(flags.common.result_dtype);
  args.want_lse = args.want_lse || !flags.lse_out.empty();
  KERND_RETURN_IF_ERROR(flags.common.random.empty() ? SetFiles(flags, operands, args)
                                                    : SetRandom(flags, operands, args));
  KERND_ASSIGN_OR_RETURN(args.mask, OptionalFile(flags.mask, operands));
  KERND_ASSIGN_OR_RETURN(args.bias, OptionalFile(flags.bias, operands));
  KERND_ASSIGN_OR_RETURN(args.kernel, KernelChoiceOf(flags.common));
  KERND_ASSIGN_OR_RETURN(args.o, PlaceOf(flags.common, flags.common.out));
  KERND_ASSIGN_OR_RETURN(args.lse, PlaceOf(flags.common, flags.lse_out));
  return args;
}

int RunAttention(const Context& context, const Flags& flags) {
  using client::AttentionArgs;
  using client::AttentionReply;
  const OperationCommand<AttentionArgs, AttentionReply> attention = {
      .name = "attention",
      .args = [&flags](Operands& operands) { return ArgsOf(flags, operands); },
      .operands = [](const AttentionArgs& a) -> std::vector<NamedShape> {
        return {{"q", a.q.dtype, a.q.shape}, {"k", a.k.dtype, a.k.shape}, {"v", a.v.dtype, a.v.shape}};
      },
      .call =
          [](const client::Client& client, const client::Session* session, const AttentionArgs& a,
             const client::CallOptions& options) {
            return session != nullptr ? session->Attention(a, options) : client.Attention(a, options);
          },
      .results =
          [&flags](const AttentionArgs& a, const AttentionReply& reply) {
            std::vector<CallResult> results = {{"o", reply.o, flags.common.out, a.o.resident.has_value()}};
            if (a.want_lse) results.push_back({"lse", reply.lse, flags.lse_out, a.lse.resident.has_value()});
            return results;
          }};
  return RunOperation(context, flags.common, attention);
}

void AddList(CLI::App& command, const char* name, std::vector<float>& values, const char* description) {
  command.add_option(name, values, description)->delimiter(',')->check(RealNumber<float>())->type_name("X,X,...");
}

void AddList(CLI::App& command, const char* name, std::vector<std::int64_t>& values, const char* description) {
  command.add_option(name, values, description)
      ->delimiter(',')
      ->transform(WholeNumber<std::int64_t>(0))
      ->type_name("N,N,...");
}

}  // namespace

void AddAttention(CLI::App& app, const Context& context, Action& action) {
  const auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand("attention", "O = softmax(QK^T) V");
  command->add_option("--q", flags->q, "Q [B, Hq, Lq, D]")->type_name("FILE");
  command->add_option("--k", flags->k, "K [B, Hkv, Lkv, D]")->type_name("FILE");
  command->add_option("--v", flags->v, "V [B, Hkv, Lkv, Dv]")->type_name("FILE");
  command->add_option("--layout", flags->layout, "Order of the dimensions; packed: [total, H, D] with offsets")
      ->check(CLI::IsMember({"bhld", "blhd", "packed"}))
      ->capture_default_str();
  command->add_option("--scale", flags->args.scale, "Factor of QK^T; default: 1/sqrt(D)")->check(RealNumber<double>());
  command->add_flag("--causal", flags->args.causal, "Row i sees no key after its own position");
  command->add_option("--alignment", flags->alignment, "Where the diagonal lies when Lq is not Lkv")
      ->check(CLI::IsMember({"top-left", "bottom-right"}));
  command->add_option("--window-left", flags->args.window_left, "Keys seen before the diagonal; default: all")
      ->transform(WholeNumber<std::int64_t>(0));
  command->add_option("--window-right", flags->args.window_right, "Keys seen after the diagonal; default: all")
      ->transform(WholeNumber<std::int64_t>(0));
  command->add_option("--softcap", flags->args.softcap, "c of c * tanh(x / c)")->check(RealNumber<double>());
  command->add_option("--mask", flags->mask, "BOOL, true = visible, [1|B, 1|Hq, 1|Lq, Lkv]")->type_name("FILE");
  command->add_option("--bias", flags->bias, "Added to the logits, [1|B, 1|Hq, 1|Lq, Lkv]")->type_name("FILE");
  AddList(*command, "--slopes", flags->args.alibi_slopes, "ALiBi slopes [Hq]");
  AddList(*command, "--sinks", flags->args.sinks, "Sink logits [Hq]");
  AddList(*command, "--q-lengths", flags->args.q_lengths, "Rows of each sequence [B]");
  AddList(*command, "--kv-lengths", flags->args.kv_lengths, "Keys of each sequence [B]");
  AddList(*command, "--q-offsets", flags->args.q_offsets,
          "packed: where each sequence begins in Q, and the total [B + 1]");
  AddList(*command, "--kv-offsets", flags->args.kv_offsets, "packed: where each sequence begins in K and V [B + 1]");
  AddList(*command, "--q-scale", flags->args.q_scale, "Scales of an 8-bit Q: one, [Hkv] or [B * Hkv]");
  AddList(*command, "--k-scale", flags->args.k_scale, "Scales of an 8-bit K");
  AddList(*command, "--v-scale", flags->args.v_scale, "Scales of an 8-bit V");
  command->add_flag("--lse", flags->args.want_lse, "Ask for the log-sum-exp too");
  command->add_option("--lse-out", flags->lse_out, "Write the log-sum-exp to this file")->type_name("FILE");
  AddOperationFlags(*command, "BxHqxLqxD[,Hkv[,Lkv[,Dv]]]", {"--q", "--k", "--v"}, {"--lse-out"}, flags->common);
  command->callback(
      [&context, &action, flags] { action = [&context, flags] { return RunAttention(context, *flags); }; });
}

}  // namespace kernd::cli
