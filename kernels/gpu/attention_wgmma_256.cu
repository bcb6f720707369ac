#include "kernels/gpu/attention_wgmma_tile.cuh"

template kernd::gpu::WgmmaKernel kernd::gpu::WgmmaKernelOf<256, 256>(DataType, bool);
