// What the operating system says of this process: the process_* metrics.
#pragma once

#include <cstdint>

namespace kernd::telemetry {

struct ProcessStats {
  double cpu_seconds = 0;         // user and system, all threads
  double start_time_seconds = 0;  // since the epoch
  std::int64_t resident_bytes = 0;
  std::int64_t virtual_bytes = 0;
  std::int64_t open_fds = 0;
  std::int64_t max_fds = 0;  // the soft limit
  std::int64_t threads = 0;
};

// A number that cannot be read, for example without /proc or a free file descriptor, is 0.
ProcessStats ReadProcessStats();

}  // namespace kernd::telemetry
