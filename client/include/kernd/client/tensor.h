// Tensors as the client sees them: element type, shape and bytes. Row-major, little-endian, contiguous.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <ranges>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace kernd::client {

// The numbers are those of the wire format (kernd.v1.DataType).
enum class DataType : std::uint8_t {
  kUnspecified = 0,
  kBool = 1,  // one byte; any non-zero byte is true
  kU8 = 2,
  kI8 = 3,
  kI32 = 4,
  kI64 = 5,
  kF16 = 6,
  kBF16 = 7,
  kF32 = 8,
  kF64 = 9,
  kF8E4M3 = 10,  // OCP e4m3fn: no infinity, largest 448
  kF8E5M2 = 11,  // OCP e5m2
};

// Bytes of one element; 0 for kUnspecified.
std::int64_t ElementBytes(DataType type);

// "F16", "F8E4M3", ...; "UNSPECIFIED" for anything else.
std::string_view Name(DataType type);

// The type of that name, in upper or lower case.
std::optional<DataType> ParseDataType(std::string_view name);

// Bytes of a contiguous tensor. Empty for an unspecified dtype, more than 8 dimensions, a negative one, or 2^63 bytes
// and more.
std::optional<std::int64_t> TensorBytes(DataType dtype, std::span<const std::int64_t> shape);

// "F16[2,8,128,64]"
std::string ToString(DataType dtype, std::span<const std::int64_t> shape);

// The element type of a C++ type; kUnspecified where there is none. 16-bit and 8-bit floats have no C++ type here: give
// their bits, and name the type.
template <typename T>
constexpr DataType DataTypeOf() {
  if constexpr (std::is_same_v<T, bool>) return DataType::kBool;
  if constexpr (std::is_same_v<T, std::uint8_t>) return DataType::kU8;
  if constexpr (std::is_same_v<T, std::int8_t>) return DataType::kI8;
  if constexpr (std::is_same_v<T, std::int32_t>) return DataType::kI32;
  if constexpr (std::is_same_v<T, std::int64_t>) return DataType::kI64;
  if constexpr (std::is_same_v<T, float>) return DataType::kF32;
  if constexpr (std::is_same_v<T, double>) return DataType::kF64;
  return DataType::kUnspecified;
}

// A tensor in memory of the caller, who keeps it alive and unchanged until the call has returned. The client does not
// copy it: its bytes go from there to the socket.
struct TensorView {
  DataType dtype = DataType::kUnspecified;
  std::vector<std::int64_t> shape;    // none: one element
  std::span<const std::byte> data{};  // TensorBytes(dtype, shape) of them; for Plan none are needed
};

// A view of `values`, for example of a std::vector<float>.
template <std::ranges::contiguous_range Range>
TensorView View(const Range& values, std::vector<std::int64_t> shape) {
  constexpr DataType dtype = DataTypeOf<std::ranges::range_value_t<Range>>();
  static_assert(dtype != DataType::kUnspecified, "no element type belongs to this C++ type: name it");
  return {dtype, std::move(shape), std::as_bytes(std::span(values))};
}

// A view of the bits of `values` as elements of `dtype`, for example of uint16_t as F16.
template <std::ranges::contiguous_range Range>
TensorView ViewAs(DataType dtype, const Range& values, std::vector<std::int64_t> shape) {
  return {dtype, std::move(shape), std::as_bytes(std::span(values))};
}

// A tensor with bytes of its own, aligned for every element type; or, where the caller of a call asked for that
// (ResultPlace), one whose bytes are in memory that the caller gave, or that was left in a session and has none here.
// Moves, does not copy.
class Tensor {
 public:
  // No tensor: dtype kUnspecified, no bytes.
  Tensor() = default;

  // Bytes not initialised. INVALID_ARGUMENT where TensorBytes is empty, RESOURCE_EXHAUSTED where memory is.
  static absl::StatusOr<Tensor> Allocate(DataType dtype, std::vector<std::int64_t> shape);
  // Takes `data` of `size` bytes. INVALID_ARGUMENT where `size` is not TensorBytes.
  static absl::StatusOr<Tensor> Adopt(DataType dtype, std::vector<std::int64_t> shape,
                                      std::unique_ptr<std::byte[]> data, std::size_t size);
  // The tensor that lies in `memory`, which stays the caller's. INVALID_ARGUMENT where its size is not TensorBytes.
  static absl::StatusOr<Tensor> Borrow(DataType dtype, std::vector<std::int64_t> shape, std::span<std::byte> memory);
  // One whose bytes are elsewhere. INVALID_ARGUMENT where TensorBytes is empty.
  static absl::StatusOr<Tensor> WithoutBytes(DataType dtype, std::vector<std::int64_t> shape);

  DataType dtype() const { return dtype_; }
  const std::vector<std::int64_t>& shape() const { return shape_; }
  std::span<const std::byte> bytes() const { return {data_.get(), size_}; }
  std::span<std::byte> mutable_bytes() { return {data_.get(), size_}; }
  TensorView view() const { return {dtype_, shape_, bytes()}; }

  // The elements as T, which must be as large as one: anything else stops the program.
  template <typename T>
  std::span<const T> values() const {
    static_assert(std::is_trivially_copyable_v<T>);
    if (size_ != 0 && static_cast<std::int64_t>(sizeof(T)) != ElementBytes(dtype_)) std::abort();
    return {reinterpret_cast<const T*>(data_.get()), size_ / sizeof(T)};
  }

 private:
  // Deletes what is the tensor's own.
  struct Release {
    Release() : owned(true) {}
    explicit Release(bool own) : owned(own) {}
    bool owned;
    void operator()(std::byte* data) const {
      if (owned) delete[] data;
    }
  };

  DataType dtype_ = DataType::kUnspecified;
  std::vector<std::int64_t> shape_;
  std::unique_ptr<std::byte[], Release> data_;
  std::size_t size_ = 0;
};

}  // namespace kernd::client
