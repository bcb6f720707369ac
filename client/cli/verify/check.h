// One call of `kernctl verify`, and the judgement on it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/verify/cases.h"
#include "kernd/client/client.h"

namespace kernd::cli {

// A tensor of the result as the reference has it.
struct Expected {
  std::string tensor;  // "D", "O", "LSE"
  TensorSpec spec;
  std::vector<double> values, bounds;  // kernels/reference/tolerance.h
};

// A call with everything that it is judged by.
struct Exam {
  Call call;
  std::vector<Expected> results;
  // Attention whose rows do not see all keys after them: the same call with other keys and values where only later rows
  // look. `kept` is how many keys of each sequence stayed as they were.
  std::optional<reference::AttentionCase> other_future;
  std::vector<std::int64_t> kept;
};

// The call of `c`, and the reference's answer. Errors: those of the kernels' Validate.
absl::StatusOr<Exam> Prepare(const Case& c, std::uint64_t seed);

enum class Verdict { kPassed, kFailed, kNotSupported };

// An element that is not what it must be.
struct WrongElement {
  std::string tensor;
  std::vector<std::int64_t> index;
  double actual = 0, expected = 0, bound = 0;
};

struct Result {
  Verdict verdict = Verdict::kPassed;
  std::string kernel;       // that ran, or that was asked for
  std::string why;          // failed or not supported: what happened
  bool compared = false;    // there was an answer of the right shape; else the numbers below say nothing
  double max_abs = 0;       // of D or O; NaN or infinity where only one side is
  double mean_abs = 0;      // of D or O, over finite elements
  double of_tolerance = 0;  // largest error of all elements, as a part of what it may be; more than 1: wrong
  std::int64_t elements = 0, mismatches = 0;  // of all results
  std::optional<WrongElement> first_wrong;
  bool repeated = false;       // the same call again gave the same bits
  std::optional<bool> causal;  // no row saw the future; empty: not asked
};

// Makes the call, with the kernel of that name or, where it is empty, the daemon's choice; again, for the bits; and a
// third time with another future. An error only where the daemon is not there: everything else is a verdict.
absl::StatusOr<Result> Check(const client::Client& client, const Exam& exam, const std::string& kernel,
                             const client::CallOptions& options);

}  // namespace kernd::cli
