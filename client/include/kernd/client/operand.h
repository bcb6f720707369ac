// Where the operands of a call are, and where its results shall be.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "kernd/client/tensor.h"

namespace kernd::client {

// Which elements of a tensor of a session (Session::Put, or a result that was kept) an operand is.
struct ResidentTensor {
  std::uint64_t id = 0;
  DataType dtype = DataType::kUnspecified;
  std::vector<std::int64_t> shape;
  std::int64_t offset = 0;              // first element, in elements from the tensor's start
  std::vector<std::int64_t> strides{};  // in elements, one for each dimension, the last 1; empty: contiguous
};

// An operand: in memory of the caller, or resident in the session through which the call is made. Made from either.
struct Operand {
  struct Resident {
    std::uint64_t id = 0;
    std::int64_t offset = 0;
    std::vector<std::int64_t> strides;
  };

  Operand() = default;
  Operand(TensorView view) : Operand(view.dtype, std::move(view.shape), view.data) {}  // NOLINT: implicit
  Operand(ResidentTensor tensor)                                                       // NOLINT: implicit
      : dtype(tensor.dtype),
        shape(std::move(tensor.shape)),
        resident(Resident{tensor.id, tensor.offset, std::move(tensor.strides)}) {}
  Operand(DataType type, std::vector<std::int64_t> dims, std::span<const std::byte> bytes = {})
      : dtype(type), shape(std::move(dims)), data(bytes) {}

  DataType dtype = DataType::kUnspecified;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> data;   // as in TensorView
  std::optional<Resident> resident;  // set: there, and `data` is not read
};

// Where a result shall be; nothing given: in memory of the reply's own. At most one of the two.
struct ResultPlace {
  // Kept in the call's session under this id, in place of what was there. The reply's tensor has no bytes.
  std::optional<std::uint64_t> resident{};
  // Written there, where it must fit exactly, and the reply's tensor lies there. The memory must stay until the call
  // has returned; where it failed, what is in it is not defined.
  std::span<std::byte> into{};
};

}  // namespace kernd::client
