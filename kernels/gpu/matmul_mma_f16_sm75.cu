#include "kernels/gpu/matmul_mma_tile.cuh"

template kernd::gpu::MmaMatmulKernel kernd::gpu::MmaMatmulKernelOf<kernd::MmaPath::kF16Sm75>(int, const MmaLayout&);
