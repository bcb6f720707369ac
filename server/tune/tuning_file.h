// The file of tuned choices (kernd/kernels/tuning.h): read once at the start, replaced whole when it is written.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "kernd/kernels/tuning.h"

namespace kernd::tune {

// A regular file of at most kMaxTuningBytes.
//   NOT_FOUND            there is none
//   FAILED_PRECONDITION  it is stale
//   INVALID_ARGUMENT     it is damaged, too large, or no regular file
//   PERMISSION_DENIED    others than the daemon's user and root own it, or may write to it
//   INTERNAL             it cannot be read: the system's words
absl::StatusOr<TunedChoices> ReadTuningFile(const std::string& path, const TuningVersion& version);

// Readers see the old text or the new one, also after a crash. Mode 0600: what a daemon runs is nobody else's to
// choose.
//   INVALID_ARGUMENT  it would be larger than a reader takes
//   INTERNAL          the system's words; the old file, if any, is as it was
absl::Status WriteTuningFile(const std::string& path, const TuningVersion& version, const TunedChoices& choices);

}  // namespace kernd::tune
