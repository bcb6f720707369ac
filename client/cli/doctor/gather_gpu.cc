#include <dlfcn.h>
#include <grp.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/doctor/gather.h"

namespace kernd::cli::doctor {
namespace {

namespace fs = std::filesystem;

// A library of the driver, opened by name.
class Library {
 public:
  explicit Library(const char* name) : handle_(::dlopen(name, RTLD_LAZY | RTLD_LOCAL)) {
    const char* const why = handle_ == nullptr ? ::dlerror() : nullptr;
    if (handle_ == nullptr) error_ = why == nullptr ? "cannot be opened" : why;
  }
  ~Library() {
    if (handle_ != nullptr) ::dlclose(handle_);
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  bool ok() const { return handle_ != nullptr; }
  // "libcuda.so.1: cannot open shared object file: ..." without the name.
  std::string error() const {
    return error_.substr(error_.find(": ") == std::string::npos ? 0 : error_.find(": ") + 2);
  }

  // Null where the library lacks it.
  template <typename Function>
  Function* Find(const char* name) const {
    return reinterpret_cast<Function*>(::dlsym(handle_, name));
  }

 private:
  void* handle_;
  std::string error_;
};

std::string ReadFile(const fs::path& path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

// "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar ...": the first word that is a version.
std::string ModuleVersion(const std::string& root) {
  std::istringstream words(ReadFile(root + "/proc/driver/nvidia/version"));
  for (std::string word; words >> word;) {
    const bool version = std::isdigit(static_cast<unsigned char>(word.front())) != 0 &&
                         word.find_first_not_of("0123456789.") == std::string::npos &&
                         word.find('.') != std::string::npos;
    if (version) return word;
  }
  return "";
}

// NVIDIA's display (0x0300..) and 3D (0x0302..) controllers.
int CountOnBus(const std::string& root) {
  int count = 0;
  std::error_code error;
  for (const auto& device : fs::directory_iterator(root + "/sys/bus/pci/devices", error)) {
    count += ReadFile(device.path() / "vendor").starts_with("0x10de") &&
             ReadFile(device.path() / "class").starts_with("0x03");
  }
  return count;
}

std::string OwnerOf(const struct stat& status) {
  const passwd* const user = ::getpwuid(status.st_uid);
  const std::string name = user == nullptr ? absl::StrCat(status.st_uid) : user->pw_name;
  const group* const owners = ::getgrgid(status.st_gid);
  const std::string group_name = owners == nullptr ? absl::StrCat(status.st_gid) : owners->gr_name;
  return absl::StrFormat("%s:%s %04o", name, group_name, status.st_mode & 07777u);
}

std::vector<DeviceNode> NodesOf(const std::string& root) {
  std::vector<DeviceNode> nodes;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(root + "/dev", error)) {
    const std::string name = entry.path().filename().string();
    const bool card =
        name.starts_with("nvidia") && name.size() > 6 && name.find_first_not_of("0123456789", 6) == std::string::npos;
    if (!card && name != "nvidiactl" && name != "nvidia-uvm") continue;
    struct stat status {};
    if (::stat(entry.path().c_str(), &status) != 0) continue;
    nodes.push_back(
        {.path = "/dev/" + name, .owner = OwnerOf(status), .usable = ::access(entry.path().c_str(), R_OK | W_OK) == 0});
  }
  std::sort(nodes.begin(), nodes.end(), [](const auto& a, const auto& b) { return a.path < b.path; });
  return nodes;
}

void AskCuda(GpuFacts& gpu) {
  const Library cuda("libcuda.so.1");
  gpu.libcuda_error = cuda.error();
  if (!cuda.ok()) return;
  // Needs no cuInit, hence no GPU.
  const auto version = cuda.Find<int(int*)>("cuDriverGetVersion");
  if (version == nullptr || version(&gpu.cuda_version) != 0) gpu.cuda_version = 0;
}

// NVML's interface as far as it is used here; its versions keep these names and layouts.
using NvmlDevice = void*;
struct NvmlMemory {
  unsigned long long total, free, used;
};

void AskNvml(GpuFacts& gpu) {
  const Library nvml("libnvidia-ml.so.1");
  gpu.nvml_error = nvml.error();
  if (!nvml.ok()) return;
  const auto init = nvml.Find<int()>("nvmlInit_v2");
  const auto shutdown = nvml.Find<int()>("nvmlShutdown");
  const auto error_string = nvml.Find<const char*(int)>("nvmlErrorString");
  const auto driver = nvml.Find<int(char*, unsigned)>("nvmlSystemGetDriverVersion");
  const auto count_of = nvml.Find<int(unsigned*)>("nvmlDeviceGetCount_v2");
  const auto device_at = nvml.Find<int(unsigned, NvmlDevice*)>("nvmlDeviceGetHandleByIndex_v2");
  const auto name_of = nvml.Find<int(NvmlDevice, char*, unsigned)>("nvmlDeviceGetName");
  const auto memory_of = nvml.Find<int(NvmlDevice, NvmlMemory*)>("nvmlDeviceGetMemoryInfo");
  if (!init || !shutdown || !error_string || !driver || !count_of || !device_at || !name_of || !memory_of) {
    gpu.nvml_error = "lacks functions of every version since 2013";
    return;
  }
  if (const int error = init(); error != 0) {
    gpu.nvml_error = error_string(error);
    return;
  }
  std::array<char, 96> text{};
  if (driver(text.data(), text.size()) == 0) gpu.driver = text.data();
  unsigned count = 0;
  count_of(&count);
  for (unsigned i = 0; i < count; ++i) {
    NvmlDevice device = nullptr;
    if (device_at(i, &device) != 0) continue;  // one that this user may not see, or that is lost
    GpuCard card;
    if (name_of(device, text.data(), text.size()) == 0) card.name = text.data();
    NvmlMemory memory{};
    if (memory_of(device, &memory) == 0) {
      card.memory_bytes = static_cast<std::int64_t>(memory.total);
      card.memory_used_bytes = static_cast<std::int64_t>(memory.used);
    }
    gpu.cards.push_back(std::move(card));
  }
  shutdown();
}

}  // namespace

GpuFacts GatherGpus(const std::string& root) {
  GpuFacts gpu;
  std::error_code error;
  gpu.on_bus = CountOnBus(root);
  gpu.module = ModuleVersion(root);
  gpu.nouveau = fs::exists(root + "/sys/module/nouveau", error);
  gpu.nodes = NodesOf(root);
  AskCuda(gpu);
  AskNvml(gpu);
  return gpu;
}

}  // namespace kernd::cli::doctor
