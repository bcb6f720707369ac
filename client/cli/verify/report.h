// Verdicts of `kernctl verify`: a line for each as it comes, and what they amount to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "client/cli/context.h"
#include "client/cli/verify/cases.h"
#include "client/cli/verify/check.h"
#include "nlohmann/json.hpp"

namespace kernd::cli {

struct Tally {
  std::int64_t passed = 0, failed = 0, not_supported = 0;
  std::int64_t repeated = 0, causal = 0;  // of those that passed: with the same bits again; with another future
};

class VerifyReport {
 public:
  // Columns are as wide as the longest of `cases` and `kernels` needs, so that lines can be printed one by one.
  VerifyReport(const Context& context, const std::vector<Case>& cases, const std::vector<std::string>& kernels,
               std::uint64_t seed);

  // Prints a line, and what is wrong under it; with --json nothing before Finish.
  void Add(const Case& c, const Result& result);
  // Prints the sum.
  void Finish(absl::Duration spent);

  const Tally& tally() const { return tally_; }

 private:
  void PrintRow(const std::vector<std::string>& cells, const std::string& verdict, const char* color);

  const Context& context_;
  const std::uint64_t seed_;
  std::vector<std::size_t> widths_;
  Tally tally_;
  nlohmann::json rows_ = nlohmann::json::array();
};

}  // namespace kernd::cli
