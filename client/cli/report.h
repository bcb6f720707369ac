// Results of calls, for people and as JSON.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/cli/context.h"
#include "client/cli/operation.h"
#include "kernd/client/result.h"
#include "nlohmann/json.hpp"

namespace kernd::cli {

struct StageTime {
  const char* name;
  double us;
};

inline constexpr std::size_t kNumStages = 10;

// The stages of a call in their order, without the total.
std::array<StageTime, kNumStages> Stages(const client::Timing& timing);

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
  double connect_us = 0;  // until the connection stood, before the call
  double client_us = 0;   // from the call of the library to its return
  std::optional<Expectation> expectation;
};

// Writes to context.out: text, or JSON with --json.
void PrintCall(const Context& context, const CallReport& report);
void PrintPlan(const Context& context, const std::string& operation, const std::vector<NamedShape>& operands,
               const client::PlanReply& plan);

// "sending 96.0 MiB, and waiting for the result".
std::string SendingText(const std::vector<NamedShape>& operands);

// Pretty-printed JSON, whatever bytes its texts hold.
void PrintJson(const Context& context, const nlohmann::json& json);

}  // namespace kernd::cli
