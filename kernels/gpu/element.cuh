// Elements of any floating dtype as F32, in device code that learns the dtype at run time: a branch that all threads
// take alike, small beside the arithmetic on what it loads.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "kernd/kernels/dtype.h"

namespace kernd::gpu {

__device__ inline float Float8(std::uint8_t bits, DataType type) {
  const __nv_fp8_interpretation_t format = type == DataType::kF8E4M3 ? __NV_E4M3 : __NV_E5M2;
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(bits, format)));
}

__device__ inline float HalfBits(std::uint32_t bits) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(bits & 0xffff)));
}

__device__ inline float Bfloat16Bits(std::uint32_t bits) {
  return __uint_as_float(bits << 16);
}

// Element `at` of F16, BF16, F32, F8E4M3 or F8E5M2.
__device__ inline float LoadElement(const void* base, std::int64_t at, DataType type) {
  switch (type) {
    case DataType::kF32: return static_cast<const float*>(base)[at];
    case DataType::kF16: return HalfBits(static_cast<const std::uint16_t*>(base)[at]);
    case DataType::kBF16: return Bfloat16Bits(static_cast<const std::uint16_t*>(base)[at]);
    default: return Float8(static_cast<const std::uint8_t*>(base)[at], type);
  }
}

// F16, BF16 or F32, rounded to nearest even; past the largest: infinity.
__device__ inline void StoreElement(void* base, std::int64_t at, DataType type, float x) {
  switch (type) {
    case DataType::kF16: static_cast<__half*>(base)[at] = __float2half_rn(x); return;
    case DataType::kBF16: static_cast<__nv_bfloat16*>(base)[at] = __float2bfloat16_rn(x); return;
    default: static_cast<float*>(base)[at] = x; return;
  }
}

inline constexpr int kOctet = 8;

// Eight elements as they lie in memory: 2, 4 or 8 words. Fetching and converting are apart so that loads can overlap.
struct RawOctet {
  std::uint32_t words[8];
};

// Whether eight elements of `size` bytes at `address` can be fetched at once: it is as aligned as their loads.
__device__ inline bool CanFetchOctet(const void* address, int size) {
  const unsigned mask = size == 1 ? 7 : 15;
  return (static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(address)) & mask) == 0;
}

__device__ inline RawOctet FetchOctet(const void* address, int size) {
  RawOctet raw;
  if (size == 1) {
    const uint2 low = *static_cast<const uint2*>(address);
    raw.words[0] = low.x, raw.words[1] = low.y;
    return raw;
  }
  const uint4 low = static_cast<const uint4*>(address)[0];
  raw.words[0] = low.x, raw.words[1] = low.y, raw.words[2] = low.z, raw.words[3] = low.w;
  if (size == 2) return raw;
  const uint4 high = static_cast<const uint4*>(address)[1];
  raw.words[4] = high.x, raw.words[5] = high.y, raw.words[6] = high.z, raw.words[7] = high.w;
  return raw;
}

__device__ inline void ConvertOctet(const RawOctet& raw, DataType type, float (&x)[kOctet]) {
  if (type == DataType::kF32) {
#pragma unroll
    for (int i = 0; i < kOctet; ++i) x[i] = __uint_as_float(raw.words[i]);
  } else if (type == DataType::kF16) {
#pragma unroll
    for (int i = 0; i < kOctet; ++i) x[i] = HalfBits(raw.words[i / 2] >> (16 * (i % 2)));
  } else if (type == DataType::kBF16) {
#pragma unroll
    for (int i = 0; i < kOctet; ++i) x[i] = Bfloat16Bits(raw.words[i / 2] >> (16 * (i % 2)));
  } else {
    const __nv_fp8_interpretation_t format = type == DataType::kF8E4M3 ? __NV_E4M3 : __NV_E5M2;
#pragma unroll
    for (int i = 0; i < kOctet; i += 2) {
      const auto pair = static_cast<__nv_fp8x2_storage_t>(raw.words[i / 4] >> (8 * (i % 4)));
      const float2 both = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(pair, format)));
      x[i] = both.x, x[i + 1] = both.y;
    }
  }
}

// Where an octet is, and how many of its elements exist; none: never looked at.
struct OctetSource {
  const char* address;
  std::int64_t count;
};

// The threads of a block, kThreads of them, bring a matrix of kElements, kCols a row, into shared memory as F32, 0
// where it has no elements; a thread keeps kInFlight octets in flight. `from(row, col)` is the octet's OctetSource,
// `to(row, col)` where its first element goes, aligned to 16 bytes if kStride is 1; the others follow at distances of
// kStride. False where this thread met infinity or NaN.
template <unsigned kElements, unsigned kCols, unsigned kStride, unsigned kThreads, unsigned kInFlight, typename From,
          typename To>
__device__ inline bool BringMatrix(DataType type, int type_bytes, const From& from, const To& to) {
  constexpr unsigned kOctets = kElements / kOctet;
  float poison = 0;  // becomes NaN with the first infinity or NaN: 0 * x is 0 or NaN
#pragma unroll 1
  for (unsigned first = threadIdx.x; first < kOctets; first += kInFlight * kThreads) {
    RawOctet raw[kInFlight];
    bool fetched[kInFlight];
#pragma unroll
    for (unsigned i = 0; i < kInFlight; ++i) {
      const unsigned at = (first + i * kThreads) * kOctet;
      if (at >= kElements) break;
      const OctetSource source = from(at / kCols, at % kCols);
      fetched[i] = source.count >= kOctet && CanFetchOctet(source.address, type_bytes);
      if (fetched[i]) raw[i] = FetchOctet(source.address, type_bytes);
    }
#pragma unroll
    for (unsigned i = 0; i < kInFlight; ++i) {
      const unsigned at = (first + i * kThreads) * kOctet;
      if (at >= kElements) break;
      float* const place = to(at / kCols, at % kCols);
      if (fetched[i]) {
        float x[kOctet];
        ConvertOctet(raw[i], type, x);
#pragma unroll
        for (int e = 0; e < kOctet; ++e) poison = fmaf(x[e], 0.0f, poison);
        if constexpr (kStride == 1) {
          reinterpret_cast<float4*>(place)[0] = make_float4(x[0], x[1], x[2], x[3]);
          reinterpret_cast<float4*>(place)[1] = make_float4(x[4], x[5], x[6], x[7]);
        } else {
#pragma unroll
          for (int e = 0; e < kOctet; ++e) place[e * kStride] = x[e];
        }
        continue;
      }
      const OctetSource source = from(at / kCols, at % kCols);
#pragma unroll 1
      for (int e = 0; e < kOctet; ++e) {
        const float x = e < source.count ? LoadElement(source.address, e, type) : 0.0f;
        poison = fmaf(x, 0.0f, poison);
        place[e * kStride] = x;
      }
    }
  }
  return poison == 0;
}

}  // namespace kernd::gpu
