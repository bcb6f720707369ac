#include "kernels/gpu/attention_wgmma_tile.cuh"

template kernd::gpu::WgmmaKernel kernd::gpu::WgmmaKernelOf<64, 64>(DataType, bool);
