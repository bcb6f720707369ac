// Bulk copies of boxes of a tensor to shared memory (cp.async.bulk.tensor), for elements of 16 bits: what
// cuTensorMapEncodeTiled accepts, what lies outside of the tensor (zeros), and how the box is swizzled.
//
// What ends the process: a box that does not begin where its swizzle's pattern does; bytes that somebody may still
// read, or wrote without a fence; a map that cuTensorMapEncodeTiled did not make.
#pragma once

#include <cstdint>

#include "kernels/emulator/cuda/cuda.h"

namespace kernd::emulator {

// cp.async.bulk.tensor.<rank>d.shared::cluster.global.tile.mbarrier::complete_tx::bytes of a thread. `to`, `mbarrier`:
// offsets in shared memory; `at`: the box's first element, innermost dimension first, which may lie outside.
void TensorLoad(std::uint32_t to, const CUtensorMap& map, unsigned rank, const std::int32_t* at,
                std::uint32_t mbarrier);
// With .multicast::cluster: to the same place of each block of the cluster whose bit is set, for its own mbarrier.
void TensorLoadToAll(std::uint32_t to, const CUtensorMap& map, unsigned rank, const std::int32_t* at,
                     std::uint32_t mbarrier, std::uint16_t blocks);

// Where byte `offset` of shared memory is with a swizzle over 32, 64 or 128 bytes; 16: none.
inline std::uint32_t Swizzled(std::uint32_t offset, unsigned span) {
  return offset ^ ((offset >> 7 & (span / 16 - 1)) << 4);
}

}  // namespace kernd::emulator
