// What gRPC and protobuf have to say, for the daemon's log.
#pragma once

#include <string>

namespace kernd::rpc {

enum class LibrarySeverity { kInfo, kError };

// From now on every line of gRPC and protobuf goes to `write` instead of to standard error, raw: clients can cause some
// of them, as text that is no UTF-8. Called from any thread, and before the process aborts: then the line has been
// written to standard error as well, since a log with a queue would lose it. Once, before either library is used.
using LibraryLog = void (*)(LibrarySeverity severity, const std::string& line);
void RouteLibraryLogs(LibraryLog write);

}  // namespace kernd::rpc
