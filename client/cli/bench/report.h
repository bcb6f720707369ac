// What `kernctl bench` found: a line for each load as it comes, where the time went, what it amounts to.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "client/cli/bench/call.h"
#include "client/cli/bench/load.h"
#include "client/cli/bench/plot.h"
#include "client/cli/context.h"
#include "kernd/client/device.h"
#include "nlohmann/json.hpp"

namespace kernd::cli {

struct BenchSettings {
  Load load;  // of the first row; the others differ in rate or concurrency
  int connections = 1;
  std::string place;  // as the flag names it
  std::optional<absl::Duration> until_p99;
  std::string mix;  // the file's name; empty: one problem
};

class BenchReport {
 public:
  // All arguments outlive the report. Prints what is run, and the heads; with --json nothing before Finish.
  BenchReport(const Context& context, const BenchSettings& settings, const client::Capabilities& daemon,
              std::span<const BenchCall> calls);

  // Prints the row.
  void Add(LoadResult result);
  // Prints the rest. `interrupted`: the user had enough.
  void Finish(bool interrupted);

  // Of the rows so far.
  PlotSpec Plot() const;
  const std::vector<LoadResult>& rows() const { return rows_; }
  // Rows before the first one that is not Within; as rates rise, the last of them is the highest.
  std::size_t num_within() const;

  // Whether the row keeps --until-p99: its p99 does, no call failed or was cut off, and there was one. True without it.
  static bool Within(const BenchSettings& settings, const LoadResult& result);

 private:
  std::string LoadName(const Load& load) const;
  void PrintCells(const std::vector<std::string>& cells, const char* color) const;
  void PrintStages() const;
  void PrintRemarks(bool interrupted) const;
  nlohmann::json RowJson(const LoadResult& row) const;
  nlohmann::json Results() const;

  const Context& context_;
  const BenchSettings& settings_;
  const client::Capabilities& daemon_;
  const std::span<const BenchCall> calls_;
  const bool open_;
  std::vector<LoadResult> rows_;
};

}  // namespace kernd::cli
