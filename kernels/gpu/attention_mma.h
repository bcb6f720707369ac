// The seam between attention_mma.cu, which plans, and the kernels, a source for each head_dim (attention_mma_<D>.cu).
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/gpu/attention_work.cuh"

namespace kernd::gpu {

// Keys that a block takes at a time. A row's bits depend on it.
inline constexpr unsigned kMmaKeys = 64;
static_assert(kSplitKeyMultiple % kMmaKeys == 0);

// What the products are made of: the operands' dtype and the instructions.
enum class MmaKind : std::uint8_t { kF16Sm75, kF16Sm80, kBF16Sm80 };
inline constexpr MmaKind kMmaKinds[] = {MmaKind::kF16Sm75, MmaKind::kF16Sm80, MmaKind::kBF16Sm80};

// One compiled kernel. `load` raises its limit of shared memory; `launch` enqueues it.
struct MmaKernel {
  unsigned rows = 0;  // of a block; 0: there is none
  std::size_t shared_bytes = 0;
  absl::Status (*load)() = nullptr;
  absl::Status (*launch)(const AttentionParams&, const AttentionPlan&, Stream) = nullptr;
};

// The kernels for one kind and at most so many channels.
struct MmaFamily {
  MmaKernel large, small;  // tiles of rows; which of the two never shows in the bits
  MmaKernel decode;        // a part of a sequence that is cut along its keys and has at most so many rows
};

// Of channels that are padded to kD, and columns of V padded to kDv.
template <unsigned kD, unsigned kDv>
MmaFamily MmaFamilyOf(MmaKind kind);
extern template MmaFamily MmaFamilyOf<32, 32>(MmaKind);
extern template MmaFamily MmaFamilyOf<64, 64>(MmaKind);
extern template MmaFamily MmaFamilyOf<96, 96>(MmaKind);
extern template MmaFamily MmaFamilyOf<128, 128>(MmaKind);
extern template MmaFamily MmaFamilyOf<192, 128>(MmaKind);
extern template MmaFamily MmaFamilyOf<192, 192>(MmaKind);
extern template MmaFamily MmaFamilyOf<256, 256>(MmaKind);

}  // namespace kernd::gpu
