#include "kernels/reference/convert.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace kernd::reference {
namespace {

// A sign bit, then exponent, then mantissa. `largest` is the magnitude's bits of the largest finite value; in an IEEE
// format the next bits are infinity, in e4m3fn they are NaN.
struct FloatFormat {
  int mantissa_bits;
  int bias;
  std::uint32_t sign, largest, overflow, nan;

  int smallest_exponent() const { return 1 - bias; }  // of the normal numbers
};

constexpr FloatFormat kHalf = {10, 15, 0x8000, 0x7bff, 0x7c00, 0x7e00};
constexpr FloatFormat kBrain = {7, 127, 0x8000, 0x7f7f, 0x7f80, 0x7fc0};
constexpr FloatFormat kE4M3 = {3, 7, 0x80, 0x7e, 0x7f, 0x7f};
constexpr FloatFormat kE5M2 = {2, 15, 0x80, 0x7b, 0x7c, 0x7e};

double Decode(const FloatFormat& f, std::uint32_t bits) {
  const double sign = bits & f.sign ? -1.0 : 1.0;
  const std::uint32_t magnitude = bits & (f.sign - 1);
  if (magnitude > f.largest) {
    // Only an IEEE format has an `overflow` that is not its NaN.
    const bool infinite = magnitude == f.overflow && f.overflow != f.nan;
    using Limits = std::numeric_limits<double>;
    return std::copysign(infinite ? Limits::infinity() : Limits::quiet_NaN(), sign);
  }
  const int exponent = static_cast<int>(magnitude >> f.mantissa_bits);
  const std::uint32_t implicit_one = 1u << f.mantissa_bits;
  const std::uint32_t fraction = magnitude & (implicit_one - 1);
  if (exponent == 0) return sign * std::ldexp(fraction, f.smallest_exponent() - f.mantissa_bits);
  return sign * std::ldexp(implicit_one + fraction, exponent - f.bias - f.mantissa_bits);
}

std::uint32_t Encode(const FloatFormat& f, double value) {
  const std::uint32_t sign = std::signbit(value) ? f.sign : 0;
  if (std::isnan(value)) return sign | f.nan;
  if (std::isinf(value)) return sign | f.overflow;
  const double x = std::abs(value);
  if (x == 0) return sign;

  // The spacing of the format at x is 2^(exponent - mantissa_bits), with the subnormals spaced as the smallest normals.
  const int exponent = std::max(std::ilogb(x), f.smallest_exponent());
  const auto steps = static_cast<std::int64_t>(std::nearbyint(std::ldexp(x, f.mantissa_bits - exponent)));
  // Counted in steps from the start of its binade, a carry out of the mantissa lands in the exponent by itself.
  const std::int64_t magnitude = (static_cast<std::int64_t>(exponent + f.bias - 1) << f.mantissa_bits) + steps;
  return sign | (magnitude > f.largest ? f.overflow : static_cast<std::uint32_t>(magnitude));
}

template <typename T>
T Read(const void* data, std::int64_t index) {
  T value;
  std::memcpy(&value, static_cast<const std::byte*>(data) + index * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return value;
}

template <typename T>
void Write(T value, void* data, std::int64_t index) {
  std::memcpy(static_cast<std::byte*>(data) + index * static_cast<std::int64_t>(sizeof(T)), &value, sizeof(T));
}

template <typename T>
T ToInteger(double value) {
  if (std::isnan(value)) return 0;
  const double rounded = std::nearbyint(value);
  // 2^digits is a double, while the largest I64 is not: compare with the former.
  const double end = std::ldexp(1.0, std::numeric_limits<T>::digits);
  if (rounded >= end) return std::numeric_limits<T>::max();
  if (rounded < static_cast<double>(std::numeric_limits<T>::min())) return std::numeric_limits<T>::min();
  return static_cast<T>(rounded);
}

// A conversion out of a type's range is undefined in C++; its result is infinity on every IEEE machine, said here.
float ToFloat(double value) {
  constexpr double kEnd = 0x1.ffffffp127;  // halfway between the largest float and 2^128, and rounds up
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  if (std::abs(value) >= kEnd) return value < 0 ? -kInfinity : kInfinity;
  return static_cast<float>(value);
}

}  // namespace

double Load(DataType type, const void* data, std::int64_t index) {
  switch (type) {
    case DataType::kInvalid: break;
    case DataType::kBool: return Read<std::uint8_t>(data, index) != 0 ? 1.0 : 0.0;
    case DataType::kU8: return Read<std::uint8_t>(data, index);
    case DataType::kI8: return Read<std::int8_t>(data, index);
    case DataType::kI32: return Read<std::int32_t>(data, index);
    case DataType::kI64: return static_cast<double>(Read<std::int64_t>(data, index));
    case DataType::kF16: return Decode(kHalf, Read<std::uint16_t>(data, index));
    case DataType::kBF16: return Decode(kBrain, Read<std::uint16_t>(data, index));
    case DataType::kF32: return Read<float>(data, index);
    case DataType::kF64: return Read<double>(data, index);
    case DataType::kF8E4M3: return Decode(kE4M3, Read<std::uint8_t>(data, index));
    case DataType::kF8E5M2: return Decode(kE5M2, Read<std::uint8_t>(data, index));
  }
  return std::numeric_limits<double>::quiet_NaN();
}

void Store(DataType type, double value, void* data, std::int64_t index) {
  switch (type) {
    case DataType::kInvalid: return;
    case DataType::kBool: return Write<std::uint8_t>(value != 0, data, index);
    case DataType::kU8: return Write(ToInteger<std::uint8_t>(value), data, index);
    case DataType::kI8: return Write(ToInteger<std::int8_t>(value), data, index);
    case DataType::kI32: return Write(ToInteger<std::int32_t>(value), data, index);
    case DataType::kI64: return Write(ToInteger<std::int64_t>(value), data, index);
    case DataType::kF16: return Write(static_cast<std::uint16_t>(Encode(kHalf, value)), data, index);
    case DataType::kBF16: return Write(static_cast<std::uint16_t>(Encode(kBrain, value)), data, index);
    case DataType::kF32: return Write(ToFloat(value), data, index);
    case DataType::kF64: return Write(value, data, index);
    case DataType::kF8E4M3: return Write(static_cast<std::uint8_t>(Encode(kE4M3, value)), data, index);
    case DataType::kF8E5M2: return Write(static_cast<std::uint8_t>(Encode(kE5M2, value)), data, index);
  }
}

double Round(DataType type, double value) {
  std::byte element[8];
  Store(type, value, element, 0);
  return Load(type, element, 0);
}

std::vector<double> LoadAll(DataType type, const void* data, std::int64_t count) {
  std::vector<double> values(count);
  for (std::int64_t i = 0; i < count; ++i) values[i] = Load(type, data, i);
  return values;
}

std::vector<std::byte> StoreAll(DataType type, absl::Span<const double> values) {
  std::vector<std::byte> bytes(values.size() * ElementBytes(type));
  for (std::size_t i = 0; i < values.size(); ++i) Store(type, values[i], bytes.data(), static_cast<std::int64_t>(i));
  return bytes;
}

}  // namespace kernd::reference
