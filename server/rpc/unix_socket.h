// A listening unix socket.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace kernd::rpc {

// Binds `path`, replacing a socket that nobody listens on, and listens. `type`: SOCK_STREAM or SOCK_SEQPACKET. The
// descriptor does not block. INVALID_ARGUMENT: no path for a socket; UNAVAILABLE: the system's reason.
absl::StatusOr<int> ListenUnix(const std::string& path, int type);

}  // namespace kernd::rpc
