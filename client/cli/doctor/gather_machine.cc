#include <sched.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/cli/doctor/gather.h"

namespace kernd::cli::doctor {
namespace {

std::string ReadFile(const std::string& path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

std::vector<std::string> LinesOf(const std::string& path) {
  return absl::StrSplit(ReadFile(path), '\n', absl::SkipEmpty());
}

// The bytes of a line "MemTotal:  123 kB" of /proc/meminfo; 0 where it is missing.
std::int64_t MemInfo(const std::vector<std::string>& lines, const std::string& name) {
  for (const std::string& line : lines) {
    if (line.rfind(name + ":", 0) == 0) return std::strtoll(line.c_str() + name.size() + 1, nullptr, 10) * 1024;
  }
  return 0;
}

std::string OsName(const std::string& root) {
  for (const std::string& line : LinesOf(root + "/etc/os-release")) {
    if (line.rfind("PRETTY_NAME=", 0) != 0) continue;
    std::string name = line.substr(12);
    name.erase(std::remove(name.begin(), name.end(), '"'), name.end());
    return name;
  }
  return "unknown system";
}

std::string ContainerName(const std::string& root) {
  std::error_code ignored;
  if (std::filesystem::exists(root + "/var/run/secrets/kubernetes.io", ignored)) return "kubernetes";
  if (std::filesystem::exists(root + "/run/.containerenv", ignored)) return "podman";
  if (std::filesystem::exists(root + "/.dockerenv", ignored)) return "docker";
  const std::string groups = ReadFile(root + "/proc/1/cgroup");
  for (const char* name : {"kubepods", "docker", "lxc"}) {
    if (groups.find(name) != std::string::npos) return name;
  }
  return "";
}

// Calls `visit` with the folder of each cgroup above this process, from its own to the root, of `controller` in
// version 1 and of all in version 2.
template <typename Visit>
void ForEachCgroup(const std::string& root, const std::string& controller, Visit visit) {
  for (const std::string& line : LinesOf(root + "/proc/self/cgroup")) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    const std::vector<std::string> controllers = absl::StrSplit(parts[1], ',');
    const bool v2 = parts[0] == "0" && parts[1].empty();
    if (!v2 && std::find(controllers.begin(), controllers.end(), controller) == controllers.end()) continue;
    const std::string top = root + "/sys/fs/cgroup" + (v2 ? "" : "/" + controller);
    for (std::string group = parts[2];; group = group.substr(0, group.rfind('/'))) {
      visit(top + group, v2);
      if (group.empty() || group.rfind('/') == std::string::npos) break;
    }
  }
}

std::int64_t CgroupMemory(const std::string& root) {
  std::int64_t least = 0;
  ForEachCgroup(root, "memory", [&](const std::string& group, bool v2) {
    std::int64_t limit = 0;
    const std::string text = ReadFile(group + (v2 ? "/memory.max" : "/memory.limit_in_bytes"));
    constexpr std::int64_t kNone = std::int64_t{1} << 60;  // version 1 says "none" by a huge number
    if (!absl::SimpleAtoi(text, &limit) || limit <= 0 || limit > kNone) return;
    least = least == 0 ? limit : std::min(least, limit);
  });
  return least;
}

double CgroupCpus(const std::string& root) {
  double least = 0;
  ForEachCgroup(root, "cpu", [&](const std::string& group, bool v2) {
    std::istringstream text(v2 ? ReadFile(group + "/cpu.max")
                               : ReadFile(group + "/cpu.cfs_quota_us") + " " + ReadFile(group + "/cpu.cfs_period_us"));
    double quota = 0, period = 0;
    if (!(text >> quota >> period) || quota <= 0 || period <= 0) return;  // "max 100000", "-1 100000"
    least = least == 0 ? quota / period : std::min(least, quota / period);
  });
  return least;
}

Limit OwnLimit(int resource) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0) return {kUnlimited, kUnlimited};
  const auto of = [](rlim_t value) { return value == RLIM_INFINITY ? kUnlimited : static_cast<std::uint64_t>(value); };
  return {of(limit.rlim_cur), of(limit.rlim_max)};
}

// The limits of a kernd that runs here are of more interest than those of this shell.
std::string RunningDaemon(const std::string& root) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(root + "/proc", error)) {
    const std::string pid = entry.path().filename().string();
    const bool number = pid.find_first_not_of("0123456789") == std::string::npos;
    if (number && ReadFile(entry.path().string() + "/comm") == "kernd\n") return pid;
  }
  return "";
}

// From a line "Max open files   1024   524288   files" of /proc/PID/limits.
std::optional<Limit> LimitIn(const std::vector<std::string>& lines, const std::string& name) {
  for (const std::string& line : lines) {
    if (line.rfind(name, 0) != 0) continue;
    std::istringstream words(line.substr(name.size()));
    std::string soft, hard;
    words >> soft >> hard;
    Limit limit{kUnlimited, kUnlimited};
    if (soft != "unlimited" && !absl::SimpleAtoi(soft, &limit.soft)) return std::nullopt;
    if (hard != "unlimited" && !absl::SimpleAtoi(hard, &limit.hard)) return std::nullopt;
    return limit;
  }
  return std::nullopt;
}

void GatherLimits(const std::string& root, MachineFacts& m) {
  m.limits_of = "this shell";
  m.open_files = OwnLimit(RLIMIT_NOFILE);
  m.locked_memory = OwnLimit(RLIMIT_MEMLOCK);
  const std::string pid = RunningDaemon(root);
  if (pid.empty()) return;
  const std::vector<std::string> lines = LinesOf(root + "/proc/" + pid + "/limits");
  const std::optional<Limit> files = LimitIn(lines, "Max open files"), locked = LimitIn(lines, "Max locked memory");
  if (!files || !locked) return;
  m.limits_of = "kernd, process " + pid;
  m.open_files = *files;
  m.locked_memory = *locked;
}

void GatherSharedMemory(const std::string& root, MachineFacts& m) {
  struct statvfs shm {};
  const std::string path = root + "/dev/shm";
  m.shm = ::statvfs(path.c_str(), &shm) == 0;
  if (!m.shm) return;
  m.shm_writable = ::access(path.c_str(), W_OK | X_OK) == 0;
  m.shm_bytes = static_cast<std::int64_t>(shm.f_blocks * shm.f_frsize);
  m.shm_free_bytes = static_cast<std::int64_t>(shm.f_bavail * shm.f_frsize);
}

}  // namespace

MachineFacts GatherMachine(const std::string& root) {
  MachineFacts m;
  utsname name{};
  if (::uname(&name) == 0) {
    m.kernel = name.release;
    m.architecture = name.machine;
  }
  m.os = OsName(root);
  m.container = ContainerName(root);
  cpu_set_t cpus;
  m.cpus = ::sched_getaffinity(0, sizeof(cpus), &cpus) == 0 ? CPU_COUNT(&cpus)
                                                            : static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
  m.cpu_quota = CgroupCpus(root);
  const std::vector<std::string> memory = LinesOf(root + "/proc/meminfo");
  m.memory_bytes = MemInfo(memory, "MemTotal");
  m.memory_available_bytes = MemInfo(memory, "MemAvailable");
  m.memory_limit_bytes = CgroupMemory(root);
  GatherLimits(root, m);
  GatherSharedMemory(root, m);
  timex clock{};  // modes = 0: only reads
  const int state = ::adjtimex(&clock);
  if (state >= 0) m.clock_synchronised = state != TIME_ERROR;
  return m;
}

}  // namespace kernd::cli::doctor
