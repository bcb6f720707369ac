// Options that an operator has set and that change nothing.
#pragma once

#include <string>
#include <vector>

#include "server/config/server_options.h"

namespace kernd::config {

// A line for each reason, as "--gpu-memory, --tuning-file have no effect: the CPU serves": options of the backend that
// does not serve, and those of a feature that is off. One that has its default's value is not among them. They are no
// error: one file may do for machines with GPUs and without.
std::vector<std::string> UnusedOptions(const ServerOptions& options, const MachineLimits& machine, bool on_gpu);

}  // namespace kernd::config
