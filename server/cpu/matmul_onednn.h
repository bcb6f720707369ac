// A matmul by oneDNN: how a problem becomes calls of primitives, and the epilogue after them.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernd/kernels/args.h"
#include "kernd/kernels/matmul.h"
#include "server/cpu/isa.h"
#include "server/cpu/team.h"

namespace kernd::cpu {

// Why oneDNN cannot run this problem; empty: it can.
std::string_view OneDnnRefusal(const MatmulProblem& problem, const MatmulGeometry& geometry);

// Exact. Makes the primitives. UNIMPLEMENTED: oneDNN has none for this problem. The problem has a product and a result.
absl::StatusOr<std::int64_t> OneDnnWorkspaceBytes(const MatmulProblem& problem, const MatmulGeometry& geometry,
                                                  int threads);

// As RunMatmul. `isa`: of the epilogue.
absl::Status RunOneDnn(const MatmulProblem& problem, const MatmulGeometry& geometry, const MatmulArgs& args,
                       int threads, Isa isa, void* workspace, Stop stop);

}  // namespace kernd::cpu
