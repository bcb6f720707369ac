// What `kernctl bench` calls: one problem, or a mix of several with weights.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/sizes.h"
#include "kernd/client/tensor.h"

namespace kernd::cli {

struct BenchProblem {
  std::int64_t weight = 1;  // of each `sum of weights` calls, as many are of this problem
  std::string shape;        // as it was written
  std::variant<MatmulDims, AttentionDims> dims;
  client::DataType dtype = client::DataType::kF16;
  bool causal = false;  // attention only

  const char* op() const { return dims.index() == 0 ? "matmul" : "attention"; }
  // "attention BF16 1x32x4096x128,8 causal"
  std::string Name() const;
};

// Of the operands, in their order.
std::vector<std::vector<std::int64_t>> OperandShapes(const BenchProblem& problem);

// One problem; `where` names the source of `shape` in errors. `op` is "matmul" or "attention". INVALID_ARGUMENT where
// the sizes are not its, the element type is no operand's, or the operands have 2 GiB and more.
absl::StatusOr<BenchProblem> MakeProblem(const std::string& where, const std::string& op, const std::string& shape,
                                         client::DataType dtype, bool causal);

inline constexpr std::int64_t kMaxMixBytes = 64 << 10;
inline constexpr std::int64_t kMaxMixWeight = 1'000'000;
inline constexpr std::size_t kMaxMixProblems = 256;
inline constexpr std::int64_t kMaxOperandBytes = std::int64_t{4} << 30;

// One problem a line, empty lines and what follows # apart:
//
//   # weight  op         shape             dtype  causal
//   90        attention  1x32x1x128,8,512  BF16
//   10        attention  1x32x512x128,8    BF16   causal
//
// INVALID_ARGUMENT: "<file>:<line>: ..." for the first line that is wrong; a file without a problem, or with more of
// them or more bytes of operands, all problems together, than the limits above.
absl::StatusOr<std::vector<BenchProblem>> ParseMix(const std::string& file, std::string_view text);

// ParseMix of a file, of at most kMaxMixBytes. Errors also those of InputFile.
absl::StatusOr<std::vector<BenchProblem>> ReadMix(const std::string& file);

}  // namespace kernd::cli
