#include "kernels/gpu/attention_mma_family.cuh"

template kernd::gpu::MmaFamily kernd::gpu::MmaFamilyOf<128, 128>(MmaKind);
