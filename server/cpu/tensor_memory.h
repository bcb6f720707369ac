// Resident tensors in the host's memory, where the CPU's kernels and replies use them in place.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "server/core/tensor_memory.h"

namespace kernd::cpu {

// RESOURCE_EXHAUSTED (MEMORY_FULL): the system has no such memory.
absl::StatusOr<std::unique_ptr<core::TensorMemory>> AllocateTensor(std::int64_t bytes);

}  // namespace kernd::cpu
