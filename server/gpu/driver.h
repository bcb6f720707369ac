// What the backend asks of a GPU: memory, streams, events and copies of one device. CUDA stands behind it
// (cuda_driver); in tests, host memory and injected failures do, so that pools, executors and the ways out of an error
// are tested on machines without a GPU. Kernels are not here: they are rows of a table (kernd/kernels/gpu.h).
//
// Thread-safe, except that one stream, and one event, belong to one thread at a time. Errors are INTERNAL with the call
// that failed, unless said otherwise.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernd/kernels/gpu.h"

namespace kernd::gpu {

using Event = void*;
using Pool = void*;

class Driver {
 public:
  virtual ~Driver() = default;

  virtual const DeviceInfo& device() const = 0;
  // Makes the device current on the calling thread. Cheap where it is already.
  virtual absl::Status Bind() = 0;
  // OK, or the error after which the device is lost to this process ("sticky"). Forgets errors that are not.
  virtual absl::Status Health() = 0;

  virtual absl::StatusOr<Stream> CreateStream() = 0;
  virtual absl::StatusOr<Event> CreateEvent() = 0;
  virtual void Destroy(Stream stream) = 0;
  virtual void DestroyEvent(Event event) = 0;

  virtual absl::Status Record(Event event, Stream stream) = 0;
  // True once the stream has passed the event.
  virtual absl::StatusOr<bool> Passed(Event event) = 0;
  // Sleeps until then.
  virtual absl::Status Wait(Event event) = 0;
  // Time between two events that have passed.
  virtual absl::StatusOr<absl::Duration> Between(Event from, Event to) = 0;
  virtual absl::Status Synchronize(Stream stream) = 0;

  // Enqueued. Host memory from AllocatePinned, or registered, is read or written when the stream gets there; any other
  // may make the call wait.
  virtual absl::Status CopyIn(std::byte* device, const std::byte* host, std::int64_t bytes, Stream stream) = 0;
  virtual absl::Status CopyOut(std::byte* host, const std::byte* device, std::int64_t bytes, Stream stream) = 0;

  // To the device, from there or from registered host memory: `rows` of `row_bytes` each, `pitch` bytes from one to the
  // next, to one behind the other. row_bytes <= pitch < 2^31, but for a single row, which may have any size.
  virtual absl::Status CopyRows(std::byte* to, const std::byte* from, std::int64_t pitch, std::int64_t row_bytes,
                                std::int64_t rows, Stream stream) = 0;

  virtual absl::StatusOr<std::byte*> AllocatePinned(std::int64_t bytes) = 0;
  virtual void FreePinned(std::byte* memory) = 0;

  // Makes memory that is there already like AllocatePinned's. RESOURCE_EXHAUSTED: the system lets no more be
  // page-locked.
  virtual absl::Status RegisterHost(std::byte* memory, std::int64_t bytes) = 0;
  // Nothing may be left that copies from or to it.
  virtual void UnregisterHost(std::byte* memory) = 0;

  // A pool never holds more than `limit` bytes, and keeps what it has until it is trimmed.
  virtual absl::StatusOr<Pool> CreatePool(std::int64_t limit) = 0;
  virtual void DestroyPool(Pool pool) = 0;
  // Usable by `stream` from now on, and by others once it has got there. RESOURCE_EXHAUSTED: none to be had.
  virtual absl::StatusOr<std::byte*> Allocate(Pool pool, std::int64_t bytes, Stream stream) = 0;
  // Given back when `stream` gets there.
  virtual absl::Status Free(std::byte* memory, Stream stream) = 0;
  // Bytes that the pool holds of the device, used or not.
  virtual absl::StatusOr<std::int64_t> Reserved(Pool pool) = 0;
  // Gives unused memory back, down to `keep` bytes.
  virtual absl::Status Trim(Pool pool, std::int64_t keep) = 0;
  // Of the device, over all processes.
  virtual absl::StatusOr<std::int64_t> FreeMemory() = 0;
};

}  // namespace kernd::gpu
