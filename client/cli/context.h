// What every command of kernctl shares: the global options, the streams, exit codes and error reports.
#pragma once

#include <functional>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernd/client/client.h"

namespace kernd::cli {

// Those of grpc_health_probe, for all commands.
enum ExitCode : int {
  kOk = 0,
  kBadArguments = 1,  // also files that cannot be read or written
  kNotConnected = 2,  // no connection to the daemon, or not in time
  kCallFailed = 3,    // the daemon refused the call, failed, or took too long
  kWrong = 4,         // not SERVING; not what --expect says
};

// What may be sent to the two streams beside text.
struct Terminal {
  bool colors = false;    // `out` takes colours
  bool progress = false;  // `err` takes a bar that is drawn over and over
  bool screen = false;    // `out` is standard output, and may be taken as a whole
};

struct Context {
  std::ostream& out;  // data
  std::ostream& err;  // diagnostics
  Terminal terminal;
  std::string endpoint = "127.0.0.1:50051";
  std::string timeout = "60s";
  std::vector<std::string> metadata;  // KEY=VALUE
  bool json = false;

  absl::StatusOr<client::Client> Connect() const;
  absl::Duration Timeout() const;
  // With the metadata, and nothing else.
  client::CallOptions CallOptions() const;

  // Report `status` on `err`, with --json as JSON; return the exit code. What a daemon or a file had to say is made fit
  // for a terminal.
  int BadArguments(const absl::Status& status) const;
  int CallFailed(const absl::Status& status) const;
};

// What a command does once the command line is parsed. Returns the exit code.
using Action = std::function<int()>;

}  // namespace kernd::cli
