#include "server/app/select_backend.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernd/kernels/error.h"
#include "server/config/build_info.h"
#include "server/cpu/backend.h"
#include "server/gpu/backend.h"
#include "server/gpu/open.h"
#include "server/tune/tuning_file.h"

namespace kernd {
namespace {

// What the runtime, cuBLAS and modules that are loaded later need of the device, beside the pool.
constexpr std::int64_t kHeadroom = std::int64_t{1} << 30;

absl::StatusOr<std::int64_t> GpuMemoryLimit(const config::GpuOptions& options, gpu::Driver& driver) {
  KERND_ASSIGN_OR_RETURN(const std::int64_t free, driver.FreeMemory());
  if (options.memory.percent == 0) {
    if (options.memory.bytes <= free) return options.memory.bytes;
    return absl::ResourceExhaustedError(absl::StrCat("--gpu-memory is ", config::BytesText(options.memory.bytes),
                                                     ": the device has ", free, " bytes free of ",
                                                     driver.device().memory_bytes));
  }
  return options.memory.Of(std::max<std::int64_t>(free - kHeadroom, free / 2));
}

std::string BuildName() {
  const config::BuildInfo& build = config::GetBuildInfo();
  return absl::StrCat(build.version, " (", build.revision, "), CUDA ", build.cuda_toolkit);
}

const char* StateOf(const absl::Status& read) {
  switch (read.code()) {
    case absl::StatusCode::kOk: return "loaded";
    case absl::StatusCode::kNotFound: return "missing";
    case absl::StatusCode::kFailedPrecondition: return "stale";
    case absl::StatusCode::kPermissionDenied: return "unsafe";
    default: return "damaged";
  }
}

// A file that cannot be used costs time, not the start.
void ReadTuned(const std::string& path, SelectedBackend& selected) {
  selected.tuning_version = selected.backend->TuningVersionFor(BuildName());
  if (path.empty()) return;
  absl::StatusOr<TunedChoices> choices = tune::ReadTuningFile(path, selected.tuning_version);
  selected.tuning_file = StateOf(choices.status());
  if (choices.ok()) {
    selected.backend->tuned().Replace(*std::move(choices));
  } else {
    selected.tuning_said = std::string(choices.status().message());
  }
}

std::int64_t ResidentLimit(const config::SessionOptions& options, std::int64_t memory_limit) {
  return std::min(options.resident.Of(memory_limit), memory_limit);
}

absl::StatusOr<SelectedBackend> OpenGpu(const config::ServerOptions& all,
                                        std::function<void(const absl::Status&)> on_lost) {
  const config::GpuOptions& options = all.gpu;
  KERND_ASSIGN_OR_RETURN(std::unique_ptr<gpu::Driver> driver, gpu::OpenDevice(options.device));
  SelectedBackend selected;
  KERND_ASSIGN_OR_RETURN(selected.memory_limit, GpuMemoryLimit(options, *driver));
  selected.resident_limit = ResidentLimit(all.sessions, selected.memory_limit);
  gpu::BackendOptions backend;
  backend.executors = options.executors;
  backend.memory_limit = selected.memory_limit;
  backend.resident_limit = selected.resident_limit;
  backend.pinned_bytes = options.pinned_bytes;
  backend.on_lost = std::move(on_lost);
  backend.debug_checks = all.compute.debug_checks;
  KERND_ASSIGN_OR_RETURN(selected.backend, gpu::MakeBackend(std::move(driver), gpu::BuiltKernels(), backend));
  return selected;
}

}  // namespace

absl::StatusOr<SelectedBackend> SelectBackend(const config::ServerOptions& options,
                                              std::function<void(const absl::Status&)> on_lost) {
  using config::BackendChoice;
  const BackendChoice choice = options.compute.backend;
  SelectedBackend selected;
  if (choice != BackendChoice::kCpu) {
    absl::StatusOr<SelectedBackend> gpu = OpenGpu(options, std::move(on_lost));
    if (gpu.ok()) {
      selected = *std::move(gpu);
    } else if (choice == BackendChoice::kCuda) {
      return gpu.status();
    } else {
      selected.kept_back = std::string(gpu.status().message());
    }
  }
  selected.on_gpu = selected.backend != nullptr;
  if (!selected.on_gpu) {
    selected.backend = cpu::MakeBackend({.threads = options.compute.cpu_threads,
                                         .memory_total = config::ReadMachineLimits().memory_bytes,
                                         .debug_checks = options.compute.debug_checks});
    selected.memory_limit = options.limits.memory_bytes;
    selected.resident_limit = ResidentLimit(options.sessions, selected.memory_limit);
  }
  ReadTuned(options.compute.tuning_file, selected);
  const std::vector<std::string> devices = gpu::ListDevices();
  for (std::size_t i = 0; i < devices.size(); ++i) {
    if (!selected.on_gpu) {
      selected.not_used.push_back(
          absl::StrCat(devices[i], ": ", selected.kept_back.empty() ? "--backend cpu" : selected.kept_back));
    } else if (static_cast<int>(i) != options.gpu.device) {
      selected.not_used.push_back(absl::StrCat(devices[i], ": a daemon serves one GPU, see --gpu-device"));
    }
  }
  if (!selected.on_gpu && devices.empty()) {
    selected.not_used.push_back(
        absl::StrCat("no GPU: ", selected.kept_back.empty() ? "--backend cpu" : selected.kept_back));
  }
  return selected;
}

}  // namespace kernd
