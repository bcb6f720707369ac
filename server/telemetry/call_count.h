// How many calls of one kind there were.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace kernd::telemetry {

// Of one method, that ended with one code.
struct CallCount {
  std::string method;
  absl::StatusCode code = absl::StatusCode::kOk;
  std::uint64_t calls = 0;
};

inline constexpr std::size_t kNumCodes = 17;  // OK to UNAUTHENTICATED

}  // namespace kernd::telemetry
