// kernctl doctor: its checks on machines that were made up, its probe on servers that are no kernd.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "client/cli/doctor/checks.h"
#include "client/cli/doctor/gather.h"
#include "tests/unit/client_cli_fixture.h"

namespace kernd::cli::doctor {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr std::uint64_t kMiB = 1 << 20;

// A machine with a GPU and a kernd on it, on which all is well.
Facts Well() {
  Facts f;
  f.kernctl_version = "0.1.0";
  f.toolkit = "13.0.48";
  f.machine = {.os = "Debian GNU/Linux 12", .kernel = "6.1.0", .architecture = "x86_64", .cpus = 16};
  f.machine.memory_bytes = f.machine.memory_available_bytes = std::int64_t{64} << 30;
  f.machine.limits_of = "kernd, process 12";
  f.machine.open_files = {65536, 65536};
  f.machine.locked_memory = {kUnlimited, kUnlimited};
  f.machine.shm = f.machine.shm_writable = true;
  f.machine.shm_bytes = f.machine.shm_free_bytes = std::int64_t{1} << 30;
  f.machine.clock_synchronised = true;
  f.gpu = {.on_bus = 1, .module = "580.65.06", .cuda_version = 13000, .driver = "580.65.06"};
  f.gpu.nodes = {{"/dev/nvidia0", "root:root 0666", true}, {"/dev/nvidiactl", "root:root 0666", true}};
  f.gpu.cards = {{"NVIDIA H200", std::int64_t{140} << 30, std::int64_t{1} << 30}};
  f.daemon.endpoint.text = "127.0.0.1:50051";
  f.daemon.endpoint.target = ParseTarget(f.daemon.endpoint.text);
  f.daemon.endpoint.local = true;
  f.daemon.endpoint.speaks = Speaks::kHttp2;
  f.daemon.health.value = client::HealthStatus::kServing;
  client::Capabilities& c = f.daemon.capabilities.value.emplace();
  c.version = "0.1.0";
  c.revision = "abc";
  c.cuda_toolkit = "13.0.48";
  c.backend = "cuda";
  c.devices = {{.uuid = "GPU-1", .name = "NVIDIA H200", .tier = client::Tier::kAdvanced}};
  f.daemon.call.value = CallFacts{"matmul_f32_lt", "GPU-1", 400, 100, true};
  f.daemon.http = {.address = "127.0.0.1:9464", .code = 200, .is_kernd = true, .state = "ready", .version = "0.1.0"};
  f.daemon.http.clock_ahead = absl::Milliseconds(1);
  f.daemon.http.uncertainty = absl::Milliseconds(2);
  return f;
}

// The same before kernd was started.
Facts NoDaemon() {
  Facts f = Well();
  f.daemon = {};
  f.daemon.endpoint = Well().daemon.endpoint;
  f.daemon.endpoint.speaks = Speaks::kNothing;
  f.daemon.endpoint.failure = {Trouble::kRefused, "Connection refused"};
  f.daemon.http.address = "127.0.0.1:9464";
  f.daemon.http.failure = {Trouble::kRefused, "Connection refused"};
  return f;
}

// One with the CPU alone, and a kernd on it.
Facts NoGpu() {
  Facts f = Well();
  f.gpu = {.libcuda_error = "cannot open shared object file", .nvml_error = "cannot open shared object file"};
  f.toolkit = f.daemon.capabilities.value->cuda_toolkit = "none";
  f.daemon.capabilities.value->backend = "cpu";
  f.daemon.capabilities.value->devices = {{.uuid = "cpu", .name = "a CPU", .tier = client::Tier::kCpu}};
  f.machine.locked_memory = {64 << 10, 64 << 10};
  return f;
}

TEST(DoctorTest, AllIsWell) {
  for (const Check& check : Examine(Well())) {
    const bool proxy = std::string(check.name) == "proxy";
    EXPECT_EQ(check.status, proxy ? Status::kNotApplicable : Status::kOk) << check.name << ": " << check.found;
    EXPECT_NE(check.found, "") << check.name;
    EXPECT_EQ(check.todo, "") << check.name;
  }
}

TEST(DoctorTest, WithoutGpuOrDaemonChecksDoNotApply) {
  for (const Check& check : Examine(NoGpu())) {
    EXPECT_THAT(check.status, testing::AnyOf(Status::kOk, Status::kNotApplicable)) << check.name << ": " << check.found;
  }
  int problems = 0;
  for (const Check& check : Examine(NoDaemon())) problems += check.status == Status::kProblem;
  EXPECT_EQ(problems, 1) << "what follows from the one problem is no other";
}

struct Case {
  const char* name;
  std::function<Facts()> start;
  std::function<void(Facts&)> spoil;
  Check (*check)(const Facts&);
  Status status;
  const char *found, *todo;  // parts of them
};

class SpoiltTest : public testing::TestWithParam<Case> {};

// That the check is ok, or does not apply, before is AllIsWell's and the next one's.
TEST_P(SpoiltTest, IsFoundAndSaysWhatToDo) {
  const Case& c = GetParam();
  Facts facts = c.start();
  c.spoil(facts);
  const Check check = c.check(facts);
  EXPECT_EQ(check.status, c.status) << Name(check.status) << ": " << check.found;
  EXPECT_THAT(check.found, HasSubstr(c.found));
  EXPECT_THAT(check.todo, AllOf(HasSubstr(c.todo), Not(HasSubstr("\n"))));
  EXPECT_EQ(check.todo.empty(), check.status == Status::kOk || check.status == Status::kNotApplicable);
}

constexpr Status kOkay = Status::kOk, kWarn = Status::kWarning, kBad = Status::kProblem, kNone = Status::kNotApplicable;

INSTANTIATE_TEST_SUITE_P(
    Daemon, SpoiltTest,
    testing::Values(Case{"Refused", NoDaemon, [](Facts&) {}, CheckPort, kBad, "nothing listens there", "start kernd"},
                    Case{"RefusedElsewhere", NoDaemon, [](Facts& f) { f.daemon.endpoint.local = false; }, CheckPort,
                         kBad, "nothing listens there", "--listen 0.0.0.0:50051"},
                    Case{"NoName", NoDaemon,
                         [](Facts& f) {
                           f.daemon.endpoint.failure = {Trouble::kNoName, "unknown"};
                         },
                         CheckPort, kBad, "does not resolve", "correct --endpoint"},
                    Case{"NoSocketFile", NoDaemon,
                         [](Facts& f) {
                           f.daemon.endpoint.failure = {Trouble::kNoFile, "none"};
                         },
                         CheckPort, kBad, "no such socket", "start kernd --listen"},
                    Case{"Dropped", NoDaemon,
                         [](Facts& f) {
                           f.daemon.endpoint.failure = {Trouble::kSilent, ""};
                         },
                         CheckPort, kBad, "no answer", "firewall"},
                    Case{"OnlyThroughTheProxy", Well,
                         [](Facts& f) {
                           f.daemon.endpoint.failure = {Trouble::kUnreachable, "no route"};
                           f.daemon.endpoint.proxy = true;
                         },
                         CheckPort, kOkay, "through the proxy", ""},
                    Case{"Http1", Well, [](Facts& f) { f.daemon.endpoint.speaks = Speaks::kHttp1; }, CheckPort, kBad,
                         "HTTP/1", "50051"},
                    Case{"Tls", Well, [](Facts& f) { f.daemon.endpoint.speaks = Speaks::kTls; }, CheckPort, kBad, "TLS",
                         "plain text"},
                    Case{"Ssh", Well,
                         [](Facts& f) {
                           f.daemon.endpoint.speaks = Speaks::kOther;
                           f.daemon.endpoint.words = "SSH-2.0";
                         },
                         CheckPort, kBad, "SSH-2.0", "correct --endpoint"},
                    Case{"Mute", Well, [](Facts& f) { f.daemon.endpoint.speaks = Speaks::kNothing; }, CheckPort, kBad,
                         "says nothing", "hangs"},
                    Case{"XdsTarget", Well, [](Facts& f) { f.daemon.endpoint.target.kind = Target::Kind::kOther; },
                         CheckPort, kNone, "only gRPC understands", ""},
                    Case{"Proxy", NoDaemon, [](Facts& f) { f.daemon.endpoint.proxy = true; }, CheckProxy, kWarn,
                         "HTTP proxy", "no_proxy"},
                    Case{"OtherVersion", Well, [](Facts& f) { f.daemon.capabilities.value->version = "0.2.0"; },
                         CheckVersions, kWarn, "kernd 0.2.0", "use kernctl 0.2.0"},
                    Case{"OtherPatch", Well, [](Facts& f) { f.daemon.capabilities.value->version = "0.1.7"; },
                         CheckVersions, kOkay, "kernd 0.1.7", ""},
                    Case{"NotServing", Well,
                         [](Facts& f) {
                           f.daemon.health.value = client::HealthStatus::kNotServing;
                           f.daemon.http.state = "starting";
                           f.daemon.http.why = "warming up, 3 of 7";
                         },
                         CheckHealth, kBad, "NOT_SERVING, starting: warming up, 3 of 7", "kernctl health --wait"},
                    Case{"Lost", Well,
                         [](Facts& f) {
                           f.daemon.health.value = client::HealthStatus::kNotServing;
                           f.daemon.http.state = "lost";
                         },
                         CheckHealth, kBad, "lost", "restart"},
                    Case{"NoHealthService", Well,
                         [](Facts& f) {
                           f.daemon.health = {std::nullopt, "UNIMPLEMENTED: "};
                         },
                         CheckHealth, kBad, "UNIMPLEMENTED", "no kernd"},
                    Case{"GpuNotUsed", Well,
                         [](Facts& f) { f.daemon.capabilities.value->not_used = {"GPU 0: too old"}; }, CheckBackend,
                         kWarn, "GPU 0: too old", "restart kernd"},
                    Case{"CpuAsAskedFor", NoGpu,
                         [](Facts& f) { f.daemon.capabilities.value->not_used = {"no GPU: --backend cpu"}; },
                         CheckBackend, kOkay, "not used: no GPU", ""},
                    Case{"CpuAsThereIsNoGpu", NoGpu,
                         [](Facts& f) { f.daemon.capabilities.value->not_used = {"no GPU: built without CUDA"}; },
                         CheckBackend, kOkay, "built without CUDA", ""},
                    Case{"CpuAsTheDriverIsTooOld", Well,
                         [](Facts& f) { f.daemon.capabilities.value->not_used = {"no GPU: the driver is too old"}; },
                         CheckBackend, kWarn, "too old", "restart kernd"},
                    Case{"GpuUnsupported", Well,
                         [](Facts& f) { f.daemon.capabilities.value->devices[0].tier = client::Tier::kUnsupported; },
                         CheckBackend, kBad, "UNSUPPORTED", "another build"},
                    Case{"WrongResult", Well, [](Facts& f) { f.daemon.call.value->right = false; }, CheckCall, kBad,
                         "WRONG", "kernctl verify"},
                    Case{"CallFails", Well,
                         [](Facts& f) {
                           f.daemon.call = {std::nullopt, "INTERNAL: broken"};
                         },
                         CheckCall, kBad, "INTERNAL: broken", "log"},
                    Case{"SlowCall", Well, [](Facts& f) { f.daemon.call.value->client_us = 3e6; }, CheckCall, kWarn,
                         "3000000 us", "kernctl top"},
                    Case{"NoHttp", Well,
                         [](Facts& f) {
                           f.daemon.http.failure = {Trouble::kRefused, "Connection refused"};
                         },
                         CheckHttp, kWarn, "Connection refused", "--http"},
                    Case{"OtherHttp", Well, [](Facts& f) { f.daemon.http.is_kernd = false; }, CheckHttp, kWarn,
                         "no kernd", "--http"},
                    Case{"ClockFiveMinutesAhead", Well, [](Facts& f) { f.daemon.http.clock_ahead = absl::Minutes(5); },
                         CheckClock, kBad, "4m59.9s ahead of", "chrony"},
                    Case{"ClockFourSecondsBehind", Well,
                         [](Facts& f) { f.daemon.http.clock_ahead = -absl::Seconds(4); }, CheckClock, kWarn, "behind",
                         "chrony"},
                    Case{"ClockWithinASlowExchange", Well,
                         [](Facts& f) {
                           f.daemon.http.clock_ahead = absl::Seconds(4);
                           f.daemon.http.uncertainty = absl::Seconds(3);
                         },
                         CheckClock, kOkay, "within 7000 ms", ""},
                    Case{"ClockNotSynchronised", NoDaemon, [](Facts& f) { f.machine.clock_synchronised = false; },
                         CheckClock, kWarn, "not synchronised", "chrony"}),
    [](const auto& spoilt) { return spoilt.param.name; });

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
    [](const auto& spoilt) { return spoilt.param.name; });

// A kernd that is not up cannot use the GPU: its faults are problems.
INSTANTIATE_TEST_SUITE_P(
    Gpu, SpoiltTest,
    testing::Values(Case{"DriverTooOld", NoDaemon, [](Facts& f) { f.gpu.cuda_version = 12040; }, CheckCuda, kBad,
                         "12.4", "too old: install one for CUDA 13"},
                    Case{"DriverOfTheSameMajor", NoDaemon,
                         [](Facts& f) {
                           f.toolkit = "12.8.1";
                           f.gpu.cuda_version = 12000;
                         },
                         CheckCuda, kOkay, "12.0", ""},
                    Case{"NoLibcuda", NoDaemon, [](Facts& f) { f.gpu.libcuda_error = "cannot open"; }, CheckCuda, kBad,
                         "libcuda", "install the driver"},
                    Case{"NoLibcudaInAContainer", NoDaemon,
                         [](Facts& f) {
                           f.gpu.libcuda_error = "cannot open";
                           f.machine.container = "docker";
                         },
                         CheckCuda, kBad, "libcuda", "--gpus all"},
                    Case{"BuildWithoutCuda", NoDaemon, [](Facts& f) { f.toolkit = "none"; }, CheckCuda, kWarn,
                         "no CUDA", "build of kernd with CUDA"},
                    Case{"NoModule", NoDaemon, [](Facts& f) { f.gpu.module = ""; }, CheckDriver, kBad, "not loaded",
                         "modprobe"},
                    Case{"NoModuleNobodyNeeds", NoDaemon,
                         [](Facts& f) {
                           f.gpu.module = "";
                           f.toolkit = "none";
                         },
                         CheckDriver, kWarn, "not loaded", "modprobe"},
                    Case{"NoModuleForADaemonElsewhere", NoDaemon,
                         [](Facts& f) {
                           f.gpu.module = "";
                           f.daemon.endpoint.local = false;
                         },
                         CheckDriver, kWarn, "not loaded", "modprobe"},
                    Case{"Nouveau", NoDaemon,
                         [](Facts& f) {
                           f.gpu.module = "";
                           f.gpu.nouveau = true;
                         },
                         CheckDriver, kBad, "nouveau", "blacklist"},
                    Case{"UpdatedUnderTheModule", NoDaemon, [](Facts& f) { f.gpu.driver = "580.99"; }, CheckDriver,
                         kBad, "libraries 580.99", "restart the machine"},
                    Case{"NvmlFails", NoDaemon, [](Facts& f) { f.gpu.nvml_error = "Driver/library version mismatch"; },
                         CheckDriver, kWarn, "mismatch", "same driver version"},
                    Case{"NoCards", NoDaemon, [](Facts& f) { f.gpu.cards.clear(); }, CheckGpus, kBad,
                         "none that the driver shows", "device nodes"},
                    Case{"NoRightToTheNode", NoDaemon,
                         [](Facts& f) {
                           f.gpu.nodes[0] = {"/dev/nvidia0", "root:video 0660", false};
                         },
                         CheckDeviceNodes, kBad, "/dev/nvidia0 (root:video 0660)", "group"},
                    Case{"NoRightToTheNodeButTheDaemonHas", Well,
                         [](Facts& f) {
                           f.gpu.nodes[0] = {"/dev/nvidia0", "root:video 0660", false};
                         },
                         CheckDeviceNodes, kWarn, "/dev/nvidia0", "group"},
                    Case{"NoNodes", NoDaemon, [](Facts& f) { f.gpu.nodes.clear(); }, CheckDeviceNodes, kBad,
                         "no /dev/nvidia*", "nvidia-modprobe"},
                    Case{"NoGpu", NoGpu, [](Facts&) {}, CheckDeviceNodes, kNone, "no NVIDIA GPU", ""}),
    [](const auto& spoilt) { return spoilt.param.name; });

// --- the probe

// Takes one connection after the other, waits for the client's first bytes, says `words` and hangs up.
class Server {
 public:
  explicit Server(std::string words) {
    fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(::listen(fd_, 8), 0);
    socklen_t size = sizeof(address);
    ::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size);
    endpoint = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
    thread_ = std::thread([this, words = std::move(words)] {
      for (int peer; (peer = ::accept(fd_, nullptr, nullptr)) >= 0; ::close(peer)) {
        char byte;
        if (::recv(peer, &byte, 1, 0) == 1) ::send(peer, words.data(), words.size(), MSG_NOSIGNAL);
        ::shutdown(peer, SHUT_WR);
        while (::recv(peer, &byte, 1, 0) == 1) {
        }
      }
    });
  }
  ~Server() {
    ::shutdown(fd_, SHUT_RDWR);
    thread_.join();
    ::close(fd_);
  }
  std::string endpoint;

 private:
  int fd_;
  std::thread thread_;
};

TEST(ProbeTest, TellsWhoAnswers) {
  const std::pair<std::string, Speaks> servers[] = {
      {std::string("\0\0\6\4\0\0\0\0\0\0\3\0\0\0\1", 15), Speaks::kHttp2},
      {"HTTP/1.1 400 Bad Request\r\n\r\n", Speaks::kHttp1},
      {std::string("\x15\3\1\0\2\2\x46", 7), Speaks::kTls},
      {"SSH-2.0-OpenSSH_9.2\r\n", Speaks::kOther},
      {"", Speaks::kNothing},
  };
  for (const auto& [words, speaks] : servers) {
    const Server server(words);
    const EndpointFacts facts = Probe(server.endpoint, absl::Seconds(10));
    EXPECT_EQ(facts.failure.trouble, Trouble::kNone) << facts.failure.why;
    EXPECT_EQ(static_cast<int>(facts.speaks), static_cast<int>(speaks)) << words;
    EXPECT_TRUE(facts.local);
  }
}

TEST(ProbeTest, TellsWhyNobodyAnswers) {
  std::string refused;
  {
    const Server server("");
    refused = server.endpoint;
  }
  EXPECT_EQ(Probe(refused, absl::Seconds(10)).failure.trouble, Trouble::kRefused);
  EXPECT_EQ(Probe("unix:/nowhere/kernd.sock", absl::Seconds(10)).failure.trouble, Trouble::kNoFile);
  EXPECT_EQ(Probe("unix-abstract:kernd-nobody", absl::Seconds(10)).failure.trouble, Trouble::kRefused);
  EXPECT_EQ(Probe("no such name:1", absl::Seconds(10)).failure.trouble, Trouble::kNoName);
  EXPECT_EQ(Probe("xds:///a", absl::Seconds(10)).target.kind, Target::Kind::kOther);
}

TEST(ProbeTest, Targets) {
  const Target v6 = ParseTarget("dns:///[::1]:50051");
  EXPECT_EQ(v6.host, "::1");
  EXPECT_EQ(v6.port, "50051");
  EXPECT_TRUE(IsLocal(v6));
  EXPECT_EQ(ParseTarget("host").port, "");
  EXPECT_EQ(ParseTarget("unix:///run/kernd.sock").path, "/run/kernd.sock");
  EXPECT_FALSE(IsLocal(ParseTarget("kernd.example:50051")));
  EXPECT_EQ(HttpAddressOf("[::1]:50051"), "[::1]:9464");
  EXPECT_EQ(HttpAddressOf("node7:50051"), "node7:9464");
  EXPECT_EQ(HttpAddressOf("unix:/run/kernd.sock"), "127.0.0.1:9464");
}

// --- gathering

class GatherTest : public testing::Test {
 protected:
  GatherTest() {
    std::string name = (std::filesystem::temp_directory_path() / "kernd-doctor.XXXXXX").string();
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    root_ = name;
  }
  ~GatherTest() override { std::filesystem::remove_all(root_); }
  void Write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories((root_ + path).substr(0, (root_ + path).rfind('/')));
    std::ofstream(root_ + path) << text;
  }
  std::string root_;
};

TEST_F(GatherTest, ReadsTheFilesOfAContainer) {
  Write("/etc/os-release", "ID=x\nPRETTY_NAME=\"Some Linux 1\"\n");
  Write("/.dockerenv", "");
  Write("/proc/meminfo", "MemTotal:       1048576 kB\nMemAvailable:    524288 kB\n");
  Write("/proc/self/cgroup", "0::/a/b\n");
  Write("/sys/fs/cgroup/a/memory.max", "268435456\n");
  Write("/sys/fs/cgroup/a/b/memory.max", "max\n");
  Write("/sys/fs/cgroup/a/b/cpu.max", "150000 100000\n");
  Write("/proc/77/comm", "kernd\n");
  Write("/proc/77/limits",
        "Limit                     Soft Limit           Hard Limit           Units     \n"
        "Max open files            256                  4096                 files     \n"
        "Max locked memory         65536                unlimited            bytes     \n");
  const MachineFacts m = GatherMachine(root_);
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

TEST_F(GatherTest, ReadsVersionOneCgroups) {
  Write("/proc/self/cgroup", "5:cpu,cpuacct:/c\n4:memory:/c\n");
  Write("/sys/fs/cgroup/memory/c/memory.limit_in_bytes", "9223372036854771712\n");
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "1073741824\n");
  Write("/sys/fs/cgroup/cpu/c/cpu.cfs_quota_us", "-1\n");
  Write("/sys/fs/cgroup/cpu/c/cpu.cfs_period_us", "100000\n");
  const MachineFacts m = GatherMachine(root_);
  EXPECT_EQ(m.memory_limit_bytes, 1 << 30);
  EXPECT_EQ(m.cpu_quota, 0);
  EXPECT_EQ(m.limits_of, "this shell");
}

TEST_F(GatherTest, ReadsTheDriversFiles) {
  Write("/proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build\nGCC version: gcc 12.2.0\n");
  Write("/sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n");
  Write("/sys/bus/pci/devices/0000:01:00.0/class", "0x030200\n");
  Write("/sys/bus/pci/devices/0000:01:00.1/vendor", "0x10de\n");
  Write("/sys/bus/pci/devices/0000:01:00.1/class", "0x040300\n");  // its sound
  Write("/dev/nvidia0", "");
  Write("/dev/nvidiactl", "");
  Write("/dev/nvidia-caps", "");
  const GpuFacts gpu = GatherGpus(root_);
  EXPECT_EQ(gpu.module, "550.54.15");
  EXPECT_EQ(gpu.on_bus, 1);
  ASSERT_EQ(gpu.nodes.size(), 2u);
  EXPECT_EQ(gpu.nodes[0].path, "/dev/nvidia0");
  EXPECT_TRUE(gpu.nodes[0].usable);
}

TEST_F(GatherTest, AnEmptyMachineIsNoError) {
  EXPECT_EQ(GatherMachine(root_).memory_bytes, 0);
  EXPECT_EQ(GatherGpus(root_).on_bus, 0);
}

// --- the command

TEST(DoctorCommandTest, WithoutADaemonSaysWhatToDoAndPrintsNoSecret) {
  ::setenv("KERND_TEST_SECRET", "hunter2", 1);
  const std::vector<std::string> arguments = {
      "--endpoint", "unix:/nowhere/kernd.sock", "--metadata", "authorization=hunter2", "doctor", "--http",
      "127.0.0.1:1"};
  const Outcome outcome = Kernctl(arguments);
  EXPECT_EQ(outcome.code, 1);
  EXPECT_EQ(outcome.err, "");
  EXPECT_THAT(outcome.out, HasSubstr("problem  port           unix:/nowhere/kernd.sock: there is no such socket\n"));
  EXPECT_THAT(outcome.out, HasSubstr("         -> start kernd --listen unix:/nowhere/kernd.sock"));
  EXPECT_THAT(outcome.out, Not(HasSubstr("hunter2")));
  EXPECT_LE(std::count(outcome.out.begin(), outcome.out.end(), '\n'), 40) << "one screen";

  std::vector<std::string> with_json = arguments;
  with_json.push_back("--json");
  const json report = json::parse(Kernctl(with_json).out);
  EXPECT_EQ(report.at("endpoint"), "unix:/nowhere/kernd.sock");
  EXPECT_GE(report.at("summary").at("problems"), 1);
  EXPECT_EQ(report.at("checks").at(1).at("name"), "port");
  EXPECT_EQ(report.at("checks").at(1).at("status"), "problem");
  EXPECT_NE(report.at("checks").at(1).at("todo"), "");
}

}  // namespace
}  // namespace kernd::cli::doctor
