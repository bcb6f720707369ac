// Fills the facts of kernctl doctor. Nothing here needs a GPU, a driver, or a daemon; nothing waits long.
#pragma once

#include <string>

#include "client/cli/context.h"
#include "client/cli/doctor/facts.h"

namespace kernd::cli::doctor {

// `root` stands for "/" of the files of /proc and /sys; tests have one of their own.
MachineFacts GatherMachine(const std::string& root = "");

// The driver's libraries are opened by name, and closed again.
GpuFacts GatherGpus(const std::string& root = "");

// Asks the daemon of `context` for its health, its capabilities and one tiny product, and the HTTP port at `http` for
// its status.
DaemonFacts GatherDaemon(const Context& context, const std::string& http);

// Connects, and finds out who answers.
EndpointFacts Probe(const std::string& endpoint, absl::Duration timeout);

}  // namespace kernd::cli::doctor
