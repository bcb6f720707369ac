// KERND_ variables that set nothing.
#pragma once

#include <string>
#include <vector>

namespace kernd::config {

// A line for each KERND_ variable of `environment` ("NAME=value", as in environ; the last entry is null) that is no
// option, with the option that it may stand for. They are no error: Kubernetes sets KERND_SERVICE_HOST, KERND_PORT and
// others for a Service named kernd, and KERND_X_... for one named kernd-x; those are passed over, as is what kernctl
// reads.
std::vector<std::string> UnknownVariables(const char* const* environment);

}  // namespace kernd::config
