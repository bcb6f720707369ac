// From the command line, the environment and a file to ServerOptions. A flag beats a KERND_ variable, a variable beats
// the file, the file beats the default.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "server/config/server_options.h"

namespace kernd::config {

// The value of an environment variable; none where it is not set.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;
Environment ProcessEnvironment();

struct Invocation {
  ServerOptions options;
  // For --help, --version and --check-config: what to write to standard output before leaving with exit code 0.
  std::optional<std::string> print;
};

// Reads and validates. An error (exit code 2) is INVALID_ARGUMENT and names field, source, value and rule; a file that
// cannot be read is NOT_FOUND. `version` answers --version.
absl::StatusOr<Invocation> ParseOptions(int argc, const char* const* argv, const std::string& version,
                                        const Environment& environment = ProcessEnvironment(),
                                        const MachineLimits& machine = ReadMachineLimits());

}  // namespace kernd::config
