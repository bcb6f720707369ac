// What the status page says of this daemon that does not change while it lives.
#pragma once

#include <string>
#include <vector>

#include "server/config/build_info.h"
#include "server/core/backend.h"
#include "server/telemetry/status_json.h"

namespace kernd {

// `not_used`: a line for each device that does not serve, and why.
telemetry::DaemonFacts FactsOf(const config::BuildInfo& build, const core::Backend& backend,
                               std::vector<std::string> not_used);

}  // namespace kernd
