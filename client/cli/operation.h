// What the commands matmul and attention share: options, the wish for a kernel, the comparison with an expected result.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "client/cli/context.h"
#include "client/cli/operands.h"
#include "kernd/client/kernel.h"
#include "kernd/client/tensor.h"
#include "kernels/reference/tolerance.h"

namespace kernd::cli {

struct OperationFlags {
  std::string random;  // sizes of made-up operands; empty: files
  std::string dtype = "F16";
  std::uint64_t seed = 0;
  std::string result_dtype;  // empty: the daemon's default
  std::string numerics = "default";
  std::string kernel, tile;
  std::string session;
  std::string out, expect;
  std::optional<double> tolerance;
  bool plan = false;
  std::string request_id, device;
  int priority = 0;
};

// `sizes` documents --random, which takes the place of the options `operands`; --plan, which runs nothing, goes with
// none of `results` and --out and --expect.
void AddOperationFlags(CLI::App& command, const std::string& sizes, const std::vector<std::string>& operands,
                       const std::vector<std::string>& results, OperationFlags& flags);

// A check for options that take an element type, in upper or lower case.
CLI::Validator IsDataType();

// `name` has passed IsDataType.
client::DataType DataTypeOf(const std::string& name);

// The flags have passed their checks, except for the tile: INVALID_ARGUMENT.
absl::StatusOr<client::KernelChoice> KernelChoiceOf(const OperationFlags& flags);
client::Numerics NumericsOf(const OperationFlags& flags);
client::CallOptions CallOptionsOf(const Context& context, const OperationFlags& flags);

// Waits until the client is connected, and takes the time from that of the call in `options`. Returns it in
// microseconds. DEADLINE_EXCEEDED where nothing is left. Any other failure is for the call to meet, and to tell.
absl::StatusOr<double> ConnectNow(const Context& context, const client::Client& client, client::CallOptions& options);

// Reads the operand of a file; an absent one where no file is named.
absl::StatusOr<std::optional<client::Operand>> OptionalFile(const std::string& file, Operands& operands);

// Where the result of --out (or `out`) shall be. INVALID_ARGUMENT where it shall stay in a session, and there is none,
// or
// --expect asks for what is in it.
absl::StatusOr<client::ResultPlace> PlaceOf(const OperationFlags& flags, const std::string& out);

// The result beside the file of --expect.
struct Expectation {
  std::string file;
  double tolerance = 0;
  reference::Comparison comparison;
  double max_abs = 0;  // LargestError
};

// The largest |actual - expected|; NaN or infinity where one of the two is and the other is not the same.
double LargestError(std::span<const double> actual, std::span<const double> expected);

// Compares with the tensor of `flags.expect`: every element within the tolerance times the largest expected magnitude,
// NaN where NaN is expected, and infinities met exactly. The tolerance is that of the flags, else DefaultTolerance.
// INVALID_ARGUMENT where the shapes differ.
absl::StatusOr<Expectation> Compare(const OperationFlags& flags, client::DataType operand,
                                    const client::Tensor& actual);

// Of the coarser of the two types: F64 1e-12, F32 1e-5, F16 2e-3, BF16 1.6e-2, F8 0.13, integers 0.
double DefaultTolerance(client::DataType operand, client::DataType result);

}  // namespace kernd::cli
