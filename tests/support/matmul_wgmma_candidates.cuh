// Shapes of the matmul for SM 9.0 beside the chosen ones: a bench times them on a GPU, a test has them right before
// that.
#pragma once

#include "kernels/gpu/matmul_wgmma_tile.cuh"

namespace kernd::gpu::matmul_wgmma {

struct Candidate {
  const char* name;  // tile, stages, blocks of a cluster, clusters below one another that run together
  WgmmaMatmulKernels kernels;
  std::int64_t group;
};

template <unsigned kN, unsigned kStages, unsigned kCluster, bool kNarrow = false>
inline constexpr WgmmaMatmulKernels Of = KernelFor<DataType::kBF16, kN, kStages, kCluster, kNarrow>;

inline constexpr Candidate kCandidates[] = {
    {"128x256 4 stages group 8", Of<256, 4, 1>, 8},
    {"128x256 4 stages group 16", Of<256, 4, 1>, 16},
    {"128x256 3 stages group 8", Of<256, 3, 1>, 8},
    {"128x256 4 stages cluster 2 group 4", Of<256, 4, 2>, 4},
    {"128x256 4 stages cluster 2 group 8", Of<256, 4, 2>, 8},
    {"128x128 6 stages group 8", Of<128, 6, 1>, 8},
    {"128x128 6 stages cluster 2 group 8", Of<128, 6, 2>, 8},
    {"128x256 4 stages narrow group 8", Of<256, 4, 1, true>, 8},
};

}  // namespace kernd::gpu::matmul_wgmma
