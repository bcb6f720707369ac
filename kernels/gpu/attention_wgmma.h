// The seam between attention_wgmma.cu, which plans, and the kernels, a source for each head_dim
// (attention_wgmma_<D>.cu).
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/gpu/attention_work.cuh"

namespace kernd::gpu {

// A problem as the kernel gets it. Heads are folded: `params.group` heads of Q that share a kv head, a power of two,
// are rows of one tile, and `params.kv_heads` counts such groups, `fold` of them to a kv head.
struct WgmmaLaunch {
  CUtensorMap q, k, v;  // (channel, head, row, sequence)
  AttentionParams params;
  AttentionPlan plan;
  std::int64_t fold = 1;
  std::int64_t kv_rows = 0;  // that the maps of K and V have
  int sequence_step = 1;     // of their last dimension; 0: packed
  unsigned group_shift = 0;  // params.group as a power of two
  std::int64_t pairs = 0;    // of pieces that a block gets as one, by WgmmaPair; 0: the grid takes turns at them
};

// How many pairs there are.
inline std::int64_t WgmmaPairs(const AttentionPlan& plan) {
  const std::int64_t size = plan.section * plan.blocks;
  return plan.works / size * ((size + 1) / 2) + (plan.works % size + 1) / 2;
}

// The pieces of pair `index`: of a section the longest yet and the shortest yet, which are as much work as any other
// pair's where rows are causal. The same one twice: it is the last, without another.
struct WgmmaPieces {
  std::int64_t first, second;
};
KERND_HOST_DEVICE inline WgmmaPieces WgmmaPair(const AttentionPlan& plan, std::int64_t index) {
  const std::int64_t size = plan.section * plan.blocks, pairs = (size + 1) / 2, start = index / pairs * size;
  const std::int64_t end = start + size < plan.works ? start + size : plan.works, place = index % pairs;
  return {start + place, end - 1 - place};
}

// One compiled kernel. `load` raises its limit of shared memory; `launch` enqueues it.
struct WgmmaKernel {
  unsigned rows = 0, keys = 0;  // of a tile; a row's bits depend on `keys`
  std::size_t shared_bytes = 0;
  // As many heads as the L2 holds take turns, each with a piece, not all pieces of a head after the other, in which
  // neighbouring blocks read the same keys. Of K and V an SM reads 4096 bytes for each clock of its tensor cores by a
  // tile's rows, 32 with 128 rows, whatever the channels, and 21 with 192. Measured on an H200, in sections and not, in
  // TFLOP/s at L1024 and L16384: 192 rows (D64) 409, 504 and 387, 459; 128 rows (D128) 495, 613 and 522, 668, (D256)
  // 580, 692 and 616, 721. So 192 rows take them; D96 and D192 have 128, and were not measured.
  bool sections = false;
  absl::Status (*load)() = nullptr;
  absl::Status (*launch)(const WgmmaLaunch&, unsigned blocks, Stream) = nullptr;
};

// Enqueues the kernel for a problem that attention_wgmma.cu does not refuse, whose O has elements. INTERNAL: CUDA
// refused.
absl::Status LaunchWgmma(const WgmmaKernel& kernel, const AttentionProblem& problem, const AttentionGeometry& geometry,
                         const DeviceInfo& device, const AttentionArgs& args, const AttentionTables& tables,
                         Stream stream);

// Of F16 or BF16, channels that are padded to kD, and columns of V padded to kDv. `positional`: for rows that do not
// all see all keys.
template <unsigned kD, unsigned kDv>
WgmmaKernel WgmmaKernelOf(DataType type, bool positional);
extern template WgmmaKernel WgmmaKernelOf<64, 64>(DataType, bool);
extern template WgmmaKernel WgmmaKernelOf<96, 96>(DataType, bool);
extern template WgmmaKernel WgmmaKernelOf<128, 128>(DataType, bool);
extern template WgmmaKernel WgmmaKernelOf<192, 128>(DataType, bool);
extern template WgmmaKernel WgmmaKernelOf<192, 192>(DataType, bool);
extern template WgmmaKernel WgmmaKernelOf<256, 256>(DataType, bool);

}  // namespace kernd::gpu
