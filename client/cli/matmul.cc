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
#include "kernd/client/matmul.h"

namespace kernd::cli {
namespace {

struct Flags {
  OperationFlags common;
  std::string a, b, c, bias, a_scale, b_scale, a_block, b_block;
  bool transpose_a = false, transpose_b = false;
  std::optional<double> alpha, beta;
  std::string activation = "none";
};

client::Activation ActivationOf(const std::string& name) {
  if (name == "relu") return client::Activation::kRelu;
  if (name == "gelu") return client::Activation::kGelu;
  if (name == "silu") return client::Activation::kSilu;
  return client::Activation::kNone;
}

// The kind follows from the rank: [] or [1] the tensor's, [R] one for each row, [R, K] one for each block.
absl::StatusOr<std::optional<client::Scales>> ScalesOf(const std::string& file, const std::string& block,
                                                       Operands& operands) {
  if (file.empty()) return std::optional<client::Scales>();
  absl::StatusOr<client::Operand> values = operands.FromFile(file);
  if (!values.ok()) return values.status();
  client::Scales scales;
  const std::size_t rank = values->shape.size();
  const bool one = rank == 0 || (rank == 1 && values->shape[0] == 1);
  scales.kind = one         ? client::Scales::Kind::kTensor
                : rank == 1 ? client::Scales::Kind::kRow
                            : client::Scales::Kind::kBlock;
  if (scales.kind == client::Scales::Kind::kBlock) {
    const absl::StatusOr<std::vector<std::int64_t>> sizes = ParseDims(block, "x");
    if (!sizes.ok() || sizes->size() != 2) {
      return absl::InvalidArgumentError(file + " has a scale for each block: give the block's size as ROWSxK");
    }
    scales.block_rows = (*sizes)[0];
    scales.block_k = (*sizes)[1];
  }
  scales.values = *std::move(values);
  return std::optional<client::Scales>(std::move(scales));
}

absl::Status SetRandom(const Flags& flags, Operands& operands, client::MatmulArgs& args) {
  const absl::StatusOr<MatmulDims> dims = ParseMatmulDims("--random", flags.common.random);
  if (!dims.ok()) return dims.status();
  const auto& [batch, m, n, k] = *dims;
  const auto shape = [&batch = batch](std::int64_t rows, std::int64_t cols, bool transpose) {
    std::vector<std::int64_t> out = batch;
    out.insert(out.end(), {transpose ? cols : rows, transpose ? rows : cols});
    return out;
  };
  const client::DataType dtype = DataTypeOf(flags.common.dtype);
  const std::vector<std::int64_t> a_shape = shape(m, k, flags.transpose_a), b_shape = shape(k, n, flags.transpose_b);
  if (!flags.common.plan) {
    const absl::Status fits = CheckSize("--random " + flags.common.random, dtype, {a_shape, b_shape});
    if (!fits.ok()) return fits;
  }
  const auto make = [&](std::vector<std::int64_t> shape_of) -> absl::StatusOr<client::TensorView> {
    if (flags.common.plan) return client::TensorView{dtype, std::move(shape_of)};
    return operands.Random(dtype, std::move(shape_of), flags.common.seed);
  };
  absl::StatusOr<client::TensorView> a = make(a_shape);
  if (!a.ok()) return a.status();
  absl::StatusOr<client::TensorView> b = make(b_shape);
  if (!b.ok()) return b.status();
  args.a = *std::move(a);
  args.b = *std::move(b);
  return absl::OkStatus();
}

absl::Status SetFiles(const Flags& flags, Operands& operands, client::MatmulArgs& args) {
  if (flags.a.empty() || flags.b.empty()) {
    return absl::InvalidArgumentError("matmul needs --a and --b, or --random MxNxK");
  }
  absl::StatusOr<client::Operand> a = operands.FromFile(flags.a);
  if (!a.ok()) return a.status();
  absl::StatusOr<client::Operand> b = operands.FromFile(flags.b);
  if (!b.ok()) return b.status();
  args.a = *std::move(a);
  args.b = *std::move(b);
  return absl::OkStatus();
}

absl::StatusOr<client::MatmulArgs> ArgsOf(const Flags& flags, Operands& operands) {
  client::MatmulArgs args;
  absl::Status set = flags.common.random.empty() ? SetFiles(flags, operands, args) : SetRandom(flags, operands, args);
  if (!set.ok()) return set;
  absl::StatusOr<std::optional<client::Operand>> c = OptionalFile(flags.c, operands);
  if (!c.ok()) return c.status();
  absl::StatusOr<std::optional<client::Operand>> bias = OptionalFile(flags.bias, operands);
  if (!bias.ok()) return bias.status();
  absl::StatusOr<std::optional<client::Scales>> a_scale = ScalesOf(flags.a_scale, flags.a_block, operands);
  if (!a_scale.ok()) return a_scale.status();
  absl::StatusOr<std::optional<client::Scales>> b_scale = ScalesOf(flags.b_scale, flags.b_block, operands);
  if (!b_scale.ok()) return b_scale.status();
  absl::StatusOr<client::KernelChoice> kernel = KernelChoiceOf(flags.common);
  if (!kernel.ok()) return kernel.status();
  absl::StatusOr<client::ResultPlace> d = PlaceOf(flags.common, flags.common.out);
  if (!d.ok()) return d.status();
  args.c = *std::move(c);
  args.bias = *std::move(bias);
  args.a_scale = *std::move(a_scale);
  args.b_scale = *std::move(b_scale);
  args.kernel = *std::move(kernel);
  args.transpose_a = flags.transpose_a;
  args.transpose_b = flags.transpose_b;
  args.alpha = flags.alpha;
  args.beta = flags.beta;
  args.activation = ActivationOf(flags.activation);
  args.numerics = NumericsOf(flags.common);
  args.d = *d;
  args.d_dtype = DataTypeOf(flags.common.result_dtype);
  return args;
}

int RunMatmul(const Context& context, const Flags& flags) {
  const absl::StatusOr<client::Client> client = context.Connect();
  if (!client.ok()) return context.BadArguments(client.status());
  Operands operands;
  const absl::StatusOr<std::optional<client::Session>> session =
      SessionFor(context, *client, flags.common.session, operands);
  if (!session.ok()) return context.CallFailed(session.status());
  std::optional<Busy> busy(std::in_place, context.err, context.terminal.progress, "reading or making the operands");
  const absl::StatusOr<client::MatmulArgs> args = ArgsOf(flags, operands);
  busy.reset();
  if (!args.ok()) return context.BadArguments(args.status());
  client::CallOptions options = CallOptionsOf(context, flags.common);
  const std::vector<NamedShape> shapes = {{"a", args->a.dtype, args->a.shape}, {"b", args->b.dtype, args->b.shape}};
  if (flags.common.plan) {
    const absl::StatusOr<client::PlanReply> plan = client->Plan(*args, options);
    if (!plan.ok()) return context.CallFailed(plan.status());
    PrintPlan(context, "matmul", shapes, *plan);
    return kOk;
  }

  busy.emplace(context.err, context.terminal.progress, "connecting to " + context.endpoint, context.Timeout());
  const absl::StatusOr<double> connect_us = ConnectNow(context, *client, options);
  busy.reset();
  if (!connect_us.ok()) return context.CallFailed(connect_us.status());
  busy.emplace(context.err, context.terminal.progress, SendingText(shapes), context.Timeout());
  const absl::Time start = absl::Now();
  const absl::StatusOr<client::MatmulReply> reply =
      *session ? (*session)->Matmul(*args, options) : client->Matmul(*args, options);
  const double client_us = absl::ToDoubleMicroseconds(absl::Now() - start);
  busy.reset();
  if (!reply.ok()) return context.CallFailed(reply.status());
  CallReport report{"matmul",      shapes,        {{"d", reply->d.dtype(), reply->d.shape()}},
                    reply->kernel, reply->timing, reply->memory,
                    *connect_us,   client_us,     std::nullopt};
  if (!flags.common.out.empty() && !args->d.resident) {
    const absl::Status written = WriteTensor(flags.common.out, "d", reply->d.view());
    if (!written.ok()) return context.BadArguments(written);
  }
  if (!flags.common.expect.empty()) {
    absl::StatusOr<Expectation> expectation = Compare(flags.common, args->a.dtype, reply->d);
    if (!expectation.ok()) return context.BadArguments(expectation.status());
    report.expectation = *std::move(expectation);
  }
  PrintCall(context, report);
  return report.expectation && !report.expectation->comparison.ok() ? kWrong : kOk;
}

}  // namespace

void AddMatmul(CLI::App& app, const Context& context, Action& action) {
  const auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand("matmul", "D = act(alpha * op(A) op(B) + beta * C + bias)");
  command->add_option("--a", flags->a, "A [batch..., M, K]")->type_name("FILE");
  command->add_option("--b", flags->b, "B [batch..., K, N]")->type_name("FILE");
  command->add_option("--c", flags->c, "C [batch..., M, N]")->type_name("FILE");
  command->add_option("--bias", flags->bias, "Bias [N]")->type_name("FILE");
  command->add_flag("--transpose-a", flags->transpose_a, "A is stored as [batch..., K, M]");
  command->add_flag("--transpose-b", flags->transpose_b, "B is stored as [batch..., N, K]");
  command->add_option("--alpha", flags->alpha, "Factor of the product; default: 1")->check(RealNumber<double>());
  command->add_option("--beta", flags->beta, "Factor of C; default: 0")->check(RealNumber<double>());
  command->add_option("--activation", flags->activation, "act")
      ->check(CLI::IsMember({"none", "relu", "gelu", "silu"}))
      ->capture_default_str();
  command->add_option("--a-scale", flags->a_scale, "F32 scales of an 8-bit A: one, [M], or one for each block")
      ->type_name("FILE");
  command->add_option("--a-scale-block", flags->a_block, "Size of A's blocks")
      ->type_name("ROWSxK")
      ->needs(command->get_option("--a-scale"));
  command->add_option("--b-scale", flags->b_scale, "F32 scales of an 8-bit B: one, [N], or one for each block")
      ->type_name("FILE");
  command->add_option("--b-scale-block", flags->b_block, "Size of B's blocks")
      ->type_name("ROWSxK")
      ->needs(command->get_option("--b-scale"));
  AddOperationFlags(*command, "MxNxK, or BATCHxMxNxK", {"--a", "--b"}, {}, flags->common);
  command->callback([&context, &action, flags] { action = [&context, flags] { return RunMatmul(context, *flags); }; });
}

}  // namespace kernd::cli
