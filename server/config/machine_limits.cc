#include "server/config/machine_limits.h"

#include <sched.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace kernd::config {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> Words(const fs::path& file) {
  std::ifstream in(file);
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

// Word `index` of the file, where it is a positive number; "max" and -1 mean no limit.
std::optional<std::int64_t> Positive(const fs::path& file, std::size_t index = 0) {
  const std::vector<std::string> words = Words(file);
  std::int64_t value = 0;
  if (index >= words.size() || !absl::SimpleAtoi(words[index], &value) || value <= 0) return std::nullopt;
  return value;
}

// MemTotal is in KiB. A machine that does not say gets 1 GiB: little enough to be safe.
std::int64_t TotalMemory(const std::string& root) {
  const std::vector<std::string> words = Words(root + "/proc/meminfo");
  const auto found = std::find(words.begin(), words.end(), "MemTotal:");
  std::int64_t kib = 0;
  if (words.end() - found < 2 || !absl::SimpleAtoi(found[1], &kib) || kib <= 0) return std::int64_t{1} << 30;
  return std::min(kib, std::numeric_limits<std::int64_t>::max() / 1024) * 1024;
}

void LimitMemory(const fs::path& file, MachineLimits& limits) {
  const auto bytes = Positive(file);
  if (!bytes || *bytes >= limits.memory_bytes) return;
  limits.memory_bytes = *bytes;
  limits.memory_from = absl::StrCat("cgroup ", file.filename().string());
}

void LimitCpus(std::optional<std::int64_t> quota, std::optional<std::int64_t> period, const char* from,
               MachineLimits& limits) {
  if (!quota || !period) return;
  const std::int64_t cpus = std::max<std::int64_t>(1, *quota / *period);
  if (cpus >= limits.cpus) return;
  limits.cpus = static_cast<int>(cpus);
  limits.cpus_from = absl::StrCat("cgroup ", from);
}

// Applies what the groups from `mount`/`group` up to `mount` say; a limit above binds the groups below it. Inside a
// container the path may be the host's, which the mount does not show: then the mount itself is the group.
void ApplyGroups(const fs::path& mount, const std::string& group, MachineLimits& limits) {
  fs::path dir = mount;
  std::vector<fs::path> dirs = {dir};
  for (const fs::path& part : fs::path(group).relative_path()) dirs.push_back(dir /= part);
  for (const fs::path& level : dirs) {
    LimitMemory(level / "memory.max", limits);
    LimitMemory(level / "memory.limit_in_bytes", limits);
    LimitCpus(Positive(level / "cpu.max", 0), Positive(level / "cpu.max", 1), "cpu.max", limits);
    LimitCpus(Positive(level / "cpu.cfs_quota_us"), Positive(level / "cpu.cfs_period_us"), "cpu.cfs_quota_us", limits);
  }
}

}  // namespace

int AffinityCpus() {
  // The kernel refuses a mask that is smaller than its own, so try larger ones.
  for (int bits = 1024; bits <= 1 << 20; bits *= 2) {
    std::vector<cpu_set_t> mask((bits + CPU_SETSIZE - 1) / CPU_SETSIZE);
    const std::size_t bytes = mask.size() * sizeof(cpu_set_t);
    if (sched_getaffinity(0, bytes, mask.data()) == 0) return std::max(1, CPU_COUNT_S(bytes, mask.data()));
  }
  return 1;
}

MachineLimits ReadMachineLimits(const std::string& root, int affinity_cpus) {
  MachineLimits limits = {.cpus = std::max(1, affinity_cpus),
                          .cpus_from = "affinity",
                          .memory_bytes = TotalMemory(root),
                          .memory_from = "MemTotal"};
  // Lines are "number:controllers:path"; v2 has no controllers in its line, and its mount moves to unified/ where v1 is
  // mounted as well.
  std::ifstream in(root + "/proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3) continue;
    const fs::path mount = root + "/sys/fs/cgroup";
    if (fields[1].empty()) {
      ApplyGroups(mount, fields[2], limits);
      ApplyGroups(mount / "unified", fields[2], limits);
    } else {
      for (const absl::string_view controller : absl::StrSplit(fields[1], ',')) {
        ApplyGroups(mount / std::string(controller), fields[2], limits);
      }
    }
  }
  return limits;
}

}  // namespace kernd::config
