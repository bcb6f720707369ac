// Text of others, made harmless for people's eyes: terminals, log lines, pages.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace kernd::telemetry {

// Printable ASCII; every other byte as \xNN, so that nothing moves a cursor, begins a line or turns the direction of
// what follows. Of a longer text the first `max_bytes`, then "...".
std::string Printable(std::string_view text, std::size_t max_bytes = std::string_view::npos);

}  // namespace kernd::telemetry
