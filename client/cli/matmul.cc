#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/cli/commands.h"
#include "client/cli/operands.h"
#include "client/cli/operation_run.h"
#include "client/cli/sizes.h"
#include "client/cli/values.h"
#include "kernd/client/matmul.h"
#include "kernd/kernels/error.h"

namespace kernd::cli {
namespace {

struct Flags {
  OperationFlags common;
  std::string a, b, c, bias, a_scale, b_scale, a_block, b_block;
  std::string activation = "none";
  client::MatmulArgs args;  // what needs no reading
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
  KERND_ASSIGN_OR_RETURN(const MatmulDims dims, ParseMatmulDims("--random", flags.common.random));
  const auto& [batch, m, n, k] = dims;
  const auto shape = [&batch = batch](std::int64_t rows, std::int64_t cols, bool transpose) {
    std::vector<std::int64_t> out = batch;
    out.insert(out.end(), {transpose ? cols : rows, transpose ? rows : cols});
    return out;
  };
  const client::DataType dtype = DataTypeOf(flags.common.dtype);
  const std::vector<std::int64_t> a_shape = shape(m, k, flags.args.transpose_a),
                                  b_shape = shape(k, n, flags.args.transpose_b);
  if (!flags.common.plan) {
    KERND_RETURN_IF_ERROR(CheckSize("--random " + flags.common.random, dtype, {a_shape, b_shape}));
  }
  const auto make = [&](std::vector<std::int64_t> shape_of) -> absl::StatusOr<client::TensorView> {
    if (flags.common.plan) return client::TensorView{dtype, std::move(shape_of)};
    return operands.Random(dtype, std::move(shape_of), flags.common.seed);
  };
  KERND_ASSIGN_OR_RETURN(args.a, make(a_shape));
  KERND_ASSIGN_OR_RETURN(args.b, make(b_shape));
  return absl::OkStatus();
}

absl::Status SetFiles(const Flags& flags, Operands& operands, client::MatmulArgs& args) {
  if (flags.a.empty() || flags.b.empty()) {
    return absl::InvalidArgumentError("matmul needs --a and --b, or --random MxNxK");
  }
  KERND_ASSIGN_OR_RETURN(args.a, operands.FromFile(flags.a));
  KERND_ASSIGN_OR_RETURN(args.b, operands.FromFile(flags.b));
  return absl::OkStatus();
}

absl::StatusOr<client::MatmulArgs> ArgsOf(const Flags& flags, Operands& operands) {
  client::MatmulArgs args = flags.args;
  args.activation = ActivationOf(flags.activation);
  args.numerics = NumericsOf(flags.common);
  args.d_dtype = DataTypeOf(flags.common.result_dtype);
  KERND_RETURN_IF_ERROR(flags.common.random.empty() ? SetFiles(flags, operands, args)
                                                    : SetRandom(flags, operands, args));
  KERND_ASSIGN_OR_RETURN(args.c, OptionalFile(flags.c, operands));
  KERND_ASSIGN_OR_RETURN(args.bias, OptionalFile(flags.bias, operands));
  KERND_ASSIGN_OR_RETURN(args.a_scale, ScalesOf(flags.a_scale, flags.a_block, operands));
  KERND_ASSIGN_OR_RETURN(args.b_scale, ScalesOf(flags.b_scale, flags.b_block, operands));
  KERND_ASSIGN_OR_RETURN(args.kernel, KernelChoiceOf(flags.common));
  KERND_ASSIGN_OR_RETURN(args.d, PlaceOf(flags.common, flags.common.out));
  return args;
}

int RunMatmul(const Context& context, const Flags& flags) {
  using client::MatmulArgs;
  using client::MatmulReply;
  const OperationCommand<MatmulArgs, MatmulReply> matmul = {
      .name = "matmul",
      .args = [&flags](Operands& operands) { return ArgsOf(flags, operands); },
      .operands = [](const MatmulArgs& m) -> std::vector<NamedShape> {
        return {{"a", m.a.dtype, m.a.shape}, {"b", m.b.dtype, m.b.shape}};
      },
      .call =
          [](const client::Client& client, const client::Session* session, const MatmulArgs& m,
             const client::CallOptions& options) {
            return session != nullptr ? session->Matmul(m, options) : client.Matmul(m, options);
          },
      .results =
          [&flags](const MatmulArgs& m, const MatmulReply& reply) {
            return std::vector<CallResult>{{"d", reply.d, flags.common.out, m.d.resident.has_value()}};
          }};
  return RunOperation(context, flags.common, matmul);
}

}  // namespace

void AddMatmul(CLI::App& app, const Context& context, Action& action) {
  const auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand("matmul", "D = act(alpha * op(A) op(B) + beta * C + bias)");
  command->add_option("--a", flags->a, "A [batch..., M, K]")->type_name("FILE");
  command->add_option("--b", flags->b, "B [batch..., K, N]")->type_name("FILE");
  command->add_option("--c", flags->c, "C [batch..., M, N]")->type_name("FILE");
  command->add_option("--bias", flags->bias, "Bias [N]")->type_name("FILE");
  command->add_flag("--transpose-a", flags->args.transpose_a, "A is stored as [batch..., K, M]");
  command->add_flag("--transpose-b", flags->args.transpose_b, "B is stored as [batch..., N, K]");
  command->add_option("--alpha", flags->args.alpha, "Factor of the product; default: 1")->check(RealNumber<double>());
  command->add_option("--beta", flags->args.beta, "Factor of C; default: 0")->check(RealNumber<double>());
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
