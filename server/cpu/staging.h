// The memory of a step before its kernel runs: operands where it can read them, room for results, workspace.
#pragma once

#include <array>
#include <vector>

#include "absl/status/statusor.h"
#include "server/core/call.h"

namespace kernd::cpu {

// The memory of a step, and where its operands are, in the order of `step.operands()`.
struct Staged {
  core::HostBuffer workspace;
  std::vector<core::HostBuffer> gathered;
  std::array<const void*, 6> operands = {};
};

// Appends a buffer for each result of `plan` to the call's, `guarded` those of its own (server/cpu/checks.h). Operands
// that were put together from several runs have been let go.
// RESOURCE_EXHAUSTED (MEMORY_FULL): the system has no such memory; retry_after is set.
template <typename Step>
absl::StatusOr<Staged> StageIn(Step& step, const core::StepPlan& plan, bool guarded, core::Call& call);

extern template absl::StatusOr<Staged> StageIn(core::MatmulStep&, const core::StepPlan&, bool, core::Call&);
extern template absl::StatusOr<Staged> StageIn(core::AttentionStep&, const core::StepPlan&, bool, core::Call&);

}  // namespace kernd::cpu
