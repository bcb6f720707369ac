// When to try again: a pure function of the policy, what failed, and a random number.
#pragma once

#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kernd/client/options.h"

namespace kernd::client {

// The grpc-retry-pushback-ms trailer.
struct Pushback {
  bool never = false;  // negative, or not a number
  std::optional<absl::Duration> delay;
};

// OK, or INVALID_ARGUMENT with the option's name.
absl::Status ValidateRetryPolicy(const RetryPolicy& policy);

// How long to wait after attempt number `failed` (from 1) ended with `status`; empty: do not try again.
// `uniform` is from [0, 1). The daemon's word (pushback, else RetryInfo) goes before the policy's own backoff. A wait
// that would take up all of `left`, the time to the deadline, is not begun.
std::optional<absl::Duration> RetryDelay(const RetryPolicy& policy, int failed, const absl::Status& status,
                                         const Pushback& pushback, double uniform, absl::Duration left);

}  // namespace kernd::client
