// The checks of this machine and its GPUs.
#include <algorithm>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "client/cli/doctor/checks.h"
#include "client/cli/table.h"

namespace kernd::cli::doctor {
namespace {

constexpr std::int64_t kMiB = 1 << 20, kGiB = 1 << 30;
// kernd keeps some 250 descriptors for itself (threads, HTTP port) and takes one for each connection.
constexpr std::uint64_t kFewestFiles = 256, kEnoughFiles = 1024;
constexpr std::uint64_t kEnoughLocked = std::uint64_t{512} << 20;  // kernd's --pinned-memory by default

Check NotApplicable(const char* name, std::string why) {
  return {name, Status::kNotApplicable, std::move(why), ""};
}

std::string LimitText(std::uint64_t limit, bool bytes) {
  if (limit == kUnlimited) return "unlimited";
  return bytes ? FormatBytes(static_cast<std::int64_t>(limit)) : absl::StrCat(limit);
}

// What the checks of the driver have to say where there is none to be had.
std::optional<Check> WithoutGpu(const char* name, const Facts& facts) {
  if (HasGpu(facts.gpu)) return std::nullopt;
  return NotApplicable(name, "no NVIDIA GPU on this machine");
}

// The toolkit that decides: of the daemon where it runs here, else of this build.
std::string Toolkit(const Facts& facts) {
  const auto& daemon = facts.daemon.capabilities.value;
  return daemon && facts.daemon.endpoint.local ? daemon->cuda_toolkit : facts.toolkit;
}

// 13 of "13.0.48"; 0 of "none".
int Major(const std::string& toolkit) {
  const std::vector<std::string> parts = absl::StrSplit(toolkit, '.');
  int major = 0;
  return absl::SimpleAtoi(parts[0], &major) ? major : 0;
}

// A GPU that does not work is a problem where a daemon here would use it, and does not: one elsewhere has others, one
// built without CUDA uses none, and one that serves on it shows that all is well for its own user.
Status Fault(const Facts& facts) {
  const auto& daemon = facts.daemon.capabilities.value;
  const bool well = daemon && daemon->backend == "cuda";
  const bool wanted = facts.daemon.endpoint.local && Major(Toolkit(facts)) > 0;
  return wanted && !well ? Status::kProblem : Status::kWarning;
}

std::string CudaText(int version) {
  return absl::StrFormat("%d.%d", version / 1000, version % 1000 / 10);
}

}  // namespace

Check CheckSystem(const Facts& facts) {
  const MachineFacts& m = facts.machine;
  Check check{"system", Status::kOk, absl::StrCat(m.os, ", Linux ", m.kernel, ", ", m.architecture), ""};
  if (!m.container.empty()) absl::StrAppend(&check.found, ", in a container (", m.container, ")");
  if (!m.host.empty()) absl::StrAppend(&check.found, ", ", m.host);
  return check;
}

Check CheckCpus(const Facts& facts) {
  const MachineFacts& m = facts.machine;
  Check check{"cpus", Status::kOk, absl::StrCat(m.cpus), ""};
  if (m.cpu_quota <= 0) return check;
  absl::StrAppendFormat(&check.found, ", of which the cgroup allows %.1f", m.cpu_quota);
  if (m.cpu_quota >= 1) return check;
  check.status = Status::kWarning;
  check.todo = "less than one CPU stops every call midway: allow more (docker --cpus, Kubernetes limits.cpu)";
  return check;
}

Check CheckMemory(const Facts& facts) {
  const MachineFacts& m = facts.machine;
  Check check{"memory", Status::kOk,
              absl::StrCat(FormatBytes(m.memory_bytes), ", ", FormatBytes(m.memory_available_bytes), " available"), ""};
  std::int64_t available = m.memory_available_bytes;
  if (m.memory_limit_bytes > 0) {
    absl::StrAppend(&check.found, ", cgroup limit ", FormatBytes(m.memory_limit_bytes));
    available = std::min(available, m.memory_limit_bytes);
  }
  if (available >= kGiB) return check;
  check.status = Status::kWarning;
  check.todo = "less than 1 GiB: give kernd more, or a smaller --memory-limit and --body-budget";
  return check;
}

Check CheckOpenFiles(const Facts& facts) {
  const Limit& limit = facts.machine.open_files;
  Check check{"open files", Status::kOk,
              absl::StrCat("at most ", LimitText(limit.hard, false), " (", facts.machine.limits_of, ")"), ""};
  if (limit.hard >= kEnoughFiles) return check;  // kernd raises the soft limit to the hard one
  check.status = limit.hard <= kFewestFiles ? Status::kProblem : Status::kWarning;
  check.todo = "ulimit -Hn 65536 before kernd; LimitNOFILE=65536 in its unit; docker run --ulimit nofile=65536";
  return check;
}

Check CheckLockedMemory(const Facts& facts) {
  const Limit& limit = facts.machine.locked_memory;
  Check check{"locked memory", Status::kOk,
              absl::StrCat("at most ", LimitText(limit.soft, true), " (", facts.machine.limits_of, ")"), ""};
  if (!HasGpu(facts.gpu)) {
    check.status = Status::kNotApplicable;
    check.found += "; nothing is page-locked without a GPU";
  } else if (limit.soft < kEnoughLocked) {
    check.status = Status::kWarning;
    check.todo = "ulimit -l unlimited before kernd; LimitMEMLOCK=infinity in its unit; docker run --ulimit memlock=-1";
  }
  return check;
}

Check CheckSharedMemory(const Facts& facts) {
  const MachineFacts& m = facts.machine;
  Check check{"shared memory", Status::kWarning, "", ""};
  if (!m.shm) {
    check.found = "no /dev/shm";
    check.todo = "mount a tmpfs there: docker run --shm-size 1g";
  } else if (!m.shm_writable) {
    check.found = "/dev/shm is not writable";
    check.todo = "chmod 1777 /dev/shm, or run as a user who may write there";
  } else {
    check.found = absl::StrCat("/dev/shm ", FormatBytes(m.shm_bytes), ", ", FormatBytes(m.shm_free_bytes), " free");
    if (m.shm_free_bytes < 16 * kMiB) {
      check.todo = "remove what others left in /dev/shm, or enlarge it: docker run --shm-size 1g";
    } else {
      check.status = Status::kOk;
    }
  }
  return check;
}

Check CheckGpus(const Facts& facts) {
  const GpuFacts& gpu = facts.gpu;
  if (const auto none = WithoutGpu("gpus", facts)) return *none;
  Check check{"gpus", Status::kOk, "", ""};
  if (gpu.cards.empty()) {
    check.found = absl::StrCat(gpu.on_bus, " on the PCI bus, none that the driver shows");
    check.status = Fault(facts);
    check.todo = facts.machine.container.empty() ? "see driver and device nodes below"
                                                 : "give them to the container: docker run --gpus all";
    return check;
  }
  std::vector<std::string> names;
  for (const GpuCard& card : gpu.cards) {
    names.push_back(absl::StrCat(card.name, " (", FormatBytes(card.memory_used_bytes), " of ",
                                 FormatBytes(card.memory_bytes), " used)"));
  }
  constexpr std::size_t kMostNamed = 2;
  const std::size_t more = names.size() - std::min(names.size(), kMostNamed);
  names.resize(names.size() - more);
  check.found = Join(names, ", ") + (more > 0 ? absl::StrCat(", and ", more, " more") : "");
  return check;
}

Check CheckDriver(const Facts& facts) {
  const GpuFacts& gpu = facts.gpu;
  if (const auto none = WithoutGpu("driver", facts)) return *none;
  Check check{"driver", Fault(facts), "", ""};
  if (gpu.module.empty() && gpu.nouveau) {
    check.found = "nouveau holds the GPU";
    check.todo = "install NVIDIA's driver, blacklist nouveau, and restart the machine";
  } else if (gpu.module.empty()) {
    check.found = "the kernel module nvidia is not loaded";
    check.todo = "install NVIDIA's driver, then modprobe nvidia; dmesg says why where that fails";
  } else if (!gpu.driver.empty() && gpu.driver != gpu.module) {
    check.found = absl::StrCat("kernel module ", gpu.module, ", libraries ", gpu.driver);
    check.todo = "the driver was updated under a loaded module: restart the machine";
  } else if (!gpu.nvml_error.empty()) {
    check.found = absl::StrCat("kernel module ", gpu.module, ", but NVML: ", gpu.nvml_error);
    check.status = Status::kWarning;
    check.todo = facts.machine.container.empty()
                     ? "install the libraries of the same driver version, or restart after an update"
                     : "start the container with NVIDIA's runtime: docker run --gpus all";
  } else {
    check.status = Status::kOk;
    check.found = gpu.module;
  }
  return check;
}

Check CheckCuda(const Facts& facts) {
  const GpuFacts& gpu = facts.gpu;
  if (const auto none = WithoutGpu("cuda", facts)) return *none;
  if (!gpu.libcuda_error.empty()) {
    return {"cuda", Fault(facts), absl::StrCat("libcuda.so.1: ", gpu.libcuda_error),
            facts.machine.container.empty() ? "install the driver's libraries (libcuda1, nvidia-driver-cuda)"
                                            : "start the container with NVIDIA's runtime: docker run --gpus all"};
  }
  const std::string toolkit = Toolkit(facts);
  Check check{"cuda", Status::kOk, absl::StrCat("the driver knows CUDA ", CudaText(gpu.cuda_version)), ""};
  const int major = Major(toolkit);
  if (major == 0) {
    absl::StrAppend(&check.found, "; this build has no CUDA");
    if (facts.daemon.endpoint.local) {
      check.status = Status::kWarning;
      check.todo = "the GPU lies idle: use a build of kernd with CUDA";
    }
    return check;
  }
  absl::StrAppend(&check.found, ", the build is of ", toolkit);
  // Any driver of the same major version will do.
  if (gpu.cuda_version / 1000 >= major) return check;
  check.status = Fault(facts);
  check.todo = absl::StrCat("the driver is too old: install one for CUDA ", major, ", or use a build for CUDA ",
                            gpu.cuda_version / 1000);
  return check;
}

Check CheckDeviceNodes(const Facts& facts) {
  const GpuFacts& gpu = facts.gpu;
  if (const auto none = WithoutGpu("device nodes", facts)) return *none;
  if (gpu.nodes.empty()) {
    return {"device nodes", Fault(facts), "no /dev/nvidia*",
            facts.machine.container.empty() ? "nvidia-modprobe -u -c 0 makes them; the driver's package does so at boot"
                                            : "give them to the container: docker run --gpus all"};
  }
  Check check{"device nodes", Status::kOk, absl::StrCat(gpu.nodes.size(), " of /dev/nvidia*, all usable"), ""};
  for (const DeviceNode& node : gpu.nodes) {
    if (node.usable) continue;
    check.status = Fault(facts);
    check.found = absl::StrCat(node.path, " (", node.owner, ") is not for this user");
    check.todo = "add the user of kernd to that group, or chmod 0666 it (NVreg_DeviceFileMode)";
    break;
  }
  return check;
}

}  // namespace kernd::cli::doctor
