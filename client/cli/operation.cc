#include "client/cli/operation.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "client/cli/files/tensor_file.h"
#include "client/cli/session.h"
#include "client/cli/types.h"
#include "client/cli/values.h"
#include "kernels/reference/convert.h"

namespace kernd::cli {
namespace {

// A part of a magnitude: NaN would pass every result, and infinity none.
CLI::Validator IsTolerance() {
  return CLI::Validator(
      [](const std::string& text) {
        double value = 0;
        const bool legal = CLI::detail::lexical_cast(text, value) && value >= 0 && std::isfinite(value);
        return legal ? std::string() : "'" + text + "' must be a finite number, 0 or more";
      },
      "");
}

}  // namespace

CLI::Validator IsDataType() {
  return CLI::Validator(
      [](const std::string& name) {
        return client::ParseDataType(name) ? std::string() : "'" + name + "' is not an element type";
      },
      "DTYPE");
}

client::DataType DataTypeOf(const std::string& name) {
  return client::ParseDataType(name).value_or(client::DataType::kUnspecified);
}

void AddOperationFlags(CLI::App& command, const std::string& sizes, const std::vector<std::string>& operands,
                       const std::vector<std::string>& results, OperationFlags& flags) {
  CLI::Option* const random =
      command
          .add_option("--random", flags.random,
                      "Random operands, N(0,1) rounded to --dtype (integers: 32 times that): " + sizes)
          ->type_name("SIZES");
  for (const std::string& operand : operands) random->excludes(command.get_option(operand));
  command.add_option("--dtype", flags.dtype, "Element type of random operands")
      ->check(IsDataType())
      ->capture_default_str()
      ->needs(random);
  command.add_option("--seed", flags.seed, "Seed of random operands")
      ->transform(WholeNumber<std::uint64_t>(0))
      ->capture_default_str()
      ->needs(random);
  command.add_option("--out-dtype", flags.result_dtype, "Element type of the result; default: the daemon's")
      ->check(IsDataType());
  command.add_option("--numerics", flags.numerics, "How sums may be rounded")
      ->check(CLI::IsMember({"default", "tf32", "batch-invariant"}))
      ->capture_default_str();
  command.add_option("--kernel", flags.kernel, "Force the kernel of this name (see kernctl kernels)")
      ->check(IsText())
      ->type_name("NAME");
  command.add_option("--tile", flags.tile, "Force a kernel by its tile")->type_name("MxNxK");
  command.add_option("--session", flags.session, "Where resident:ID is: the session of kernctl tensors open")
      ->check(IsSessionId());
  command.add_option("--out", flags.out, "Write the result to this file; resident:ID: keep it in the session")
      ->type_name("FILE");
  command.add_option("--expect", flags.expect, "Compare the result with this file; exit code 4 where it differs")
      ->type_name("FILE");
  command
      .add_option("--tolerance", flags.tolerance,
                  "Largest error, as a part of the largest expected magnitude; default by element type: F64 1e-12, "
                  "F32 1e-5, F16 2e-3, BF16 1.6e-2, F8 0.13, integers 0")
      ->check(IsTolerance())
      ->needs(command.get_option("--expect"));
  CLI::Option* const plan = command.add_flag("--plan", flags.plan, "Print the kernel and the exact bytes; run nothing");
  plan->excludes(command.get_option("--out"))->excludes(command.get_option("--expect"));
  for (const std::string& result : results) plan->excludes(command.get_option(result));
  command.add_option("--request-id", flags.request_id, "Id for the daemon's logs")->check(IsText(128))->type_name("ID");
  command.add_option("--priority", flags.priority, "Higher runs first among queued calls")
      ->transform(WholeNumber(-100, 100))
      ->capture_default_str();
  command.add_option("--device", flags.device, "UUID of the device, or cpu; default: any")
      ->check(IsText())
      ->type_name("UUID");
}

absl::StatusOr<client::KernelChoice> KernelChoiceOf(const OperationFlags& flags) {
  client::KernelChoice choice;
  choice.name = flags.kernel;
  if (flags.tile.empty()) return choice;
  const absl::StatusOr<std::vector<std::int64_t>> dims = ParseDims(flags.tile, "x");
  if (!dims.ok() || dims->size() != 3) return absl::InvalidArgumentError("--tile " + flags.tile + ": must be MxNxK");
  choice.tile = client::Tile{(*dims)[0], (*dims)[1], (*dims)[2]};
  return choice;
}

client::Numerics NumericsOf(const OperationFlags& flags) {
  if (flags.numerics == "tf32") return client::Numerics::kTf32;
  if (flags.numerics == "batch-invariant") return client::Numerics::kBatchInvariant;
  return client::Numerics::kDefault;
}

client::CallOptions CallOptionsOf(const Context& context, const OperationFlags& flags) {
  client::CallOptions options = context.CallOptions();
  options.request_id = flags.request_id;
  options.priority = flags.priority;
  options.device = flags.device;
  return options;
}

absl::StatusOr<double> ConnectNow(const Context& context, const client::Client& client, client::CallOptions& options) {
  const absl::Time start = absl::Now();
  const absl::Status connected = client.AwaitConnection(context.Timeout());
  if (absl::IsDeadlineExceeded(connected)) return connected;
  const absl::Duration spent = absl::Now() - start;
  options.timeout = std::max(context.Timeout() - spent, absl::Milliseconds(1));
  return absl::ToDoubleMicroseconds(spent);
}

absl::StatusOr<std::optional<client::Operand>> OptionalFile(const std::string& file, Operands& operands) {
  if (file.empty()) return std::optional<client::Operand>();
  absl::StatusOr<client::Operand> operand = operands.FromFile(file);
  if (!operand.ok()) return operand.status();
  return std::optional(*std::move(operand));
}

absl::StatusOr<client::ResultPlace> PlaceOf(const OperationFlags& flags, const std::string& out) {
  absl::StatusOr<client::ResultPlace> place = ResultPlaceOf(out);
  if (!place.ok() || !place->resident) return place;
  if (flags.session.empty()) return absl::InvalidArgumentError(out + " needs --session");
  if (!flags.expect.empty() && out == flags.out) {
    return absl::InvalidArgumentError("--expect: the result stays at the daemon, " + out);
  }
  return place;
}

double DefaultTolerance(client::DataType operand, client::DataType result) {
  const auto of = [](client::DataType type) {
    switch (type) {
      case client::DataType::kF64: return 1e-12;
      case client::DataType::kF32: return 1e-5;
      case client::DataType::kF16: return 2e-3;
      case client::DataType::kBF16: return 1.6e-2;
      case client::DataType::kF8E4M3:
      case client::DataType::kF8E5M2: return 0.13;
      default: return 0.0;
    }
  };
  return std::max(of(operand), of(result));
}

double LargestError(std::span<const double> actual, std::span<const double> expected) {
  double largest = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double a = actual[i], e = expected[i];
    if (a == e || (std::isnan(a) && std::isnan(e))) continue;
    largest = std::isnan(a) || std::isnan(e) || std::isnan(largest) ? std::nan("") : std::max(largest, std::abs(a - e));
  }
  return largest;
}

absl::StatusOr<Expectation> Compare(const OperationFlags& flags, client::DataType operand,
                                    const client::Tensor& actual) {
  const absl::StatusOr<client::Tensor> expected = ReadTensor(flags.expect);
  if (!expected.ok()) return expected.status();
  if (expected->shape() != actual.shape()) {
    return absl::InvalidArgumentError(flags.expect + " is " + client::ToString(expected->dtype(), expected->shape()) +
                                      ", the result " + client::ToString(actual.dtype(), actual.shape()));
  }
  const std::int64_t count = std::ssize(expected->bytes()) / client::ElementBytes(expected->dtype());
  const std::vector<double> values = reference::LoadAll(KernelType(expected->dtype()), expected->bytes().data(), count);
  double largest = 0;
  for (const double x : values) {
    if (std::isfinite(x)) largest = std::max(largest, std::abs(x));
  }
  Expectation expectation;
  expectation.file = flags.expect;
  expectation.tolerance = flags.tolerance.value_or(DefaultTolerance(operand, actual.dtype()));
  const std::vector<double> bounds(values.size(), expectation.tolerance * largest);
  const void* data = actual.bytes().data();
  expectation.comparison = reference::Compare(KernelType(actual.dtype()), data, values, bounds);
  expectation.max_abs = LargestError(reference::LoadAll(KernelType(actual.dtype()), data, count), values);
  return expectation;
}

}  // namespace kernd::cli
