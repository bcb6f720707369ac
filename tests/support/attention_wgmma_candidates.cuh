// Shapes of the attention for SM 9.0 beside the chosen ones: a bench times them on a GPU, a test has them right before
// that.
#pragma once

#include <vector>

#include "kernels/gpu/attention_wgmma_tile.cuh"

namespace kernd::gpu::attention_wgmma {

struct Candidate {
  const char* name;  // rows x keys, how the softmax overlaps, who takes turns
  WgmmaKernel kernel;
};

template <unsigned kD, unsigned kKeys, unsigned kGroups, bool kOverlap, bool kPingPong, unsigned kQ = 2,
          unsigned kStages = 2, bool kJoined = false>
WgmmaKernel Of() {
  return KernelOf<Shape<DataType::kF16, kD, kD, kKeys, kGroups, kOverlap, kPingPong, kQ, kStages, kJoined>>();
}
inline WgmmaKernel InSections(WgmmaKernel kernel) {
  kernel.sections = true;
  return kernel;
}

// For problems of kD channels.
template <unsigned kD>
std::vector<Candidate> Candidates() {
  if constexpr (kD == 64) {
    return {{"192x128 overlap turns", Of<64, 128, 3, true, true>()},
            {"192x128 overlap turns sections", InSections(Of<64, 128, 3, true, true>())},
            {"192x128 overlap turns joined", Of<64, 128, 3, true, true, 2, 2, true>()},
            {"192x128 overlap joined", Of<64, 128, 3, true, false, 2, 2, true>()},
            {"128x128 overlap turns joined", Of<64, 128, 2, true, true, 2, 2, true>()}};
  } else if constexpr (kD == 128) {
    return {{"128x128 overlap turns", Of<128, 128, 2, true, true>()},
            {"128x128 overlap turns sections", InSections(Of<128, 128, 2, true, true>())},
            {"128x128 overlap turns joined", Of<128, 128, 2, true, true, 2, 2, true>()},
            {"128x128 overlap turns joined sections", InSections(Of<128, 128, 2, true, true, 2, 2, true>())},
            {"128x128 overlap joined", Of<128, 128, 2, true, false, 2, 2, true>()}};
  } else {
    return {{"128x80 overlap", Of<256, 80, 2, true, false, 1>()},
            {"128x80 overlap sections", InSections(Of<256, 80, 2, true, false, 1>())},
            {"128x80 overlap joined", Of<256, 80, 2, true, false, 1, 2, true>()},
            {"128x80 turns", Of<256, 80, 2, false, true, 1>()}};
  }
}

}  // namespace kernd::gpu::attention_wgmma
