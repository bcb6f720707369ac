// Matmul on the CPU. Two ways: oneDNN's primitives where it multiplies the dtype natively, and packed kernels of our
// own for every dtype, whose rows do not depend on M or the batch.
//
// Every function may be called from any number of threads at once. A call uses the OpenMP team of its thread, of the
// size it was chosen for; 1 runs inline.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernd/kernels/args.h"
#include "kernd/kernels/matmul.h"
#include "kernd/kernels/variant.h"
#include "server/cpu/isa.h"
#include "server/cpu/team.h"

namespace kernd::cpu {

// All variants that this CPU runs.
std::vector<VariantInfo> MatmulVariants();

struct MatmulChoice {
  std::string name;  // of the variant
  ChoiceReason reason = ChoiceReason::kRule;
  int threads = 1;
  Isa isa = Isa::kBaseline;  // of the packed kernel and the epilogue
  bool onednn = false;
  std::int64_t tile_rows = 0, tile_cols = 0;  // of the packed kernel
  std::int64_t workspace_bytes = 0;           // exact
};

// The variant for a validated problem and at most `threads` >= 1 threads. Depends on its arguments and the CPU alone
// (it may make and keep a oneDNN primitive on the way). `isa` is for tests; others leave it alone.
// INVALID_ARGUMENT: "matmul.kernel.name" is unknown or cannot run this problem; "matmul.kernel.tile" is set.
absl::StatusOr<MatmulChoice> ChooseMatmul(const MatmulProblem& problem, const MatmulGeometry& geometry,
                                          const KernelRequest& request, int threads, Isa isa = BestIsa());

// Computes D. `workspace`: choice.workspace_bytes, aligned to 64; may be null for 0. Operands need no alignment; none
// overlaps D. Returns when D is complete, or soon after `stop`; a oneDNN call in progress is not stopped. INTERNAL:
// oneDNN failed.
absl::Status RunMatmul(const MatmulChoice& choice, const MatmulProblem& problem, const MatmulGeometry& geometry,
                       const MatmulArgs& args, void* workspace, Stop stop = nullptr);

}  // namespace kernd::cpu
