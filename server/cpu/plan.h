// A step's plan on the CPU: its geometry, the variant that computes it, and the exact bytes.
#pragma once

#include "absl/status/statusor.h"
#include "kernd/kernels/tuning.h"
#include "server/core/program.h"
#include "server/cpu/attention.h"
#include "server/cpu/matmul.h"

namespace kernd::cpu {

struct Prepared : core::PreparedStep {
  bool inline_run = false;  // computing it costs less than waking a worker
};

struct PreparedMatmul final : Prepared {
  MatmulGeometry geometry;
  MatmulChoice choice;
};

struct PreparedAttention final : Prepared {
  AttentionGeometry geometry;
  AttentionChoice choice;
};

// `threads` that a kernel may use; `measured` may be null. Errors of Validate and of the choosers. More bytes than 63
// bits count are as many as they do, which fits nowhere.
absl::StatusOr<core::StepPlan> Plan(const core::MatmulStep& step, int threads, const TunedChoices* measured = nullptr);
absl::StatusOr<core::StepPlan> Plan(const core::AttentionStep& step, int threads,
                                    const TunedChoices* measured = nullptr);

}  // namespace kernd::cpu
