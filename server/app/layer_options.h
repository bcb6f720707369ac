// What the operator has set, as each layer takes it.
#pragma once

#include <cstdint>

#include "absl/time/time.h"
#include "server/config/server_options.h"
#include "server/core/session_store.h"
#include "server/rpc/server.h"

namespace kernd {

rpc::TransportOptions TransportOf(const config::ServerOptions& options);

// `resident_limit`: bytes of tensors that clients may keep; `shared_limit`: of memory that they may share, 0 for none.
core::SessionStore::Options SessionsOf(const config::SessionOptions& options, std::int64_t resident_limit,
                                       std::int64_t shared_limit);

// Often enough that nothing stays much longer than its time.
absl::Duration SweepEvery(const config::SessionOptions& options);

// Open files without which the daemon is no use: what the libraries and each I/O thread open, the HTTP port's
// connections, and some clients.
std::int64_t NeededDescriptors(const config::ServerOptions& options);

}  // namespace kernd
