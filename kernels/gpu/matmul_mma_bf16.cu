#include "kernels/gpu/matmul_mma_tile.cuh"

template kernd::gpu::MmaMatmulKernel kernd::gpu::MmaMatmulKernelOf<kernd::MmaPath::kBF16Sm80>(int, const MmaLayout&);
