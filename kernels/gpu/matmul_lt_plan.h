// What cuBLASLt says to a call: its algorithm, and the descriptors to launch it with.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/gpu/cublaslt.h"
#include "kernels/gpu/matmul_lt_recipe.h"

namespace kernd {

struct LtPlan {
  std::string refusal;              // cuBLASLt has nothing for the call; empty: the rest holds
  cublasLtMatmulDescOpaque_t desc;  // without pointers: a launch copies it and sets its own
  cublasLtMatrixLayoutOpaque_t x, y, c, d;
  cublasLtMatmulAlgo_t algo;
  std::int64_t workspace_bytes = 0;
};

// The plan of a call, from one map for the whole process, which keeps the 1024 used last. Thread-safe: one thread asks
// the library's heuristic, others who want the same plan wait for it.
//   NOT_FOUND           no cuBLASLt
//   RESOURCE_EXHAUSTED  cuBLASLt found no memory for itself
//   INTERNAL            CUDA refused
absl::StatusOr<std::shared_ptr<const LtPlan>> LtPlanOf(const LtCall& call, const DeviceInfo& device);

// At most `most` ways to compute a call, the one of LtPlanOf first: for whoever measures which is quickest. Not kept.
// Errors: the same.
absl::StatusOr<std::vector<LtPlan>> LtCandidatesOf(const LtCall& call, const DeviceInfo& device, int most);

// Where the operands of one launch are.
struct LtPointers {
  const void *x = nullptr, *y = nullptr, *c = nullptr;
  void* d = nullptr;
  const void* bias = nullptr;
  const float *x_scale = nullptr, *y_scale = nullptr;
  void* workspace = nullptr;
};

absl::Status EnqueueLt(const LtCall& call, const LtPlan& plan, double alpha, double beta, const LtPointers& pointers,
                       Stream stream);

}  // namespace kernd
