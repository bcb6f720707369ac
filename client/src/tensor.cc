#include "kernd/client/tensor.h"

#include <array>
#include <cctype>
#include <new>

namespace kernd::client {
namespace {

constexpr std::size_t kMaxRank = 8;

struct TypeRow {
  DataType type;
  std::string_view name;
  std::int64_t bytes;
};

constexpr std::array<TypeRow, 11> kTypes = {{
    {DataType::kBool, "BOOL", 1},
    {DataType::kU8, "U8", 1},
    {DataType::kI8, "I8", 1},
    {DataType::kI32, "I32", 4},
    {DataType::kI64, "I64", 8},
    {DataType::kF16, "F16", 2},
    {DataType::kBF16, "BF16", 2},
    {DataType::kF32, "F32", 4},
    {DataType::kF64, "F64", 8},
    {DataType::kF8E4M3, "F8E4M3", 1},
    {DataType::kF8E5M2, "F8E5M2", 1},
}};

const TypeRow* FindType(DataType type) {
  for (const TypeRow& row : kTypes) {
    if (row.type == type) return &row;
  }
  return nullptr;
}

bool SameIgnoringCase(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::toupper(static_cast<unsigned char>(a[i])) != std::toupper(static_cast<unsigned char>(b[i]))) return false;
  }
  return true;
}

}  // namespace

std::int64_t ElementBytes(DataType type) {
  const TypeRow* row = FindType(type);
  return row == nullptr ? 0 : row->bytes;
}

std::string_view Name(DataType type) {
  const TypeRow* row = FindType(type);
  return row == nullptr ? "UNSPECIFIED" : row->name;
}

std::optional<DataType> ParseDataType(std::string_view name) {
  for (const TypeRow& row : kTypes) {
    if (SameIgnoringCase(row.name, name)) return row.type;
  }
  return std::nullopt;
}

std::optional<std::int64_t> TensorBytes(DataType dtype, std::span<const std::int64_t> shape) {
  std::int64_t bytes = ElementBytes(dtype);
  if (bytes == 0 || shape.size() > kMaxRank) return std::nullopt;
  bool empty = false;
  for (const std::int64_t dim : shape) {
    if (dim < 0) return std::nullopt;
    empty = empty || dim == 0;
  }
  if (empty) return 0;
  for (const std::int64_t dim : shape) {
    if (__builtin_mul_overflow(bytes, dim, &bytes)) return std::nullopt;
  }
  return bytes;
}

std::string ToString(DataType dtype, std::span<const std::int64_t> shape) {
  std::string text(Name(dtype));
  text += '[';
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) text += ',';
    text += std::to_string(shape[i]);
  }
  return text += ']';
}

absl::StatusOr<Tensor> Tensor::Allocate(DataType dtype, std::vector<std::int64_t> shape) {
  const std::optional<std::int64_t> bytes = TensorBytes(dtype, shape);
  if (!bytes) return absl::InvalidArgumentError(ToString(dtype, shape) + " is not a tensor");
  std::unique_ptr<std::byte[]> data(new (std::nothrow) std::byte[static_cast<std::size_t>(*bytes)]);
  if (data == nullptr) {
    return absl::ResourceExhaustedError("no memory for the " + std::to_string(*bytes) + " bytes of " +
                                        ToString(dtype, shape));
  }
  return Adopt(dtype, std::move(shape), std::move(data), static_cast<std::size_t>(*bytes));
}

absl::StatusOr<Tensor> Tensor::Adopt(DataType dtype, std::vector<std::int64_t> shape, std::unique_ptr<std::byte[]> data,
                                     std::size_t size) {
  absl::StatusOr<Tensor> tensor = Borrow(dtype, std::move(shape), {data.get(), size});
  if (tensor.ok()) tensor->data_ = {data.release(), Release(true)};
  return tensor;
}

absl::StatusOr<Tensor> Tensor::Borrow(DataType dtype, std::vector<std::int64_t> shape, std::span<std::byte> memory) {
  const std::optional<std::int64_t> bytes = TensorBytes(dtype, shape);
  if (!bytes || static_cast<std::uint64_t>(*bytes) != memory.size()) {
    return absl::InvalidArgumentError(ToString(dtype, shape) + " has not " + std::to_string(memory.size()) + " bytes");
  }
  Tensor tensor;
  tensor.dtype_ = dtype;
  tensor.shape_ = std::move(shape);
  tensor.data_ = {memory.data(), Release(false)};
  tensor.size_ = memory.size();
  return tensor;
}

absl::StatusOr<Tensor> Tensor::WithoutBytes(DataType dtype, std::vector<std::int64_t> shape) {
  if (!TensorBytes(dtype, shape)) return absl::InvalidArgumentError(ToString(dtype, shape) + " is not a tensor");
  Tensor tensor;
  tensor.dtype_ = dtype;
  tensor.shape_ = std::move(shape);
  return tensor;
}

}  // namespace kernd::client
