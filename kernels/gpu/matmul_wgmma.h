// The seam between matmul_wgmma.cc, which plans, and the kernels, a source for each dtype (matmul_wgmma_<dtype>.cu).
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/gpu/matmul_epilogue.h"
#include "kernels/gpu/matmul_wgmma_plan.h"

namespace kernd::gpu {

struct WgmmaOperand {
  CUtensorMap map;       // (in a line, line, item, 1)
  BatchStrides item_of;  // of an item of the batch, in items of the map
};

struct WgmmaMatmul {
  WgmmaOperand a, b;
  std::int64_t k = 0, k_per_split = 0, splits = 1;
  std::int64_t tiles_m = 0, tiles_n = 0;
  bool narrow = false;     // the last column of tiles has kWgmmaNarrow columns at most, and comes last
  std::int64_t group = 0;  // tiles (clusters) below one another that run together
  void* sums = nullptr;    // F32, [splits, batch, M, N]; null: `epilogue` makes results of them
  MatmulEpilogue epilogue;
};

// How operands lie: lines along K, or along M or N.
struct WgmmaLayout {
  bool a_along_k = false, b_along_k = false;
};

// One compiled kernel. `load` raises its limit of shared memory on the current device; `launch` enqueues it.
struct WgmmaMatmulKernel {
  MmaTile tile;
  unsigned cluster = 1;  // blocks, tiles below one another, that share what they read of B
  bool narrow = false;   // has products of their own for narrow tiles
  std::size_t shared_bytes = 0;
  absl::Status (*load)() = nullptr;
  absl::Status (*launch)(const WgmmaMatmul&, unsigned blocks, Stream) = nullptr;
};

// Which kernel for a layout.
using WgmmaMatmulKernels = WgmmaMatmulKernel (*)(const WgmmaLayout& layout);

// Enqueues a problem that has results and a product and that matmul_wgmma.cc does not refuse, packed operands and sums
// in the workspace that WgmmaPlanOf says. `group`: as in WgmmaMatmul. INTERNAL: CUDA refused.
absl::Status LaunchWgmmaMatmul(WgmmaMatmulKernels kernels, const MatmulProblem& problem, const MatmulGeometry& geometry,
                               const DeviceInfo& device, const MatmulArgs& args, void* workspace, std::int64_t group,
                               Stream stream);

// Of an index of kWgmmaTile.
template <DataType kType, int kIndex>
WgmmaMatmulKernel WgmmaMatmulKernelOf(const WgmmaLayout& layout);
extern template WgmmaMatmulKernel WgmmaMatmulKernelOf<DataType::kF16, 0>(const WgmmaLayout&);
extern template WgmmaMatmulKernel WgmmaMatmulKernelOf<DataType::kF16, 1>(const WgmmaLayout&);
extern template WgmmaMatmulKernel WgmmaMatmulKernelOf<DataType::kBF16, 0>(const WgmmaLayout&);
extern template WgmmaMatmulKernel WgmmaMatmulKernelOf<DataType::kBF16, 1>(const WgmmaLayout&);

}  // namespace kernd::gpu
