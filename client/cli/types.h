// The client's names for types as the kernels' headers have them, and back.
#pragma once

#include "kernd/client/tensor.h"
#include "kernd/kernels/dtype.h"

namespace kernd::cli {

constexpr DataType KernelType(client::DataType type) {
  return static_cast<DataType>(type);
}

constexpr client::DataType ClientType(DataType type) {
  return static_cast<client::DataType>(type);
}

static_assert(KernelType(client::DataType::kUnspecified) == DataType::kInvalid);
static_assert(KernelType(client::DataType::kBool) == DataType::kBool);
static_assert(KernelType(client::DataType::kU8) == DataType::kU8);
static_assert(KernelType(client::DataType::kI8) == DataType::kI8);
static_assert(KernelType(client::DataType::kI32) == DataType::kI32);
static_assert(KernelType(client::DataType::kI64) == DataType::kI64);
static_assert(KernelType(client::DataType::kF16) == DataType::kF16);
static_assert(KernelType(client::DataType::kBF16) == DataType::kBF16);
static_assert(KernelType(client::DataType::kF32) == DataType::kF32);
static_assert(KernelType(client::DataType::kF64) == DataType::kF64);
static_assert(KernelType(client::DataType::kF8E4M3) == DataType::kF8E4M3);
static_assert(KernelType(client::DataType::kF8E5M2) == DataType::kF8E5M2);

}  // namespace kernd::cli
