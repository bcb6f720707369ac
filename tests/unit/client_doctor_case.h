// Machines and daemons that were made up, for the tests of kernctl doctor.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include "client/cli/doctor/checks.h"
#include "client/cli/doctor/gather.h"

namespace kernd::cli::doctor {

inline constexpr std::uint64_t kMiB = 1 << 20;

// A machine with a GPU and a kernd on it, on which all is well.
inline Facts Well() {
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
inline Facts NoDaemon() {
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
inline Facts NoGpu() {
  Facts f = Well();
  f.gpu = {.libcuda_error = "cannot open shared object file", .nvml_error = "cannot open shared object file"};
  f.toolkit = f.daemon.capabilities.value->cuda_toolkit = "none";
  f.daemon.capabilities.value->backend = "cpu";
  f.daemon.capabilities.value->devices = {{.uuid = "cpu", .name = "a CPU", .tier = client::Tier::kCpu}};
  f.machine.locked_memory = {64 << 10, 64 << 10};
  return f;
}

// A check on a machine that has one fault.
struct Case {
  const char* name;
  std::function<Facts()> start;
  std::function<void(Facts&)> spoil;
  Check (*check)(const Facts&);
  Status status;
  const char *found, *todo;  // parts of them
};

inline std::string NameOfCase(const testing::TestParamInfo<Case>& info) {
  return info.param.name;
}

// Its one test stands in client_doctor_test.cc, its cases with the rooms they are of.
class SpoiltTest : public testing::TestWithParam<Case> {};

inline constexpr Status kOkay = Status::kOk, kWarn = Status::kWarning, kBad = Status::kProblem,
                        kNone = Status::kNotApplicable;

// The root of a machine that was made up.
class Root {
 public:
  Root() {
    std::string name = (std::filesystem::temp_directory_path() / "kernd-doctor.XXXXXX").string();
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    path_ = name;
  }
  ~Root() { std::filesystem::remove_all(path_); }
  Root(const Root&) = delete;
  Root& operator=(const Root&) = delete;

  const std::string& path() const { return path_; }
  void Write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories((path_ + path).substr(0, (path_ + path).rfind('/')));
    std::ofstream(path_ + path) << text;
  }

 private:
  std::string path_;
};

}  // namespace kernd::cli::doctor
