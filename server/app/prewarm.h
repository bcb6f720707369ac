// From a process that listens to one that is ready.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "server/app/life.h"
#include "server/core/engine.h"
#include "server/core/shape_list.h"

namespace kernd {

// Runs every kernel, and the shapes that were declared, once, so that the first call is like any other. Says in `life`
// and in the log how far it is; a shape that cannot be run here is warned of. Errors: those of Engine::Start.
absl::Status Prewarm(core::Engine& engine, const std::vector<core::DeclaredShape>& declared, Life& life);

}  // namespace kernd
