// The CPU behind core's seam: plans by the kernels' choosers, and runs on one executor that owns the machine's threads.
#pragma once

#include <memory>

#include "server/core/backend.h"

namespace kernd::cpu {

struct BackendOptions {
  int threads = 1;                // of one kernel
  std::int64_t memory_total = 0;  // bytes, for the report
  bool debug_checks = false;      // scan tensors, guard results
};

std::unique_ptr<core::Backend> MakeBackend(const BackendOptions& options);

}  // namespace kernd::cpu
