// Element types of tensors. The names are those of the wire format (proto/kernd/v1/common.proto) without the prefix.
#pragma once

#include <cstdint>
#include <string_view>

namespace kernd {

enum class DataType : std::uint8_t {
  kInvalid = 0,
  kBool,  // one byte; any non-zero byte is true
  kU8,
  kI8,
  kI32,
  kI64,
  kF16,
  kBF16,
  kF32,
  kF64,
  kF8E4M3,  // OCP e4m3fn: no infinity, NaN 0x7f and 0xff, largest 448
  kF8E5M2,  // OCP e5m2: infinities and NaNs as in IEEE
};

// Bytes of one element; 0 for kInvalid.
constexpr std::int64_t ElementBytes(DataType type) {
  switch (type) {
    case DataType::kInvalid: return 0;
    case DataType::kBool:
    case DataType::kU8:
    case DataType::kI8:
    case DataType::kF8E4M3:
    case DataType::kF8E5M2: return 1;
    case DataType::kF16:
    case DataType::kBF16: return 2;
    case DataType::kI32:
    case DataType::kF32: return 4;
    case DataType::kI64:
    case DataType::kF64: return 8;
  }
  return 0;
}

// "F16", "F8E4M3", ...; "INVALID" for anything else.
constexpr std::string_view Name(DataType type) {
  switch (type) {
    case DataType::kInvalid: return "INVALID";
    case DataType::kBool: return "BOOL";
    case DataType::kU8: return "U8";
    case DataType::kI8: return "I8";
    case DataType::kI32: return "I32";
    case DataType::kI64: return "I64";
    case DataType::kF16: return "F16";
    case DataType::kBF16: return "BF16";
    case DataType::kF32: return "F32";
    case DataType::kF64: return "F64";
    case DataType::kF8E4M3: return "F8E4M3";
    case DataType::kF8E5M2: return "F8E5M2";
  }
  return "INVALID";
}

// The token of a kernel name: "f16", "f8e4m3", ...
constexpr std::string_view Token(DataType type) {
  switch (type) {
    case DataType::kInvalid: return "invalid";
    case DataType::kBool: return "bool";
    case DataType::kU8: return "u8";
    case DataType::kI8: return "i8";
    case DataType::kI32: return "i32";
    case DataType::kI64: return "i64";
    case DataType::kF16: return "f16";
    case DataType::kBF16: return "bf16";
    case DataType::kF32: return "f32";
    case DataType::kF64: return "f64";
    case DataType::kF8E4M3: return "f8e4m3";
    case DataType::kF8E5M2: return "f8e5m2";
  }
  return "invalid";
}

constexpr bool IsFloat8(DataType type) {
  return type == DataType::kF8E4M3 || type == DataType::kF8E5M2;
}

}  // namespace kernd
