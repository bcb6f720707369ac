// The file of `kernctl bench --mix`.
#include "client/cli/bench/mix.h"
#include "tests/fuzz/fuzz.h"

namespace kernd::fuzz {

void Target(std::string_view input) {
  const absl::StatusOr<std::vector<cli::BenchProblem>> mix = cli::ParseMix("mix", input);
  if (!mix.ok()) {
    Require(mix.status().code() == absl::StatusCode::kInvalidArgument && mix.status().message().substr(0, 3) == "mix",
            "a refusal is of the file");
    return;
  }
  Require(!mix->empty() && mix->size() <= cli::kMaxMixProblems, "a mix has problems, and not too many");
  std::int64_t bytes = 0;
  std::string again;
  for (const cli::BenchProblem& problem : *mix) {
    Require(problem.weight >= 1 && problem.weight <= cli::kMaxMixWeight, "weights have an end");
    for (const auto& shape : cli::OperandShapes(problem)) bytes += *client::TensorBytes(problem.dtype, shape);
    again += std::to_string(problem.weight) + " " + problem.op() + " " + problem.shape + " " +
             std::string(client::Name(problem.dtype)) + (problem.causal ? " causal\n" : "\n");
  }
  Require(bytes <= cli::kMaxOperandBytes, "and so have the operands of all");
  const absl::StatusOr<std::vector<cli::BenchProblem>> reread = cli::ParseMix("mix", again);
  Require(reread.ok() && reread->size() == mix->size(), "what is written of a mix can be read");
  for (std::size_t i = 0; i < mix->size(); ++i) {
    Require((*reread)[i].Name() == (*mix)[i].Name() && (*reread)[i].weight == (*mix)[i].weight, "and is the same");
  }
}

std::vector<std::string> Seeds() {
  return {
      "# weight op shape dtype causal\n90 attention 1x32x1x128,8,512 BF16\n10 attention 1x32x512x128,8 BF16 causal\n",
      "1 matmul 128x64x32\n\n  2\tmatmul 3x16x16x16 f32  # batched\r\n", "1000000 attention 1x1x1x1,1,1,1 F8E4M3"};
}

}  // namespace kernd::fuzz
