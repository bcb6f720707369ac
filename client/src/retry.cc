#include "client/src/retry.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <system_error>

#include "absl/strings/match.h"
#include "client/src/status.h"
#include "kernd/client/error.h"

namespace kernd::client {

absl::Status ValidateRetryPolicy(const RetryPolicy& policy) {
  if (policy.max_attempts < 1) {
    return InvalidField("retry.max_attempts", std::to_string(policy.max_attempts), "at least 1");
  }
  if (policy.initial_backoff < absl::ZeroDuration() || policy.max_backoff < policy.initial_backoff) {
    return InvalidField("retry.max_backoff", absl::FormatDuration(policy.max_backoff),
                        "not negative, and at least initial_backoff");
  }
  if (!(policy.multiplier >= 1.0) || !std::isfinite(policy.multiplier)) {
    return InvalidField("retry.multiplier", std::to_string(policy.multiplier), "finite, at least 1");
  }
  if (!(policy.jitter >= 0.0 && policy.jitter <= 1.0)) {
    return InvalidField("retry.jitter", std::to_string(policy.jitter), "from 0 to 1");
  }
  return absl::OkStatus();
}

namespace {

// TCP sends the first packet of a connection again after a second. Until it is answered, gRPC fails every call with
// what went wrong before.
constexpr absl::Duration kConnectAgain = absl::Milliseconds(1250);

// A connection came to nothing, though a daemon may well be there: a busy machine, or one on the way, drops what it has
// no room for. Where nothing listens, trying for longer helps nobody. gRPC tells the two apart by the system's words.
bool LostConnection(const absl::Status& status, const ErrorDetails& details) {
  const auto says = [&status](int error) {
    return absl::StrContains(status.message(), std::generic_category().message(error));
  };
  return details.reason == reason::kNotConnected && !says(ECONNREFUSED) && !says(ENOENT);
}

// RetryDelay, were there no deadline.
std::optional<absl::Duration> Backoff(const RetryPolicy& policy, int failed, const absl::Status& status,
                                      const Pushback& pushback, double uniform) {
  if (failed >= policy.max_attempts || pushback.never) return std::nullopt;
  const ErrorDetails details = DetailsOf(status);
  const std::optional<absl::Duration> told = pushback.delay ? pushback.delay : details.retry_after;
  const bool again = absl::IsUnavailable(status) ||
                     (absl::IsResourceExhausted(status) && policy.on_resource_exhausted && told.has_value());
  if (!again) return std::nullopt;
  // Many clients are told the same moment: they spread out after it, never before.
  if (told) return *told * (1.0 + policy.jitter * uniform);
  const double growth = std::pow(policy.multiplier, failed - 1);  // infinity in the worst case, which min takes care of
  const absl::Duration backoff = std::min(policy.initial_backoff * growth, policy.max_backoff);
  const absl::Duration delay = backoff * (1.0 + policy.jitter * (2.0 * uniform - 1.0));
  const bool last = failed + 1 == policy.max_attempts;
  if (last && LostConnection(status, details)) return std::max(delay, kConnectAgain * (1.0 + policy.jitter * uniform));
  return delay;
}

}  // namespace

std::optional<absl::Duration> RetryDelay(const RetryPolicy& policy, int failed, const absl::Status& status,
                                         const Pushback& pushback, double uniform, absl::Duration left) {
  const std::optional<absl::Duration> delay = Backoff(policy, failed, status, pushback, uniform);
  if (delay && *delay >= left) return std::nullopt;
  return delay;
}

}  // namespace kernd::client
