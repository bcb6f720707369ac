// A view of a resident tensor as kernels want it: one element behind the other, from an aligned address.
#pragma once

#include "absl/status/status.h"
#include "server/core/operand.h"
#include "server/gpu/driver.h"

namespace kernd::gpu {

// Enqueues the copy of the view of `from` to `to`, both on the device.
absl::Status Gather(Driver& driver, std::byte* to, const std::byte* from, const core::View& view, Stream stream);

}  // namespace kernd::gpu
