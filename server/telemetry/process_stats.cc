#include "server/telemetry/process_stats.h"

#include <sys/resource.h>
#include <unistd.h>

#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <system_error>

namespace kernd::telemetry {
namespace {

// Field `number` (from 1, as in proc(5)) of /proc/self/stat. The second is the program's name in parentheses, which may
// hold spaces, so count from behind it.
double StatField(const std::string& stat, int number) {
  const std::size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos) return 0;
  std::istringstream rest(stat.substr(name_end + 1));
  std::string word;
  for (int field = 3; field <= number; ++field) rest >> word;
  return rest ? std::stod(word) : 0;
}

// "btime": when the machine started, in seconds since the epoch.
double BootTime() {
  std::ifstream in("/proc/stat");
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("btime ")) return std::stod(line.substr(6));
  }
  return 0;
}

}  // namespace

ProcessStats ReadProcessStats() {
  ProcessStats stats;
  timespec cpu = {};
  if (clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu) == 0) stats.cpu_seconds = cpu.tv_sec + cpu.tv_nsec / 1e9;

  std::ifstream in("/proc/self/stat");
  const std::string stat(std::istreambuf_iterator<char>(in), {});
  static const double boot_time = BootTime();
  stats.threads = static_cast<std::int64_t>(StatField(stat, 20));
  stats.start_time_seconds = boot_time + StatField(stat, 22) / static_cast<double>(sysconf(_SC_CLK_TCK));
  stats.virtual_bytes = static_cast<std::int64_t>(StatField(stat, 23));
  stats.resident_bytes = static_cast<std::int64_t>(StatField(stat, 24)) * sysconf(_SC_PAGESIZE);

  std::error_code error;
  for (std::filesystem::directory_iterator it("/proc/self/fd", error), end; !error && it != end; it.increment(error)) {
    ++stats.open_fds;
  }
  if (stats.open_fds > 0) --stats.open_fds;  // the one that counts the others
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) stats.max_fds = static_cast<std::int64_t>(limit.rlim_cur);
  return stats;
}

}  // namespace kernd::telemetry
