// Which errors are the daemon's own.
#pragma once

#include "absl/status/status.h"

namespace kernd::telemetry {

// True where the daemon is to blame, and not its client, its limits or the time.
inline bool IsFault(absl::StatusCode code) {
  return code == absl::StatusCode::kInternal || code == absl::StatusCode::kUnknown ||
         code == absl::StatusCode::kDataLoss;
}

}  // namespace kernd::telemetry
