// The device side of matmul_epilogue.h, one element at a time. Every branch here is the same for a whole launch.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "kernels/gpu/matmul_epilogue.h"

namespace kernd::gpu {

// Of what is not negative. Most sizes are below 2^32, where a division is several times cheaper.
__device__ inline std::int64_t Divide(std::int64_t x, std::int64_t by) {
  if (((x | by) >> 32) == 0) return static_cast<std::uint32_t>(x) / static_cast<std::uint32_t>(by);
  return x / by;
}

__device__ inline std::int64_t OffsetOf(const BatchStrides& batch, std::int64_t index) {
  std::int64_t offset = 0;
  for (int i = batch.rank - 1; i >= 0; --i) {
    const std::int64_t outer = Divide(index, batch.shape[i]);
    offset += (index - outer * batch.shape[i]) * batch.strides[i];
    index = outer;
  }
  return offset;
}

// Element `at` of an array of one of the types that results, C, bias and sums have. T: float or double.
template <typename T>
__device__ inline T LoadElement(DataType type, const void* data, std::int64_t at) {
  switch (type) {
    case DataType::kF16: return static_cast<T>(__half2float(static_cast<const __half*>(data)[at]));
    case DataType::kBF16: return static_cast<T>(__bfloat162float(static_cast<const __nv_bfloat16*>(data)[at]));
    case DataType::kF64: return static_cast<T>(static_cast<const double*>(data)[at]);
    case DataType::kI32: return static_cast<T>(static_cast<const std::int32_t*>(data)[at]);
    default: return static_cast<T>(static_cast<const float*>(data)[at]);
  }
}

// Half to even; integers saturate, and NaN gives 0.
template <typename T>
__device__ inline void StoreElement(DataType type, T x, void* data, std::int64_t at) {
  switch (type) {
    case DataType::kF16: static_cast<__half*>(data)[at] = __float2half_rn(static_cast<float>(x)); return;
    case DataType::kBF16: static_cast<__nv_bfloat16*>(data)[at] = __float2bfloat16_rn(static_cast<float>(x)); return;
    case DataType::kF64: static_cast<double*>(data)[at] = x; return;
    case DataType::kI32:
      static_cast<std::int32_t*>(data)[at] = isnan(x) ? 0 : __double2int_rn(static_cast<double>(x));
      return;
    default: static_cast<float*>(data)[at] = static_cast<float>(x); return;
  }
}

// Which operations are fused is written out, so that all kernels that share this code agree to the bit.
__device__ inline float Mul(float x, float y) {
  return __fmul_rn(x, y);
}
__device__ inline double Mul(double x, double y) {
  return __dmul_rn(x, y);
}
__device__ inline float Add(float x, float y) {
  return __fadd_rn(x, y);
}
__device__ inline double Add(double x, double y) {
  return __dadd_rn(x, y);
}

template <typename T>
__device__ inline T Activate(Activation activation, T x) {
  switch (activation) {
    case Activation::kNone: return x;
    case Activation::kRelu: return x < 0 ? T{0} : x;  // in this order a NaN stays
    case Activation::kGelu: {
      const T cube = Mul(Mul(static_cast<T>(0.044715), x), x);
      const T inner = Mul(static_cast<T>(0.79788456080286535588), fma(cube, x, x));
      return Mul(Mul(static_cast<T>(0.5), x), Add(T{1}, tanh(inner)));
    }
    case Activation::kSilu: return x / Add(T{1}, exp(-x));
  }
  return x;
}

// Calls `use(std::integral_constant<DataType, type>)`: one branch for all that `use` does.
template <typename Use>
__device__ inline void WithType(DataType type, const Use& use) {
  switch (type) {
    case DataType::kF16: use(std::integral_constant<DataType, DataType::kF16>()); return;
    case DataType::kBF16: use(std::integral_constant<DataType, DataType::kBF16>()); return;
    case DataType::kF64: use(std::integral_constant<DataType, DataType::kF64>()); return;
    case DataType::kI32: use(std::integral_constant<DataType, DataType::kI32>()); return;
    default: use(std::integral_constant<DataType, DataType::kF32>()); return;
  }
}

// One branch for all of them.
template <int kEach, typename T>
__device__ inline void ActivateAll(Activation activation, T (&x)[kEach]) {
  const auto all = [&](auto constant) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) x[i] = Activate(constant(), x[i]);
  };
  switch (activation) {
    case Activation::kNone: return;
    case Activation::kRelu: return all(std::integral_constant<Activation, Activation::kRelu>());
    case Activation::kGelu: return all(std::integral_constant<Activation, Activation::kGelu>());
    case Activation::kSilu: return all(std::integral_constant<Activation, Activation::kSilu>());
  }
}

// D[row, col] of a batch item from its sum. The item's C starts at `c_offset`.
template <typename T, typename Sum>
__device__ inline T Finish(const MatmulEpilogue& e, Sum sum, std::int64_t c_offset, std::int64_t row,
                           std::int64_t col) {
  T factor = static_cast<T>(e.alpha);
  if (e.a_scale != nullptr) factor = Mul(factor, static_cast<T>(e.a_scale[row * e.a_scale_stride]));
  if (e.b_scale != nullptr) factor = Mul(factor, static_cast<T>(e.b_scale[col * e.b_scale_stride]));
  T x = Mul(static_cast<T>(sum), factor);
  if (e.c != nullptr) x = fma(static_cast<T>(e.beta), LoadElement<T>(e.output, e.c, c_offset + row * e.ldc + col), x);
  if (e.bias != nullptr) x = Add(x, LoadElement<T>(e.bias_type, e.bias, col));
  return Activate(e.activation, x);
}

// The same, stored to batch item `item`. T: what the epilogue computes in.
template <typename T, typename Sum>
__device__ inline void FinishAndStoreIn(const MatmulEpilogue& e, Sum sum, std::int64_t item, std::int64_t c_offset,
                                        std::int64_t row, std::int64_t col) {
  T x = static_cast<T>(sum);
  if (!e.plain) {
    x = Finish<T>(e, sum, c_offset, row, col);
  } else if (e.activation == Activation::kRelu) {
    x = Activate(Activation::kRelu, x);
  }
  StoreElement(e.output, x, e.d, (item * e.m + row) * e.n + col);
}
template <typename Sum>
__device__ inline void FinishAndStore(const MatmulEpilogue& e, Sum sum, std::int64_t item, std::int64_t c_offset,
                                      std::int64_t row, std::int64_t col) {
  if (e.wide || std::is_same_v<Sum, double>) {
    FinishAndStoreIn<double>(e, sum, item, c_offset, row, col);
  } else {
    FinishAndStoreIn<float>(e, sum, item, c_offset, row, col);
  }
}

}  // namespace kernd::gpu
