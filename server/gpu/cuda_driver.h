// CUDA behind the seam.
#pragma once

#include <memory>

#include "server/gpu/driver.h"

namespace kernd::gpu {

// For a device whose context this process has.
std::unique_ptr<Driver> MakeCudaDriver(DeviceInfo device);

}  // namespace kernd::gpu
