// Counts elements that are no numbers, for --debug-checks: by their bits, so that one loop serves every type.
// Tile: a thread reads 16 bytes at a time, in strides of the grid; a block of 256 threads adds up in shared memory.
// Limits: the data start at a multiple of 16 bytes. The last bytes that fill no vector are read one element at a time.
// Time: reading; 4 blocks of a multiprocessor keep enough loads in flight.
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernd/kernels/gpu.h"
#include "kernd/kernels/non_finite.h"
#include "kernels/gpu/cuda.h"

namespace kernd {
namespace {

constexpr int kThreads = 256, kBlocksPerSm = 4;

template <typename Bits>
struct Counter {
  Bits exponent, mantissa;
  unsigned long long nan = 0, inf = 0;

  __device__ void Add(Bits bits) {
    const bool finite = (bits & exponent) != exponent, infinite = (bits & mantissa) == 0;
    nan += !finite && !infinite;
    inf += !finite && infinite;
  }
};

template <typename Bits>
__global__ void __launch_bounds__(kThreads)
    Scan(const Bits* data, std::int64_t elements, Bits exponent, Bits mantissa, unsigned long long* counts) {
  constexpr int kVector = 16 / sizeof(Bits);
  Counter<Bits> counter{exponent, mantissa};
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const std::int64_t threads = static_cast<std::int64_t>(gridDim.x) * kThreads, vectors = elements / kVector;
  for (std::int64_t i = thread; i < vectors; i += threads) {
    const uint4 vector = reinterpret_cast<const uint4*>(data)[i];
    Bits values[kVector];
    memcpy(values, &vector, 16);
#pragma unroll
    for (int j = 0; j < kVector; ++j) counter.Add(values[j]);
  }
  for (std::int64_t i = vectors * kVector + thread; i < elements; i += threads) counter.Add(data[i]);

  __shared__ unsigned long long sums[2];
  if (threadIdx.x < 2) sums[threadIdx.x] = 0;
  __syncthreads();
  if (counter.nan != 0) atomicAdd(&sums[0], counter.nan);
  if (counter.inf != 0) atomicAdd(&sums[1], counter.inf);
  __syncthreads();
  if (threadIdx.x < 2 && sums[threadIdx.x] != 0) atomicAdd(&counts[threadIdx.x], sums[threadIdx.x]);
}

template <typename Bits>
absl::Status LaunchScan(const void* data, std::int64_t elements, NonFiniteBits bits, std::uint64_t* counts,
                        const DeviceInfo& device, Stream stream) {
  const std::int64_t wanted = (elements * static_cast<std::int64_t>(sizeof(Bits)) / 16 + kThreads) / kThreads;
  const auto blocks = static_cast<unsigned>(std::min<std::int64_t>(wanted, device.multiprocessors * kBlocksPerSm));
  static_assert(sizeof(unsigned long long) == sizeof(std::uint64_t));
  Scan<Bits><<<blocks, kThreads, 0, stream>>>(static_cast<const Bits*>(data), elements,
                                              static_cast<Bits>(bits.exponent), static_cast<Bits>(bits.mantissa),
                                              reinterpret_cast<unsigned long long*>(counts));
  KERND_CUDA_LAUNCHED("Scan");
  return absl::OkStatus();
}

}  // namespace

absl::Status EnqueueScan(DataType type, const void* data, std::int64_t elements, std::uint64_t* counts,
                         const DeviceInfo& device, Stream stream) {
  const NonFiniteBits bits = NonFiniteBitsOf(type);
  if (elements == 0 || bits.exponent == 0) return absl::OkStatus();
  switch (ElementBytes(type)) {
    case 1: return LaunchScan<std::uint8_t>(data, elements, bits, counts, device, stream);
    case 2: return LaunchScan<std::uint16_t>(data, elements, bits, counts, device, stream);
    case 4: return LaunchScan<std::uint32_t>(data, elements, bits, counts, device, stream);
    default: return LaunchScan<std::uint64_t>(data, elements, bits, counts, device, stream);
  }
}

}  // namespace kernd
