#include "kernels/gpu/matmul_mma_tile.cuh"

template kernd::gpu::MmaMatmulKernel kernd::gpu::MmaMatmulKernelOf<kernd::MmaPath::kTf32Sm80>(int, const MmaLayout&);
