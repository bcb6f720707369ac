// What is launched for a tensor-core matmul besides its kernel, what that needs of a workspace, and how long all of it
// takes. Pure; no CUDA.
//
// Operands whose lines do not begin at multiples of 16 bytes, and 8- and 32-bit ones that lie across K, go through
// registers at a sixth of the speed. They are copied into lines along K first, 16-bit ones into lines of the direction
// that they have, padded to 16 bytes, where that is sooner done. The sums are the same to the bit.
#pragma once

#include <cstdint>

#include "kernd/kernels/gpu.h"
#include "kernels/gpu/matmul_mma_plan.h"

namespace kernd {

// An operand as the kernel reads it.
struct MmaSource {
  bool packed = false, along_k = false;
  std::int64_t ld = 0;  // elements between lines
  Dims batch_strides;
  // Of the copy [items, rows, ld]: the source's distinct items, bytes, and where in the workspace it is.
  std::int64_t items = 1, bytes = 0, at = 0;
  Dims item_shape, item_strides;
};

struct MmaPlan {
  MmaSource a, b;
  MmaSplits splits;
  MmaSums sums;
  std::int64_t sums_at = 0;
  std::int64_t workspace_bytes = 0;  // negative: past 2^63
};

MmaPlan MmaPlanOf(MmaPath path, const MmaTile& tile, const MatmulProblem& problem, const MatmulGeometry& geometry,
                  const DeviceInfo& device);

// What the model gives the tile that the rule chooses, and a quarter more for each place behind it. A problem that is
// to be batch-invariant gets its place and nothing else, below any row without tensor cores: M must not decide.
double MmaMicroseconds(MmaPath path, int tile, const MatmulProblem& problem, const MatmulGeometry& geometry,
                       const DeviceInfo& device);

}  // namespace kernd
