// Shapes of the attention for SM 9.0 beside the chosen ones: a bench times them on a GPU, a test has them right before
// that.
#pragma once

#include <vector>

#include "kernels/gpu/attention_wgmma_tile.cuh"

namespace kernd::gpu::attention_wgmma {

struct Candidate {
  const char* name;  // rows x keys, how the softmax overlaps, who takes turns, in sections or head after head
  WgmmaKernel kernel;
};

template <unsigned kD, unsigned kKeys, unsigned kGroups, bool kOverlap, bool kPingPong, unsigned kQ = 2,
          unsigned kStages = 2>
WgmmaKernel Of(bool sections) {
  WgmmaKernel kernel = KernelOf<Shape<DataType::kF16, kD, kD, kKeys, kGroups, kOverlap, kPingPong, kQ, kStages>>();
  kernel.sections = sections;
  return kernel;
}

// For problems of kD channels; the first is the chosen one.
template <unsigned kD>
std::vector<Candidate> Candidates() {
  if constexpr (kD == 64) {
    return {{"192x128 overlap turns sections", Of<64, 128, 3, true, true>(true)},
            {"192x128 overlap turns", Of<64, 128, 3, true, true>(false)},
            {"128x128 overlap turns", Of<64, 128, 2, true, true>(false)}};
  } else if constexpr (kD == 128) {
    return {{"128x128 overlap turns", Of<128, 128, 2, true, true>(false)},
            {"128x128 overlap turns sections", Of<128, 128, 2, true, true>(true)},
            {"128x128 overlap", Of<128, 128, 2, true, false>(false)}};
  } else {
    return {{"128x80 overlap", Of<256, 80, 2, true, false, 1>(false)},
            {"128x80 overlap sections", Of<256, 80, 2, true, false, 1>(true)},
            {"128x80 turns", Of<256, 80, 2, false, true, 1>(false)}};
  }
}

}  // namespace kernd::gpu::attention_wgmma
