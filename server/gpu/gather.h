// A view of a resident tensor, or of shared memory, as kernels want it: one element behind the other, from an aligned
// address.
#pragma once

#include "absl/status/status.h"
#include "server/core/operand.h"
#include "server/gpu/driver.h"

namespace kernd::gpu {

// Enqueues the copy of the view of `from`, on the device or in registered host memory, to `to` on the device.
absl::Status Gather(Driver& driver, std::byte* to, const std::byte* from, const core::View& view, Stream stream);

}  // namespace kernd::gpu
