#include "kernels/gpu/matmul_wgmma_tile.cuh"

template kernd::gpu::WgmmaMatmulKernel kernd::gpu::WgmmaMatmulKernelOf<kernd::DataType::kF16, 0>(const WgmmaLayout&);
template kernd::gpu::WgmmaMatmulKernel kernd::gpu::WgmmaMatmulKernelOf<kernd::DataType::kF16, 1>(const WgmmaLayout&);
