#include "kernels/gpu/attention_wgmma_tile.cuh"

template kernd::gpu::WgmmaKernel kernd::gpu::WgmmaKernelOf<128, 128>(DataType, bool);
