// Memory of the device that outlives calls: what a resident tensor is kept in. Backends implement it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/core/program.h"

namespace kernd::core {

// Thread-safe for ranges that do not overlap. Destroying it gives the memory back; nobody may use it then.
class TensorMemory {
 public:
  virtual ~TensorMemory() = default;

  virtual std::int64_t bytes() const = 0;
  // On the device, aligned for every kernel. Null where bytes() is 0.
  virtual std::byte* data() const = 0;

  // Copies `runs`, one behind the other, to `offset`; [offset, offset + their sum) must lie within bytes(). Returns
  // when the runs may be reused, perhaps before the device has the bytes.
  virtual absl::Status Write(std::int64_t offset, absl::Span<const absl::Span<const std::byte>> runs) = 0;
  // Waits until the device has everything that was written before.
  virtual absl::Status Settle() = 0;

  // `bytes` from `offset`, after Settle, as memory of the host that must not outlive this. Not a copy where the device
  // is the host.
  //   RESOURCE_EXHAUSTED  the host has no memory for them
  virtual absl::StatusOr<HostBuffer> Read(std::int64_t offset, std::int64_t bytes) = 0;
};

}  // namespace kernd::core
