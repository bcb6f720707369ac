// Which GPUs are here, and why none of them serves.
#pragma once

#include <string>
#include <vector>

namespace kernd::gpu {

// One line for each GPU, or one that says why none can be seen: no driver, one too old, none there, or a build without
// CUDA. Creates no context. Empty never.
std::vector<std::string> Probe();

}  // namespace kernd::gpu
