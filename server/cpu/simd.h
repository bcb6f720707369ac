// Vectors of one instruction set, and elementwise work on rows of any dtype. Included only by the *_tile.cc sources,
// each of which is compiled once per instruction set with KERND_ISA naming its namespace.
//
// Rule of these sources: nothing from the standard library that is a template or inline. The linker keeps one copy of
// such a function for the whole program, and it might be the one that was compiled for AVX-512.
#pragma once

#ifndef KERND_ISA
#error "simd.h belongs to sources that are compiled once per instruction set"
#endif

#include <cstdint>
#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "kernd/kernels/dtype.h"
#include "server/cpu/float8_table.h"

namespace kernd::cpu::KERND_ISA {

using Index = std::int64_t;

// kWidth floats fill a register; a micro-kernel holds kRows x 2 registers of sums.
#if defined(__AVX512F__)
inline constexpr int kWidth = 16, kRows = 12;
#elif defined(__AVX2__)
inline constexpr int kWidth = 8, kRows = 6;
#else
inline constexpr int kWidth = 4, kRows = 6;
#endif

typedef float F32 __attribute__((vector_size(4 * kWidth)));
typedef double F64 __attribute__((vector_size(4 * kWidth)));
typedef std::int32_t I32 __attribute__((vector_size(4 * kWidth)));
typedef std::uint16_t U16 __attribute__((vector_size(2 * kWidth)));
typedef std::uint32_t U32 __attribute__((vector_size(4 * kWidth)));

template <typename T>
struct VectorOf;
template <>
struct VectorOf<float> {
  typedef F32 Type;
};
template <>
struct VectorOf<double> {
  typedef F64 Type;
};
template <typename T>
using Vector = typename VectorOf<T>::Type;
template <typename T>
inline constexpr int kLanes = 4 * kWidth / static_cast<int>(sizeof(T));

template <typename T>
inline T Min(T a, T b) {
  return b < a ? b : a;
}
template <typename T>
inline T Max(T a, T b) {
  return a < b ? b : a;
}

template <typename T>
inline Vector<T> Splat(T x) {
  return x - Vector<T>{};
}  // x - 0, unlike x + 0, is x itself: a mere broadcast

template <typename V>
inline V LoadVector(const void* p) {
  V v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
template <typename V>
inline void StoreVector(void* p, V v) {
  __builtin_memcpy(p, &v, sizeof v);
}

// a * b + c, fused where the hardware can: by name, so that every instantiation of a kernel rounds alike.
inline F32 Fma(F32 a, F32 b, F32 c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__FMA__)
  return _mm256_fmadd_ps(a, b, c);
#elif defined(__aarch64__)
  return vfmaq_f32(c, a, b);
#else
  return a * b + c;
#endif
}
inline F64 Fma(F64 a, F64 b, F64 c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_pd(a, b, c);
#elif defined(__FMA__)
  return _mm256_fmadd_pd(a, b, c);
#elif defined(__aarch64__)
  return vfmaq_f64(c, a, b);
#else
  return a * b + c;
#endif
}

inline F32 VectorMax(F32 a, F32 b) {
  return a > b ? a : b;
}

inline float HorizontalMax(F32 v) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps(v);
#else
  float x = v[0];
  for (int i = 1; i < kWidth; ++i) x = x > v[i] ? x : v[i];
  return x;
#endif
}

// exp(x) within 1 ulp; 0 below the normal range (minus infinity included), infinity above it, NaN for NaN, exactly 1
// for 0. exp(x) = 2^n exp(r) with |r| <= ln(2)/2, and a polynomial fitted to the relative error of exp(r).
inline F32 Exp(F32 x) {
  const F32 magic = Splat(12582912.0f + 127.0f);  // 1.5 * 2^23: adding it rounds to an integer; + 127: biased already
  const F32 t = Fma(x, Splat(1.44269504f), magic);
  const F32 n = t - magic;
  F32 r = Fma(n, Splat(-0.693145752f), x);
  r = Fma(n, Splat(-1.42860677e-6f), r);
  F32 p = Fma(Splat(0.001381459878757596f), r, Splat(0.008368716575205326f));
  p = Fma(p, r, Splat(0.04166838899254799f));
  p = Fma(p, r, Splat(0.1666652113199234f));
  p = Fma(p, r, Splat(0.4999999403953552f));
  p = Fma(p, r * r, r) + 1.0f;
  p = p * (F32)((U32)t << 23);  // by multiplication, so that a NaN stays one
  p = x < -87.3365f ? Splat(0.0f) : p;
  return x > 88.3762f ? Splat(__builtin_inff()) : p;
}

// tanh(x) within 1.4 ulp; +-1 for +-infinity, NaN for NaN.
inline F32 Tanh(F32 x) {
  const F32 a = x < 0.0f ? -x : x;
  const F32 z = x * x;
  F32 p = Fma(Splat(-0.00570494681596756f), z, Splat(0.020639052614569664f));
  p = Fma(p, z, Splat(-0.05373970419168472f));
  p = Fma(p, z, Splat(0.13331441581249237f));
  p = Fma(p, z, Splat(-0.3333328068256378f));
  const F32 small = Fma(p * z, x, x);
  const F32 big = 1.0f - 2.0f / (Exp(2.0f * a) + 1.0f);
  return a < 0.625f ? small : x < 0.0f ? -big : big;
}

// ---- one element ----

inline float FromBits(std::uint32_t bits) {
  float f;
  __builtin_memcpy(&f, &bits, 4);
  return f;
}
inline std::uint32_t ToBits(float f) {
  std::uint32_t bits;
  __builtin_memcpy(&bits, &f, 4);
  return bits;
}

inline float F16ToF32(std::uint16_t h) {
  const std::uint32_t sign = static_cast<std::uint32_t>(h & 0x8000) << 16, magnitude = h & 0x7fff;
  if (magnitude >= 0x7c00) return FromBits(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
  // Exact for normals and subnormals alike: the exponent is off by 112, which one multiplication puts right.
  return FromBits(ToBits(FromBits(magnitude << 13) * 0x1p112f) | sign);
}

inline std::uint16_t F32ToF16(float f) {
  const std::uint32_t bits = ToBits(f), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return static_cast<std::uint16_t>(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
  if (magnitude >= 0x477ff000) return static_cast<std::uint16_t>(sign | 0x7c00);  // 65520 and up round to infinity
  if (magnitude < 0x38800000) {  // subnormal: adding 0.5 leaves the rounded multiple of 2^-24 in the low bits
    return static_cast<std::uint16_t>(sign | (ToBits(FromBits(magnitude) + 0.5f) - 0x3f000000));
  }
  return static_cast<std::uint16_t>(sign | ((magnitude + 0xfff + (magnitude >> 13 & 1) - 0x38000000) >> 13));
}

inline float BF16ToF32(std::uint16_t h) {
  return FromBits(static_cast<std::uint32_t>(h) << 16);
}

inline std::uint16_t F32ToBF16(float f) {
  const std::uint32_t bits = ToBits(f);
  const std::uint32_t rounded = bits + 0x7fff + (bits >> 16 & 1), nan = bits | 0x400000;
  return static_cast<std::uint16_t>((f != f ? nan : rounded) >> 16);
}

// ---- rows ----

template <typename S>
inline S LoadScalar(const char* p) {
  S s;
  __builtin_memcpy(&s, p, sizeof s);
  return s;
}

// dst[i] = element i of `src`, which need not be aligned. I8 and I32 become the same number (I32 rounded).
template <typename T>
inline void LoadRow(DataType type, const void* src, Index n, T* dst) {
  const char* s = static_cast<const char*>(src);
  Index i = 0;
  switch (type) {
    case DataType::kF64:
      for (; i < n; ++i) dst[i] = static_cast<T>(LoadScalar<double>(s + 8 * i));
      return;
    case DataType::kF32:
      for (; i < n; ++i) dst[i] = LoadScalar<float>(s + 4 * i);
      return;
    case DataType::kI32:
      for (; i < n; ++i) dst[i] = static_cast<T>(LoadScalar<std::int32_t>(s + 4 * i));
      return;
    case DataType::kF16:
#if defined(__AVX512F__)
      if constexpr (sizeof(T) == 4) {
        for (; i + 16 <= n; i += 16) StoreVector<F32>(dst + i, _mm512_cvtph_ps(LoadVector<__m256i>(s + 2 * i)));
      }
#elif defined(__F16C__)
      if constexpr (sizeof(T) == 4) {
        for (; i + 8 <= n; i += 8) StoreVector<F32>(dst + i, _mm256_cvtph_ps(LoadVector<__m128i>(s + 2 * i)));
      }
#endif
      for (; i < n; ++i) dst[i] = F16ToF32(LoadScalar<std::uint16_t>(s + 2 * i));
      return;
    case DataType::kBF16:
      if constexpr (sizeof(T) == 4) {
        for (; i + kWidth <= n; i += kWidth) {
          const U32 wide = __builtin_convertvector(LoadVector<U16>(s + 2 * i), U32) << 16;
          StoreVector(dst + i, wide);
        }
      }
      for (; i < n; ++i) dst[i] = BF16ToF32(LoadScalar<std::uint16_t>(s + 2 * i));
      return;
    case DataType::kF8E4M3:
    case DataType::kF8E5M2: {
      const float* table = type == DataType::kF8E4M3 ? kE4M3Table : kE5M2Table;
      for (; i < n; ++i) dst[i] = table[static_cast<unsigned char>(s[i])];
      return;
    }
    case DataType::kI8:
      for (; i < n; ++i) dst[i] = static_cast<signed char>(s[i]);
      return;
    default: __builtin_trap();  // no other dtype passes validation
  }
}

// Element i of `dst`, which need not be aligned, = src[i], rounded to nearest even.
inline void StoreRow(DataType type, const float* src, Index n, void* dst) {
  char* d = static_cast<char*>(dst);
  Index i = 0;
  switch (type) {
    case DataType::kF32: __builtin_memcpy(d, src, static_cast<std::size_t>(4 * n)); return;
    case DataType::kF16:
#if defined(__AVX512F__)
      for (; i + 16 <= n; i += 16) StoreVector<__m256i>(d + 2 * i, _mm512_cvtps_ph(LoadVector<F32>(src + i), 0));
#elif defined(__F16C__)
      for (; i + 8 <= n; i += 8) StoreVector<__m128i>(d + 2 * i, _mm256_cvtps_ph(LoadVector<F32>(src + i), 0));
#endif
      for (; i < n; ++i) {
        const std::uint16_t h = F32ToF16(src[i]);
        __builtin_memcpy(d + 2 * i, &h, 2);
      }
      return;
    case DataType::kBF16:
      for (; i < n; ++i) {
        const std::uint16_t h = F32ToBF16(src[i]);
        __builtin_memcpy(d + 2 * i, &h, 2);
      }
      return;
    default: __builtin_trap();  // no other dtype passes validation
  }
}

// ---- transposition ----

// Transposes the kWidth x kWidth block in `rows` in place: log2(kWidth) perfect shuffles of rows i and i + kWidth / 2.
template <int... L>
struct Lanes {};
template <int N, int... L>
struct MakeLanes : MakeLanes<N - 1, N - 1, L...> {};
template <int... L>
struct MakeLanes<0, L...> {
  typedef Lanes<L...> Type;
};
template <int... L>
inline void Interleave(F32 a, F32 b, F32& lo, F32& hi, Lanes<L...>) {
  lo = __builtin_shufflevector(a, b, (L % 2 == 0 ? L / 2 : kWidth + L / 2)...);
  hi = __builtin_shufflevector(a, b, (L % 2 == 0 ? kWidth / 2 + L / 2 : kWidth + kWidth / 2 + L / 2)...);
}
inline void Transpose(F32 (&rows)[kWidth]) {
  F32 other[kWidth];
  for (int step = 1; step < kWidth; step *= 2) {
    for (int i = 0; i < kWidth / 2; ++i) {
      Interleave(rows[i], rows[i + kWidth / 2], other[2 * i], other[2 * i + 1], typename MakeLanes<kWidth>::Type());
    }
    for (int i = 0; i < kWidth; ++i) rows[i] = other[i];
  }
}

}  // namespace kernd::cpu::KERND_ISA
