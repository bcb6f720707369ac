// Page-locked host memory for results: one slab, locked at the start, since locking costs 0.4 s a GiB. The device
// writes a result here, and a reply's slices own it until gRPC has sent them.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/core/program.h"
#include "server/gpu/driver.h"

namespace kernd::gpu {

class PinnedPool {
 public:
  struct Use {
    std::int64_t limit = 0;
    std::int64_t used = 0, peak = 0;  // bytes, rounded as the pool rounds them
    std::int64_t waits = 0;           // for others to give back
    std::int64_t pageable = 0;        // buffers that came from the heap instead
  };

  // Bytes that a buffer of `bytes` takes.
  static std::int64_t Rounded(std::int64_t bytes);

  // The driver must outlive the pool.
  static absl::StatusOr<std::unique_ptr<PinnedPool>> Create(Driver& driver, std::int64_t bytes);
  // Every buffer must have gone.
  ~PinnedPool();

  // A buffer of exactly `bytes`. Where the slab has no room, waits up to `patience` for some; after that, and at once
  // for what is larger than the slab, the buffer is ordinary memory: slower to copy to, never a reason to fail.
  // RESOURCE_EXHAUSTED: the system has none either.
  absl::StatusOr<core::HostBuffer> Allocate(std::int64_t bytes, absl::Duration patience);

  Use use() const;

 private:
  PinnedPool(Driver& driver, std::byte* slab, std::int64_t bytes);
  // The first free run that holds `rounded`; null where none does.
  std::byte* Take(std::int64_t rounded) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Give(std::byte* data);

  Driver& driver_;
  std::byte* const slab_;
  mutable absl::Mutex mutex_;
  std::map<std::int64_t, std::int64_t> free_ ABSL_GUARDED_BY(mutex_);  // offset to length; neighbours are merged
  std::map<std::int64_t, std::int64_t> live_ ABSL_GUARDED_BY(mutex_);
  Use use_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kernd::gpu
