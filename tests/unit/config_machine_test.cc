// server/config: what the machine allows a container or a process to use.
#include <gtest/gtest.h>

#include "server/config/machine_limits.h"
#include "tests/unit/config_support.h"

namespace kernd::config {
namespace {

TEST(Machine, CgroupV2WalksUpwards) {
  const Folder root;
  root.Write("proc/meminfo", "MemTotal:       16777216 kB\nMemFree: 1 kB\n");
  root.Write("proc/self/cgroup", "0::/pods/kernd\n");
  root.Write("sys/fs/cgroup/pods/memory.max", "2147483648\n");
  root.Write("sys/fs/cgroup/pods/kernd/memory.max", "max\n");
  root.Write("sys/fs/cgroup/pods/cpu.max", "max 100000\n");
  root.Write("sys/fs/cgroup/pods/kernd/cpu.max", "350000 100000\n");
  const MachineLimits limits = ReadMachineLimits(root.path(), 16);
  EXPECT_EQ(limits.memory_bytes, 2 * kGiB);
  EXPECT_EQ(limits.memory_from, "cgroup memory.max");
  EXPECT_EQ(limits.cpus, 3);
  EXPECT_EQ(limits.cpus_from, "cgroup cpu.max");
}

TEST(Machine, AContainerSeesItsGroupAtTheMount) {
  const Folder root;
  root.Write("proc/meminfo", "MemTotal: 16777216 kB\n");
  root.Write("proc/self/cgroup", "0::/system.slice/docker-1234.scope\n");
  root.Write("sys/fs/cgroup/memory.max", "1073741824\n");
  root.Write("sys/fs/cgroup/cpu.max", "50000 100000\n");
  const MachineLimits limits = ReadMachineLimits(root.path(), 16);
  EXPECT_EQ(limits.memory_bytes, kGiB);
  EXPECT_EQ(limits.cpus, 1);
}

TEST(Machine, CgroupV1) {
  const Folder root;
  root.Write("proc/meminfo", "MemTotal: 16777216 kB\n");
  root.Write("proc/self/cgroup", "12:memory:/a\n4:cpu,cpuacct:/b\n1:name=systemd:/x\n0::/x\n");
  root.Write("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "536870912\n");
  root.Write("sys/fs/cgroup/cpu/b/cpu.cfs_quota_us", "200000\n");
  root.Write("sys/fs/cgroup/cpu/b/cpu.cfs_period_us", "100000\n");
  const MachineLimits limits = ReadMachineLimits(root.path(), 16);
  EXPECT_EQ(limits.memory_bytes, 512 * kMiB);
  EXPECT_EQ(limits.memory_from, "cgroup memory.limit_in_bytes");
  EXPECT_EQ(limits.cpus, 2);
  EXPECT_EQ(limits.cpus_from, "cgroup cpu.cfs_quota_us");
}

TEST(Machine, NoLimits) {
  const Folder root;
  root.Write("proc/meminfo", "MemTotal: 16777216 kB\n");
  root.Write("proc/self/cgroup", "12:memory:/a\n4:cpu,cpuacct:/\nnonsense\n0::/\n");
  root.Write("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "9223372036854771712\n");
  root.Write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  root.Write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  root.Write("sys/fs/cgroup/memory.max", "garbage\n");
  root.Write("sys/fs/cgroup/cpu.max", "");
  const MachineLimits limits = ReadMachineLimits(root.path(), 16);
  EXPECT_EQ(limits.memory_bytes, 16 * kGiB);
  EXPECT_EQ(limits.memory_from, "MemTotal");
  EXPECT_EQ(limits.cpus, 16);
  EXPECT_EQ(limits.cpus_from, "affinity");
}

TEST(Machine, NothingToReadIsASmallMachine) {
  const Folder root;
  const MachineLimits limits = ReadMachineLimits(root.path(), 0);
  EXPECT_EQ(limits.memory_bytes, kGiB);
  EXPECT_EQ(limits.cpus, 1);
}

TEST(Machine, ThisOne) {
  const MachineLimits limits = ReadMachineLimits();
  EXPECT_GE(limits.cpus, 1);
  EXPECT_LE(limits.cpus, AffinityCpus());
  EXPECT_GT(limits.memory_bytes, 32 * kMiB);
}

}  // namespace
}  // namespace kernd::config
