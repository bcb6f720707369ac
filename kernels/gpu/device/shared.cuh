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

// Tiles of kRows rows as bulk copies with a swizzle of 128 bytes leave them and wgmma reads them: slabs of 64 columns
// one after the other, a row of a slab being 128 bytes whose chunks of 16 are swapped about by the number of the row.
template <unsigned kRows>
struct Slabs {
  static_assert(kRows % 8 == 0);
  static constexpr unsigned kPitch = 128, kBytes = kRows * kPitch;  // of a slab

  // Bytes from the tile's start, which is a multiple of 1024, to chunk `chunk` of the row's.
  __device__ static unsigned Offset(unsigned row, unsigned chunk) {
    return chunk / 8 * kBytes + row * kPitch + (chunk % 8 ^ row % 8) * 16;
  }
};

// 16 bytes; addresses are multiples of 16.
__device__ inline uint4 LoadShared16(std::uint32_t address) {
#ifdef KERND_EMULATOR
  return *reinterpret_cast<const uint4*>(emulator::ReadShared(address, 16, "ld.shared"));
#else
  uint4 x;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(address)
               : "memory");
  return x;
#endif
}
__device__ inline void StoreShared16(std::uint32_t address, uint4 x) {
#ifdef KERND_EMULATOR
  *reinterpret_cast<uint4*>(emulator::WriteShared(address, 16, "st.shared")) = x;
#else
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
               : "memory");
#endif
}

}  // namespace kernd::gpu
