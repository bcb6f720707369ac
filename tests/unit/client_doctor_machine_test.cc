// kernctl doctor on this machine: its checks, and what it reads of the system.
#include "tests/unit/client_doctor_case.h"

namespace kernd::cli::doctor {
namespace {

INSTANTIATE_TEST_SUITE_P(
    Machine, SpoiltTest,
    testing::Values(
        Case{"Descriptors256", Well,
             [](Facts& f) {
               f.machine.open_files = {256, 256};
             },
             CheckOpenFiles, kBad, "256", "LimitNOFILE"},
        Case{"Descriptors512", Well,
             [](Facts& f) {
               f.machine.open_files = {512, 512};
             },
             CheckOpenFiles, kWarn, "512", "ulimit"},
        Case{"SoftLimitIsRaised", Well,
             [](Facts& f) {
               f.machine.open_files = {256, 65536};
             },
             CheckOpenFiles, kOkay, "65536", ""},
        Case{"Memlock64KiB", Well,
             [](Facts& f) {
               f.machine.locked_memory = {64 << 10, 64 << 10};
             },
             CheckLockedMemory, kWarn, "64.0 KiB", "LimitMEMLOCK"},
        Case{"MemlockWithoutGpu", NoGpu, [](Facts&) {}, CheckLockedMemory, kNone, "without a GPU", ""},
        Case{"NoShm", Well, [](Facts& f) { f.machine.shm = false; }, CheckSharedMemory, kWarn, "no /dev/shm", "tmpfs"},
        Case{"ShmFull", Well, [](Facts& f) { f.machine.shm_free_bytes = kMiB; }, CheckSharedMemory, kWarn,
             "1.0 MiB free", "--shm-size"},
        Case{"ShmReadOnly", Well, [](Facts& f) { f.machine.shm_writable = false; }, CheckSharedMemory, kWarn,
             "not writable", "1777"},
        Case{"HalfACpu", Well, [](Facts& f) { f.machine.cpu_quota = 0.5; }, CheckCpus, kWarn, "0.5", "limits.cpu"},
        Case{"SmallCgroup", Well, [](Facts& f) { f.machine.memory_limit_bytes = 256 * kMiB; }, CheckMemory, kWarn,
             "cgroup limit 256.0 MiB", "--memory-limit"},
        Case{"Container", Well, [](Facts& f) { f.machine.container = "podman"; }, CheckSystem, kOkay, "podman", ""}),
    NameOfCase);

TEST(GatherTest, ReadsTheFilesOfAContainer) {
  const Root root;
  root.Write("/etc/os-release", "ID=x\nPRETTY_NAME=\"Some Linux 1\"\n");
  root.Write("/.dockerenv", "");
  root.Write("/proc/meminfo", "MemTotal:       1048576 kB\nMemAvailable:    524288 kB\n");
  root.Write("/proc/self/cgroup", "0::/a/b\n");
  root.Write("/sys/fs/cgroup/a/memory.max", "268435456\n");
  root.Write("/sys/fs/cgroup/a/b/memory.max", "max\n");
  root.Write("/sys/fs/cgroup/a/b/cpu.max", "150000 100000\n");
  root.Write("/proc/77/comm", "kernd\n");
  root.Write("/proc/77/limits",
             "Limit                     Soft Limit           Hard Limit           Units     \n"
             "Max open files            256                  4096                 files     \n"
             "Max locked memory         65536                unlimited            bytes     \n");
  const MachineFacts m = GatherMachine(root.path());
  EXPECT_EQ(m.os, "Some Linux 1");
  EXPECT_EQ(m.container, "docker");
  EXPECT_EQ(m.memory_bytes, std::int64_t{1} << 30);
  EXPECT_EQ(m.memory_available_bytes, std::int64_t{1} << 29);
  EXPECT_EQ(m.memory_limit_bytes, 256 << 20);
  EXPECT_EQ(m.cpu_quota, 1.5);
  EXPECT_EQ(m.limits_of, "kernd, process 77");
  EXPECT_EQ(m.open_files.soft, 256u);
  EXPECT_EQ(m.open_files.hard, 4096u);
  EXPECT_EQ(m.locked_memory.soft, 65536u);
  EXPECT_EQ(m.locked_memory.hard, kUnlimited);
  EXPECT_FALSE(m.shm);
  EXPECT_EQ(m.host, "") << "not unless asked for";
}

TEST(GatherTest, ReadsVersionOneCgroups) {
  const Root root;
  root.Write("/proc/self/cgroup", "5:cpu,cpuacct:/c\n4:memory:/c\n");
  root.Write("/sys/fs/cgroup/memory/c/memory.limit_in_bytes", "9223372036854771712\n");
  root.Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "1073741824\n");
  root.Write("/sys/fs/cgroup/cpu/c/cpu.cfs_quota_us", "-1\n");
  root.Write("/sys/fs/cgroup/cpu/c/cpu.cfs_period_us", "100000\n");
  const MachineFacts m = GatherMachine(root.path());
  EXPECT_EQ(m.memory_limit_bytes, 1 << 30);
  EXPECT_EQ(m.cpu_quota, 0);
  EXPECT_EQ(m.limits_of, "this shell");
}

TEST(GatherTest, AnEmptyMachineIsNoError) {
  EXPECT_EQ(GatherMachine(Root().path()).memory_bytes, 0);
}

}  // namespace
}  // namespace kernd::cli::doctor
