// What the status page says of this daemon that does not change while it lives.
#pragma once

#include <string>
#include <vector>

#include "server/config/build_info.h"
#include "server/core/backend.h"
#include "server/telemetry/status_json.h"

namespace kernd {

// Lines for the devices that do not serve, and for the options that have no effect, with the reasons.
telemetry::DaemonFacts FactsOf(const config::BuildInfo& build, const core::Backend& backend,
                               std::vector<std::string> devices_not_used, std::vector<std::string> options_not_used);

}  // namespace kernd
