// Errors from the kernels up to the wire are absl::Status. What a program may want to read of one - the field at fault,
// a machine-readable reason, when to try again - travels in the status's payloads, and server/rpc turns those into
// google.rpc details. A message for people says field, value and rule.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace kernd {

// Reasons: the closed list of machine-readable causes (google.rpc.ErrorInfo.reason).
namespace reason {
inline constexpr std::string_view kInvalidField = "INVALID_FIELD";
inline constexpr std::string_view kMalformed = "MALFORMED_MESSAGE";
inline constexpr std::string_view kUnsupported = "UNSUPPORTED";
inline constexpr std::string_view kUnknownField = "UNKNOWN_FIELD";
inline constexpr std::string_view kNotBuilt = "NOT_BUILT";
inline constexpr std::string_view kStarting = "STARTING";
inline constexpr std::string_view kDraining = "DRAINING";
inline constexpr std::string_view kTooLarge = "TOO_LARGE";           // can never fit
inline constexpr std::string_view kBodyBudget = "BODY_BUDGET_FULL";  // bytes of bodies in flight, full now
inline constexpr std::string_view kMemoryFull = "MEMORY_FULL";       // does not fit now
inline constexpr std::string_view kQueueFull = "QUEUE_FULL";         // too many calls, now
inline constexpr std::string_view kDeadline = "DEADLINE_PASSED";
inline constexpr std::string_view kCancelled = "CANCELLED_BY_CLIENT";
inline constexpr std::string_view kKernelFailed = "KERNEL_FAILED";
inline constexpr std::string_view kDeviceLost = "DEVICE_LOST";  // until the daemon has been started again
inline constexpr std::string_view kSessionNotFound = "SESSION_NOT_FOUND";
inline constexpr std::string_view kServerRestarted = "SERVER_RESTARTED";  // which is why there is no such session
inline constexpr std::string_view kTensorNotFound = "TENSOR_NOT_FOUND";
inline constexpr std::string_view kRegionNotFound = "REGION_NOT_FOUND";    // of shared memory
inline constexpr std::string_view kSharedMemoryOff = "SHARED_MEMORY_OFF";  // the daemon was not told to take any
inline constexpr std::string_view kNotReady = "NOT_READY";                 // a tensor that is still being filled
inline constexpr std::string_view kFillFailed = "FILL_FAILED";             // a tensor whose upload was given up
inline constexpr std::string_view kOldVersion = "OLD_VERSION";
inline constexpr std::string_view kOverlap = "OVERLAP";
inline constexpr std::string_view kOutOfRange = "OUT_OF_RANGE";
inline constexpr std::string_view kQuotaFull = "QUOTA_FULL";        // of the session
inline constexpr std::string_view kSessionsFull = "SESSIONS_FULL";  // too many of them, now
inline constexpr std::string_view kTuningOff = "TUNING_OFF";        // the operator has not let clients tune
inline constexpr std::string_view kTuningBusy = "TUNING_BUSY";      // another tuning is on, now
}  // namespace reason

// What a status carries beside code and message.
struct ErrorDetail {
  std::string reason;                           // one of `reason`, or empty
  std::string field;                            // path in the request, "attention.q.shape", or empty
  std::optional<absl::Duration> retry_after;    // set: the same call may succeed after this long
  std::map<std::string, std::string> metadata;  // for example needed_bytes, limit_bytes
};

// INVALID_ARGUMENT: "<field> is <value>: <rule>".
absl::Status InvalidField(std::string_view field, std::string_view value, std::string_view rule);

// UNIMPLEMENTED: "<field> is <value>: <rule>": understood, legal, and not offered here.
absl::Status UnsupportedField(std::string_view field, std::string_view value, std::string_view rule);

// `status` with `detail` attached in place of what it carried. OK stays OK.
absl::Status WithDetail(absl::Status status, const ErrorDetail& detail);

// What `status` carries; all empty where it carries nothing.
ErrorDetail DetailOf(const absl::Status& status);

}  // namespace kernd

// The two macros that this Abseil (20220623) lacks.
#define KERND_RETURN_IF_ERROR(expr)                                                       \
  do {                                                                                    \
    if (::absl::Status kernd_status_ = (expr); !kernd_status_.ok()) return kernd_status_; \
  } while (false)

#define KERND_CONCAT_INNER_(a, b) a##b
#define KERND_CONCAT_(a, b) KERND_CONCAT_INNER_(a, b)
#define KERND_ASSIGN_OR_RETURN(lhs, expr) KERND_ASSIGN_OR_RETURN_(KERND_CONCAT_(kernd_or_, __LINE__), lhs, expr)
#define KERND_ASSIGN_OR_RETURN_(tmp, lhs, expr)  \
  auto tmp = (expr);                             \
  if (!tmp.ok()) return std::move(tmp).status(); \
  lhs = *std::move(tmp)
