// Tensors that stay on the device between calls. A pool of their own, so that what lives long does not lie between what
// lives for a call, and a stream of their own each way, so that uploads run beside kernels:
//
//   received slices --memcpy--> one of a few pinned chunks --h2d--> tensor --d2h--> pinned result --> a reply's slices
//
// Any thread may write or read; the copies to and from pinned memory are made on the caller's.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/core/tensor_memory.h"
#include "server/gpu/device_pool.h"
#include "server/gpu/driver.h"
#include "server/gpu/pinned_pool.h"

namespace kernd::gpu {

class ResidentPool {
 public:
  // The driver and `results`, where Read takes its memory, must outlive the pool.
  static absl::StatusOr<std::unique_ptr<ResidentPool>> Create(Driver& driver, PinnedPool& results, std::int64_t limit,
                                                              std::int64_t chunk_bytes);
  // Every tensor must have gone.
  ~ResidentPool();

  // The tensor's own stream may write it at once, others after Settle.
  absl::StatusOr<std::unique_ptr<core::TensorMemory>> Allocate(std::int64_t bytes);

  DevicePool& memory() { return *memory_; }

 private:
  class Tensor;
  static constexpr int kChunks = 8;  // as many threads can stage at once

  struct Chunk {
    std::byte* data = nullptr;
    Event copied = nullptr;
  };

  ResidentPool(Driver& driver, PinnedPool& results, std::int64_t chunk_bytes)
      : driver_(driver), results_(results), chunk_bytes_(chunk_bytes) {}

  absl::Status Write(std::byte* device, absl::Span<const absl::Span<const std::byte>> runs);
  // Waits until `stream` has got to where it is now.
  absl::Status AwaitStream(Stream stream);
  absl::StatusOr<Chunk> TakeChunk();
  void GiveChunk(const Chunk& chunk);

  Driver& driver_;
  PinnedPool& results_;
  const std::int64_t chunk_bytes_;
  std::unique_ptr<DevicePool> memory_;
  Stream in_ = nullptr, out_ = nullptr;  // used under the lock
  std::byte* slab_ = nullptr;

  absl::Mutex mutex_;
  std::vector<Chunk> free_ ABSL_GUARDED_BY(mutex_);
  std::deque<Chunk> copying_ ABSL_GUARDED_BY(mutex_);  // oldest first
  std::vector<Event> events_ ABSL_GUARDED_BY(mutex_);  // idle ones
};

}  // namespace kernd::gpu
