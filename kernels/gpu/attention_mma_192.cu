#include "kernels/gpu/attention_mma_family.cuh"

template kernd::gpu::MmaFamily kernd::gpu::MmaFamilyOf<192, 128>(MmaKind);
template kernd::gpu::MmaFamily kernd::gpu::MmaFamilyOf<192, 192>(MmaKind);
