#include "server/gpu/open.h"

namespace kernd::gpu {

absl::StatusOr<std::unique_ptr<Driver>> OpenDevice(int /*ordinal*/) {
  return absl::NotFoundError("this build has no CUDA");
}

KernelTables BuiltKernels() {
  return {};
}

std::vector<std::string> ListDevices() {
  return {};
}

}  // namespace kernd::gpu
