// Results of calls, for people and as JSON.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/cli/context.h"
#include "client/cli/operation.h"
#include "kernd/client/result.h"
#include "nlohmann/json.hpp"

namespace kernd::cli {

// A name ("q", "d") and what stands there.
struct NamedShape {
  std::string name;
  client::DataType dtype;
  std::vector<std::int64_t> shape;
};

struct CallReport {
  std::string operation;
  std::vector<NamedShape> operands, results;
  client::KernelUsed kernel;
  client::Timing timing;
  client::Memory memory;
  double client_us = 0;  // from the call of the library to its return
  std::optional<Expectation> expectation;
};

// Writes to context.out: text, or JSON with --json.
void PrintCall(const Context& context, const CallReport& report);
void PrintPlan(const Context& context, const std::string& operation, const std::vector<NamedShape>& operands,
               const client::PlanReply& plan);

// Pretty-printed JSON, whatever bytes its texts hold.
void PrintJson(const Context& context, const nlohmann::json& json);

}  // namespace kernd::cli
