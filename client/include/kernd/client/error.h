// Errors are absl::Status; what a program may want to read of one beside code and message is here.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace kernd::client {

// Reasons that the client gives itself; the daemon's own are in proto/README.md.
namespace reason {
inline constexpr std::string_view kNotConnected = "NOT_CONNECTED";  // no connection to the daemon
inline constexpr std::string_view kInvalidField = "INVALID_FIELD";  // refused before it was sent
inline constexpr std::string_view kTooLarge = "TOO_LARGE";          // no message may be as large
inline constexpr std::string_view kBadReply = "BAD_REPLY";          // not what a daemon of this version sends

// Of the daemon's own, those that say that a session is gone with its tensors: its lease has ended, or the daemon has
// restarted since.
inline constexpr std::string_view kSessionNotFound = "SESSION_NOT_FOUND";
inline constexpr std::string_view kServerRestarted = "SERVER_RESTARTED";

// And those that say that there is no room: for a tensor in its session, of that or of all; for another session.
inline constexpr std::string_view kQuotaFull = "QUOTA_FULL";
inline constexpr std::string_view kMemoryFull = "MEMORY_FULL";
inline constexpr std::string_view kSessionsFull = "SESSIONS_FULL";

// Session::Share: the daemon was not told to take shared memory. The daemon's own word as well.
inline constexpr std::string_view kSharedMemoryOff = "SHARED_MEMORY_OFF";
}  // namespace reason

struct ErrorDetails {
  std::string reason;                           // machine-readable, or empty
  std::string field;                            // path in the request, "attention.q.shape", or empty
  std::optional<absl::Duration> retry_after;    // set: the same call may succeed after this long
  std::map<std::string, std::string> metadata;  // for example needed_bytes, limit_bytes
};

// What the daemon, or the client, said of a failed call. All empty for OK and for statuses from elsewhere.
ErrorDetails DetailsOf(const absl::Status& status);

}  // namespace kernd::client
