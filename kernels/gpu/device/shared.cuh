// Dynamic shared memory, places in it, and how tiles of 16-bit elements lie there.
#pragma once

#include <cstdint>

namespace kernd::gpu {

// A block's dynamic shared memory, aligned to 1024 bytes.
__device__ inline void* DynamicShared() {
#ifdef KERND_EMULATOR
  return emulator::SharedMemory();
#else
  extern __shared__ __align__(1024) unsigned char kernd_dynamic_shared[];
  return kernd_dynamic_shared;
#endif
}

// The address that instructions on shared memory want.
__device__ inline std::uint32_t SharedAddress(const void* place) {
#ifdef KERND_EMULATOR
  return emulator::SharedOffset(place);
#else
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(place));
#endif
}

// Rows of kCols 16-bit elements, 16 or a multiple of 32, cut into chunks of 16 bytes. A chunk's place in its row is
// swapped about by the number of the row, such that the same chunk of 8 rows one after the other fills all 32 banks:
// ldmatrix and 16-byte stores then have no conflicts, and no byte is lost to padding.
template <unsigned kCols>
struct SwizzledRows {
  static_assert(kCols == 16 || kCols % 32 == 0);
  static constexpr unsigned kPitch = kCols * 2, kChunks = kCols / 8;

  // Bytes from the tile's start, which is a multiple of 128.
  __device__ static unsigned Offset(unsigned row, unsigned chunk) {
    const unsigned swap = kChunks % 8 == 0 ? row % 8 : kChunks % 4 == 0 ? row / 2 % 4 : row / 4 % 2;
    return row * kPitch + ((chunk ^ swap) * 16);
  }
};

}  // namespace kernd::gpu
