// CUDA's language as far as the kernels use it, for the host's compiler (given with -include). It stands for the header
// of that name, which nvcc includes by itself.
#pragma once

#include <math.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/emulator/cuda/cuda_runtime_api.h"
#include "kernels/emulator/emulator.h"
#include "kernels/emulator/mma_ops.h"
#include "kernels/emulator/warp_ops.h"

#define __host__
#define __device__
#define __global__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
// Arrays of a fixed size: blocks of a host thread run one after the other. Dynamic shared memory: DynamicShared().
#define __shared__ static thread_local

#define threadIdx (::kernd::emulator::ThreadIndex())
#define blockIdx (::kernd::emulator::BlockIndex())
#define blockDim (::kernd::emulator::BlockDim())
#define gridDim (::kernd::emulator::GridDim())

struct int2 {
  int x, y;
};
struct uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline int2 make_int2(int x, int y) {
  return {x, y};
}
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
  return {x, y, z, w};
}
inline float2 make_float2(float x, float y) {
  return {x, y};
}
inline float4 make_float4(float x, float y, float z, float w) {
  return {x, y, z, w};
}

template <typename T>
T min(T a, T b) {
  return b < a ? b : a;
}
template <typename T>
T max(T a, T b) {
  return a < b ? b : a;
}

template <typename To, typename From>
To KerndBits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}
inline float __uint_as_float(unsigned x) {
  return KerndBits<float>(x);
}
inline unsigned __float_as_uint(float x) {
  return KerndBits<unsigned>(x);
}
inline float __int_as_float(int x) {
  return KerndBits<float>(x);
}

// Rounded on their own: never part of a fused operation, which g++ makes of nothing unless it is told to.
inline float __fmul_rn(float x, float y) {
  return x * y;
}
inline float __fadd_rn(float x, float y) {
  return x + y;
}
inline double __dmul_rn(double x, double y) {
  return x * y;
}
inline double __dadd_rn(double x, double y) {
  return x + y;
}
inline int __double2int_rn(double x) {
  return x >= 2147483647.0 ? 2147483647 : x <= -2147483648.0 ? -2147483647 - 1 : static_cast<int>(nearbyint(x));
}

inline unsigned atomicOr(unsigned* address, unsigned bits) {
  const unsigned before = *address;
  *address |= bits;
  return before;
}

inline void __syncthreads() {
  ::kernd::emulator::Barrier();
}
inline int __syncthreads_or(int value) {
  return ::kernd::emulator::BarrierOr(value != 0) ? 1 : 0;
}
// Whole warps only: masks are what a device checks as little.
inline void __syncwarp() {
  ::kernd::emulator::WarpBarrier();
}
inline int __any_sync(unsigned, int value) {
  return ::kernd::emulator::WarpAny(value != 0) ? 1 : 0;
}
template <typename T>
T __shfl_xor_sync(unsigned, T value, unsigned mask) {
  return KerndBits<T>(::kernd::emulator::ShuffleXor(KerndBits<unsigned>(value), mask));
}
template <typename T>
T __shfl_sync(unsigned, T value, unsigned lane) {
  return KerndBits<T>(::kernd::emulator::ShuffleFrom(KerndBits<unsigned>(value), lane));
}
