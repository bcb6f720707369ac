// Where an operand's bytes are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"

namespace kernd::core {

// Empty for an operand that the problem does not have, and everywhere in a plan-only program.
struct Operand {
  // The bytes in order, in as many runs as the network cut them into; together as many as the TensorSpec says (the
  // codec has checked). Contiguous as a tensor, at any address.
  absl::InlinedVector<absl::Span<const std::byte>, 1> runs;
  // Keeps the runs; operands that were cut from one run share it.
  std::shared_ptr<const void> owner;

  std::int64_t bytes() const {
    std::size_t sum = 0;
    for (const absl::Span<const std::byte> run : runs) sum += run.size();
    return static_cast<std::int64_t>(sum);
  }

  // The bytes have been copied to where they are needed: a large request should not be held twice.
  void Release() {
    runs.clear();
    owner.reset();
  }
};

}  // namespace kernd::core
