// The seam between matmul_mma.cc, which plans, and the kernels, a source for each dtype (matmul_mma_<dtype>.cu).
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/gpu/matmul_epilogue.h"
#include "kernels/gpu/matmul_mma_plan.h"

namespace kernd::gpu {

struct MmaOperand {
  const void* data = nullptr;
  std::int64_t rows = 0, ld = 0;  // of A, or columns of B; elements between lines in memory
  bool along_k = false;           // a line is a row; else it is an element of K of all rows
  int width = 0;                  // bytes that a load may have as far as alignment goes: 16, 4, or an element's
  BatchStrides batch;
};

struct MmaProblem {
  MmaOperand a, b;
  std::int64_t k = 0, k_per_split = 0, splits = 1;
  std::int64_t tiles_m = 0, tiles_n = 0;
  int stages = 0;
  void* sums = nullptr;  // F32 or I32, [splits, batch, M, N]; null: `epilogue` makes results of them
  MatmulEpilogue epilogue;
};

// One compiled kernel. `load` raises its limit of shared memory on the current device; `launch` enqueues it.
struct MmaMatmulKernel {
  absl::Status (*load)(std::size_t shared_bytes) = nullptr;
  absl::Status (*launch)(const MmaProblem&, std::size_t shared_bytes, Stream) = nullptr;
};

// How a kernel brings operands into shared memory.
struct MmaLayout {
  bool a_along_k = false, b_along_k = false;
  bool aligned = false;  // both operands have a width of 16
};

// By an index of kMmaTile.
template <MmaPath kPath>
MmaMatmulKernel MmaMatmulKernelOf(int tile, const MmaLayout& layout);
extern template MmaMatmulKernel MmaMatmulKernelOf<MmaPath::kF16Sm75>(int, const MmaLayout&);
extern template MmaMatmulKernel MmaMatmulKernelOf<MmaPath::kF16Sm80>(int, const MmaLayout&);
extern template MmaMatmulKernel MmaMatmulKernelOf<MmaPath::kBF16Sm80>(int, const MmaLayout&);
extern template MmaMatmulKernel MmaMatmulKernelOf<MmaPath::kTf32Sm80>(int, const MmaLayout&);
extern template MmaMatmulKernel MmaMatmulKernelOf<MmaPath::kI8Sm75>(int, const MmaLayout&);
extern template MmaMatmulKernel MmaMatmulKernelOf<MmaPath::kI8Sm80>(int, const MmaLayout&);

}  // namespace kernd::gpu
