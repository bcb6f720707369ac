// Whether a kernel's results are right: a sample of their elements against the fp64 reference, within the bound that it
// has for the dtype, and none that is not finite.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/core/program.h"

namespace kernd::tune {

class Exam {
 public:
  // Of a declared shape's step with its operands in host memory, one run each. What is sampled is the same each time,
  // and costs at most about a second:
  //   matmul     some rows times some columns of some batch items, the first and last of each among them
  //   attention  some rows of some heads and sequences, over the keys that they see; the first and last row as well
  // Errors: those of Validate.
  static absl::StatusOr<Exam> Prepare(const core::Step& step);

  // Of the results in the order of the plan's; empty: nothing is wrong with them.
  std::string Judge(absl::Span<const core::HostBuffer> results) const;

 private:
  // Elements of one result, and what they must be.
  struct Sample {
    std::size_t result = 0;
    std::vector<std::int64_t> at;
    std::vector<double> expected, bounds;
  };
  struct Result {
    std::string name;
    TensorSpec spec;
    bool finite = true;  // all elements must be
  };

  absl::Status Add(const core::MatmulStep& step);
  absl::Status Add(const core::AttentionStep& step);

  std::vector<Result> results_;
  std::vector<Sample> samples_;
};

}  // namespace kernd::tune
