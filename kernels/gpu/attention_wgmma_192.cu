#include "kernels/gpu/attention_wgmma_tile.cuh"

template kernd::gpu::WgmmaKernel kernd::gpu::WgmmaKernelOf<192, 128>(DataType, bool);
template kernd::gpu::WgmmaKernel kernd::gpu::WgmmaKernelOf<192, 192>(DataType, bool);
