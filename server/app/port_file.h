// Tells whoever started the daemon which ports it was given.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace kernd {

// Writes `text` to `path`, whole or not at all, so that a reader never sees half of it. UNAVAILABLE where that cannot
// be, or where something is there that is no regular file.
absl::Status WritePortFile(const std::string& path, const std::string& text);

}  // namespace kernd
