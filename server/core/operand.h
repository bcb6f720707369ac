// Where an operand's bytes are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "kernd/kernels/tensor.h"

namespace kernd::core {

// Elements that lie apart from each other.
struct View {
  Dims shape, strides;  // elements
  std::int64_t element_bytes = 0;
};

// Empty for an operand that the problem does not have, and, but for resident ones, everywhere in a plan-only program.
struct Operand {
  // The bytes in order, in as many runs as the network cut them into; together as many as the TensorSpec says (the
  // codec has checked). Contiguous as a tensor, at any address.
  absl::InlinedVector<absl::Span<const std::byte>, 1> runs;
  // In place of runs: the first element of a view of a resident tensor, on the device, or of shared memory. Kernels
  // read it there, by the strides of the TensorSpec.
  const std::byte* device = nullptr;
  // Not as it lies there: the TensorSpec is that of the contiguous copy that is to be made of this view first.
  std::optional<View> copy_of;
  // Keeps the runs, the tensor, or the region; operands that were cut from one run share it.
  std::shared_ptr<const void> owner;

  // Takes no memory of the call.
  bool in_place() const { return device != nullptr && !copy_of; }

  std::int64_t bytes() const {
    std::size_t sum = 0;
    for (const absl::Span<const std::byte> run : runs) sum += run.size();
    return static_cast<std::int64_t>(sum);
  }

  // The bytes have been copied to where they are needed: a large request should not be held twice.
  void Release() {
    runs.clear();
    device = nullptr;
    owner.reset();
  }
};

}  // namespace kernd::core
