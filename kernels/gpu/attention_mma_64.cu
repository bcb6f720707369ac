#include "kernels/gpu/attention_mma_family.cuh"

template kernd::gpu::MmaFamily kernd::gpu::MmaFamilyOf<64, 64>(MmaKind);
