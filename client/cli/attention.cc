#include <memory>
#include <optional>
#include <utility>

#include "client/cli/commands.h"
#include "client/cli/files/tensor_file.h"
#include "client/cli/operands.h"
#include "client/cli/operation.h"
#include "client/cli/progress.h"
#include "client/cli/report.h"
#include "client/cli/session.h"
#include "client/cli/sizes.h"
#include "client/cli/values.h"
#include "kernd/client/attention.h"
#include "kernd/kernels/attention.h"

namespace kernd::cli {
namespace {

struct Flags {
  OperationFlags common;
  std::string q, k, v, mask, bias;
  std::string layout = "bhld", alignment;
  bool causal = false, lse = false;
  std::string lse_out;
  std::optional<double> scale, softcap;
  std::optional<std::int64_t> window_left, window_right;
  std::vector<float> slopes, sinks, q_scale, k_scale, v_scale;
  std::vector<std::int64_t> q_lengths, kv_lengths, q_offsets, kv_offsets;
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
  const absl::StatusOr<AttentionDims> parsed = ParseAttentionDims("--random", flags.common.random);
  if (!parsed.ok()) return parsed.status();
  const AttentionDims& s = *parsed;
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
    const absl::Status fits = CheckSize("--random " + flags.common.random, dtype, {q_shape, k_shape, v_shape});
    if (!fits.ok()) return fits;
  }
  const auto make = [&](const std::vector<std::int64_t>& dims) -> absl::StatusOr<client::TensorView> {
    if (flags.common.plan) return client::TensorView{dtype, dims};
    return operands.Random(dtype, dims, flags.common.seed);
  };
  absl::StatusOr<client::TensorView> q = make(q_shape);
  if (!q.ok()) return q.status();
  absl::StatusOr<client::TensorView> k = make(k_shape);
  if (!k.ok()) return k.status();
  absl::StatusOr<client::TensorView> v = make(v_shape);
  if (!v.ok()) return v.status();
  args.q = *std::move(q);
  args.k = *std::move(k);
  args.v = *std::move(v);
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
    absl::StatusOr<client::Operand> operand = operands.FromFile(*file);
    if (!operand.ok()) return operand.status();
    *view = *std::move(operand);
  }
  return absl::OkStatus();
}

absl::StatusOr<client::AttentionArgs> ArgsOf(const Flags& flags, Operands& operands) {
  client::AttentionArgs args;
  args.layout = LayoutOf(flags.layout);
  args.q_lengths = flags.q_lengths;
  args.kv_lengths = flags.kv_lengths;
  args.q_offsets = flags.q_offsets;
  args.kv_offsets = flags.kv_offsets;
  absl::Status set = flags.common.random.empty() ? SetFiles(flags, operands, args) : SetRandom(flags, operands, args);
  if (!set.ok()) return set;
  absl::StatusOr<std::optional<client::Operand>> mask = OptionalFile(flags.mask, operands);
  if (!mask.ok()) return mask.status();
  absl::StatusOr<std::optional<client::Operand>> bias = OptionalFile(flags.bias, operands);
  if (!bias.ok()) return bias.status();
  absl::StatusOr<client::KernelChoice> kernel = KernelChoiceOf(flags.common);
  if (!kernel.ok()) return kernel.status();
  absl::StatusOr<client::ResultPlace> o = PlaceOf(flags.common, flags.common.out);
  if (!o.ok()) return o.status();
  absl::StatusOr<client::ResultPlace> lse = PlaceOf(flags.common, flags.lse_out);
  if (!lse.ok()) return lse.status();
  args.mask = *std::move(mask);
  args.bias = *std::move(bias);
  args.kernel = *std::move(kernel);
  args.scale = flags.scale;
  args.causal = flags.causal;
  args.alignment = AlignmentOf(flags.alignment);
  args.window_left = flags.window_left;
  args.window_right = flags.window_right;
  args.softcap = flags.softcap;
  args.alibi_slopes = flags.slopes;
  args.sinks = flags.sinks;
  args.q_scale = flags.q_scale;
  args.k_scale = flags.k_scale;
  args.v_scale = flags.v_scale;
  args.numerics = NumericsOf(flags.common);
  args.o = *o;
  args.lse = *lse;
  args.o_dtype = DataTypeOf(flags.common.result_dtype);
  args.want_lse = flags.lse || !flags.lse_out.empty();
  return args;
}

absl::Status WriteResults(const Flags& flags, const client::AttentionArgs& args, const client::AttentionReply& reply) {
  if (!flags.common.out.empty() && !args.o.resident) {
    const absl::Status written = WriteTensor(flags.common.out, "o", reply.o.view());
    if (!written.ok()) return written;
  }
  return flags.lse_out.empty() || args.lse.resident ? absl::OkStatus()
                                                    : WriteTensor(flags.lse_out, "lse", reply.lse.view());
}

int RunAttention(const Context& context, const Flags& flags) {
  const absl::StatusOr<client::Client> client = context.Connect();
  if (!client.ok()) return context.BadArguments(client.status());
  Operands operands;
  const absl::StatusOr<std::optional<client::Session>> session =
      SessionFor(context, *client, flags.common.session, operands);
  if (!session.ok()) return context.CallFailed(session.status());
  std::optional<Busy> busy(std::in_place, context.err, context.terminal.progress, "reading or making the operands");
  const absl::StatusOr<client::AttentionArgs> args = ArgsOf(flags, operands);
  busy.reset();
  if (!args.ok()) return context.BadArguments(args.status());
  client::CallOptions options = CallOptionsOf(context, flags.common);
  const std::vector<NamedShape> shapes = {
      {"q", args->q.dtype, args->q.shape}, {"k", args->k.dtype, args->k.shape}, {"v", args->v.dtype, args->v.shape}};
  if (flags.common.plan) {
    const absl::StatusOr<client::PlanReply> plan = client->Plan(*args, options);
    if (!plan.ok()) return context.CallFailed(plan.status());
    PrintPlan(context, "attention", shapes, *plan);
    return kOk;
  }

  busy.emplace(context.err, context.terminal.progress, "connecting to " + context.endpoint, context.Timeout());
  const absl::StatusOr<double> connect_us = ConnectNow(context, *client, options);
  busy.reset();
  if (!connect_us.ok()) return context.CallFailed(connect_us.status());
  busy.emplace(context.err, context.terminal.progress, SendingText(shapes), context.Timeout());
  const absl::Time start = absl::Now();
  const absl::StatusOr<client::AttentionReply> reply =
      *session ? (*session)->Attention(*args, options) : client->Attention(*args, options);
  const double client_us = absl::ToDoubleMicroseconds(absl::Now() - start);
  busy.reset();
  if (!reply.ok()) return context.CallFailed(reply.status());
  CallReport report{"attention",   shapes,        {{"o", reply->o.dtype(), reply->o.shape()}},
                    reply->kernel, reply->timing, reply->memory,
                    *connect_us,   client_us,     std::nullopt};
  if (args->want_lse) report.results.push_back({"lse", reply->lse.dtype(), reply->lse.shape()});
  const absl::Status written = WriteResults(flags, *args, *reply);
  if (!written.ok()) return context.BadArguments(written);
  if (!flags.common.expect.empty()) {
    absl::StatusOr<Expectation> expectation = Compare(flags.common, args->q.dtype, reply->o);
    if (!expectation.ok()) return context.BadArguments(expectation.status());
    report.expectation = *std::move(expectation);
  }
  PrintCall(context, report);
  return report.expectation && !report.expectation->comparison.ok() ? kWrong : kOk;
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
  command->add_option("--scale", flags->scale, "Factor of QK^T; default: 1/sqrt(D)")->check(RealNumber<double>());
  command->add_flag("--causal", flags->causal, "Row i sees no key after its own position");
  command->add_option("--alignment", flags->alignment, "Where the diagonal lies when Lq is not Lkv")
      ->check(CLI::IsMember({"top-left", "bottom-right"}));
  command->add_option("--window-left", flags->window_left, "Keys seen before the diagonal; default: all")
      ->transform(WholeNumber<std::int64_t>(0));
  command->add_option("--window-right", flags->window_right, "Keys seen after the diagonal; default: all")
      ->transform(WholeNumber<std::int64_t>(0));
  command->add_option("--softcap", flags->softcap, "c of c * tanh(x / c)")->check(RealNumber<double>());
  command->add_option("--mask", flags->mask, "BOOL, true = visible, [1|B, 1|Hq, 1|Lq, Lkv]")->type_name("FILE");
  command->add_option("--bias", flags->bias, "Added to the logits, [1|B, 1|Hq, 1|Lq, Lkv]")->type_name("FILE");
  AddList(*command, "--slopes", flags->slopes, "ALiBi slopes [Hq]");
  AddList(*command, "--sinks", flags->sinks, "Sink logits [Hq]");
  AddList(*command, "--q-lengths", flags->q_lengths, "Rows of each sequence [B]");
  AddList(*command, "--kv-lengths", flags->kv_lengths, "Keys of each sequence [B]");
  AddList(*command, "--q-offsets", flags->q_offsets, "packed: where each sequence begins in Q, and the total [B + 1]");
  AddList(*command, "--kv-offsets", flags->kv_offsets, "packed: where each sequence begins in K and V [B + 1]");
  AddList(*command, "--q-scale", flags->q_scale, "Scales of an 8-bit Q: one, [Hkv] or [B * Hkv]");
  AddList(*command, "--k-scale", flags->k_scale, "Scales of an 8-bit K");
  AddList(*command, "--v-scale", flags->v_scale, "Scales of an 8-bit V");
  command->add_flag("--lse", flags->lse, "Ask for the log-sum-exp too");
  command->add_option("--lse-out", flags->lse_out, "Write the log-sum-exp to this file")->type_name("FILE");
  AddOperationFlags(*command, "BxHqxLqxD[,Hkv[,Lkv[,Dv]]]", {"--q", "--k", "--v"}, {"--lse-out"}, flags->common);
  command->callback(
      [&context, &action, flags] { action = [&context, flags] { return RunAttention(context, *flags); }; });
}

}  // namespace kernd::cli
