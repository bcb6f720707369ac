// Kernels for a GPU that is none.
#pragma once

#include "server/gpu/capabilities.h"
#include "tests/support/fake_gpu.h"

namespace kernd::testing {

// Kernels for the F32 problems of the fake, computed by the fp64 reference: `attention_f32_sm75_fake`,
// `matmul_f32_sm75_fake`, and one of each that needs an sm_100. `gpu` must outlive their use, one at a time.
gpu::KernelTables FakeKernels(FakeGpu& gpu);

}  // namespace kernd::testing
