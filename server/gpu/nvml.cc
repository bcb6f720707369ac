#include "server/gpu/nvml.h"

#include <dlfcn.h>

#include <utility>

#include "absl/strings/str_cat.h"

namespace kernd::gpu {
namespace {

// NVML's C interface as its API reference has it. It is stable, and declared here so that a build without a toolkit
// has it too.
using Return = int;    // nvmlReturn_t
using Device = void*;  // nvmlDevice_t
constexpr Return kSuccess = 0;
constexpr int kClockSm = 1, kClockMemory = 2;  // nvmlClockType_t
constexpr unsigned int kVersionBytes = 80;     // NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE

template <typename Function>
void Find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
}

}  // namespace

struct Nvml::Functions {
  Return (*init)() = nullptr;
  Return (*shutdown)() = nullptr;
  Return (*device)(const char* pci_bus_id, Device*) = nullptr;
  // Any of these may be missing in a library that is older or newer than we know.
  const char* (*error_string)(Return) = nullptr;
  Return (*driver_version)(char*, unsigned int) = nullptr;
  Return (*ecc)(Device, int* current, int* pending) = nullptr;
  Return (*mig)(Device, unsigned int* current, unsigned int* pending) = nullptr;
  Return (*clock)(Device, int type, unsigned int* mhz) = nullptr;
  Return (*max_clock)(Device, int type, unsigned int* mhz) = nullptr;

  explicit Functions(void* library) {
    Find(library, "nvmlInit_v2", init);
    Find(library, "nvmlShutdown", shutdown);
    Find(library, "nvmlDeviceGetHandleByPciBusId_v2", device);
    Find(library, "nvmlErrorString", error_string);
    Find(library, "nvmlSystemGetDriverVersion", driver_version);
    Find(library, "nvmlDeviceGetEccMode", ecc);
    Find(library, "nvmlDeviceGetMigMode", mig);
    Find(library, "nvmlDeviceGetClockInfo", clock);
    Find(library, "nvmlDeviceGetMaxClockInfo", max_clock);
  }
};

Nvml::Nvml(void* library, std::unique_ptr<Functions> functions) : library_(library), functions_(std::move(functions)) {}

absl::StatusOr<std::unique_ptr<Nvml>> Nvml::Open(const std::string& library) {
  void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return absl::NotFoundError(absl::StrCat("NVML is not installed: ", dlerror()));
  auto functions = std::make_unique<Functions>(handle);
  if (functions->init == nullptr || functions->shutdown == nullptr || functions->device == nullptr) {
    dlclose(handle);
    return absl::NotFoundError(absl::StrCat(library, " lacks functions of NVML"));
  }
  if (const Return code = functions->init(); code != kSuccess) {
    const std::string words =
        functions->error_string == nullptr ? absl::StrCat("error ", code) : std::string(functions->error_string(code));
    dlclose(handle);
    return absl::UnavailableError(absl::StrCat("NVML does not start: ", words));
  }
  return std::unique_ptr<Nvml>(new Nvml(handle, std::move(functions)));
}

Nvml::~Nvml() {
  functions_->shutdown();
  dlclose(library_);
}

NvmlReading Nvml::Read(const std::string& pci_bus_id) const {
  const Functions& f = *functions_;
  NvmlReading reading;
  char version[kVersionBytes] = "";
  if (f.driver_version != nullptr && f.driver_version(version, kVersionBytes) == kSuccess) {
    version[kVersionBytes - 1] = '\0';
    reading.driver_version = version;
  }
  Device device = nullptr;
  if (f.device(pci_bus_id.c_str(), &device) != kSuccess) return reading;
  int ecc = 0, ecc_pending = 0;
  if (f.ecc != nullptr && f.ecc(device, &ecc, &ecc_pending) == kSuccess) reading.ecc = ecc != 0;
  unsigned int mig = 0, mig_pending = 0;
  if (f.mig != nullptr && f.mig(device, &mig, &mig_pending) == kSuccess) reading.mig = mig != 0;
  const auto clock = [device](Return (*read)(Device, int, unsigned int*), int type) -> std::optional<int> {
    unsigned int mhz = 0;
    if (read == nullptr || read(device, type, &mhz) != kSuccess) return std::nullopt;
    return static_cast<int>(mhz);
  };
  reading.sm_clock_mhz = clock(f.clock, kClockSm);
  reading.sm_clock_max_mhz = clock(f.max_clock, kClockSm);
  reading.memory_clock_mhz = clock(f.clock, kClockMemory);
  reading.memory_clock_max_mhz = clock(f.max_clock, kClockMemory);
  return reading;
}

}  // namespace kernd::gpu
