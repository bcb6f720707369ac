// What this process may use of the machine: a container is told the machine's size by most interfaces, and its own by
// the cgroup files alone.
#pragma once

#include <cstdint>
#include <string>

namespace kernd::config {

struct MachineLimits {
  int cpus = 1;                   // at least 1
  std::string cpus_from;          // what sets it: "affinity", "cgroup cpu.max"
  std::int64_t memory_bytes = 0;  // of RAM
  std::string memory_from;        // "MemTotal", "cgroup memory.max"
};

// The CPUs that the scheduler may put this process on.
int AffinityCpus();

// The smallest of what the machine has, what the affinity mask allows, and what this process's cgroup (v1, v2 or both)
// and every group above it allow. A file that is missing or makes no sense sets no limit. A CPU quota is rounded down,
// to at least 1: a thread more than the quota pays for is one that stops in the middle of a kernel. `root` stands for
// "/": proc/meminfo, proc/self/cgroup and sys/fs/cgroup are read below it.
MachineLimits ReadMachineLimits(const std::string& root = "", int affinity_cpus = AffinityCpus());

}  // namespace kernd::config
