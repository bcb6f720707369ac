// The page at /, status_page.html as the build found it.
#pragma once

#include <string_view>

namespace kernd::telemetry {

extern const std::string_view kStatusPage;

// Its Content-Security-Policy: its own script and style, known by their hashes, and requests to where it came from.
extern const std::string_view kStatusPagePolicy;

}  // namespace kernd::telemetry
