// Every option once: its name, its help, and how its text becomes a field and a field its text.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/config/server_options.h"

namespace kernd::config {

struct Option {
  const char* group;
  const char* name;   // "memory-limit": flag --memory-limit, variable KERND_MEMORY_LIMIT, key memory-limit of the file
  const char* value;  // what stands for the value in the help
  const char* help;
  bool repeatable;
  // Sets the field from all values given (at least one; exactly one unless repeatable). The message of a failure is the
  // rule alone. `machine` is the whole of which percentages are parts, and what 0 threads stands for.
  std::function<absl::Status(const std::vector<std::string>& values, const MachineLimits& machine,
                             ServerOptions& options)>
      set;
  // The value of the field in the syntax of the file: 7, "64MiB", ["a", "b"].
  std::function<std::string(const ServerOptions&)> print;
};

// In the order of the help.
const std::vector<Option>& OptionTable();

// The variable of an option: KERND_MEMORY_LIMIT.
std::string VariableOf(const Option& option);

}  // namespace kernd::config
