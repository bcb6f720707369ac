#include "kernels/gpu/matmul_mma_tile.cuh"

template kernd::gpu::MmaMatmulKernel kernd::gpu::MmaMatmulKernelOf<kernd::MmaPath::kI8Sm80>(int, const MmaLayout&);
