// Attention on the CPU: one kernel, a blocked online softmax, for every dtype, layout and option.
//
// Every function may be called from any number of threads at once. A call uses the OpenMP team of its thread, of the
// size it was chosen for; 1 runs inline.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernd/kernels/args.h"
#include "kernd/kernels/attention.h"
#include "kernd/kernels/variant.h"
#include "server/cpu/isa.h"
#include "server/cpu/team.h"

namespace kernd::cpu {

// All variants that this CPU runs.
std::vector<VariantInfo> AttentionVariants();

struct AttentionChoice {
  std::string name;  // of the variant
  ChoiceReason reason = ChoiceReason::kRule;
  int threads = 1;
  Isa isa = Isa::kBaseline;
  bool naive = false;
  std::int64_t tile_rows = 0;        // rows of a thread's task
  std::int64_t workspace_bytes = 0;  // exact
};

// The variant for a validated problem and at most `threads` >= 1 threads. Pure. `isa` is for tests; others leave it
// alone. INVALID_ARGUMENT: "attention.kernel.name" is unknown or cannot run this problem; "attention.kernel.tile" is
// set.
absl::StatusOr<AttentionChoice> ChooseAttention(const AttentionProblem& problem, const AttentionGeometry& geometry,
                                                const KernelRequest& request, int threads, Isa isa = BestIsa());

// Computes O and, where asked for, LSE. `workspace`: choice.workspace_bytes, aligned to 64; may be null for 0. Operands
// need no alignment; none overlaps the results. Returns when they are complete, or soon after `stop`.
void RunAttention(const AttentionChoice& choice, const AttentionProblem& problem, const AttentionGeometry& geometry,
                  const AttentionArgs& args, void* workspace, Stop stop = nullptr);

}  // namespace kernd::cpu
