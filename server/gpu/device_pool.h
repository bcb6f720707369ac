// Device memory of calls. The engine has reserved the bytes before they are asked for here, so running out is rare: it
// means that somebody else is on the device, or that its memory is in pieces.
//
// Thread-safe.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/gpu/driver.h"

namespace kernd::gpu {

class DevicePool;

// Memory on the device, given back on its stream when it goes. Empty where `data()` is null.
class DeviceBlock {
 public:
  DeviceBlock() = default;
  DeviceBlock(DeviceBlock&& other) noexcept { *this = std::move(other); }
  DeviceBlock& operator=(DeviceBlock&& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(stream_, other.stream_);
    return *this;
  }
  ~DeviceBlock();

  std::byte* data() const { return data_; }
  std::int64_t bytes() const { return bytes_; }

 private:
  friend class DevicePool;
  DeviceBlock(DevicePool* pool, std::byte* data, std::int64_t bytes, Stream stream)
      : pool_(pool), data_(data), bytes_(bytes), stream_(stream) {}
  DevicePool* pool_ = nullptr;
  std::byte* data_ = nullptr;
  std::int64_t bytes_ = 0;
  Stream stream_ = nullptr;
};

class DevicePool {
 public:
  struct Use {
    std::int64_t used = 0, peak = 0;  // bytes in blocks
    std::int64_t allocations = 0;     // since the start
    std::int64_t retries = 0;         // after the driver had none
    std::int64_t failures = 0;        // and had none after that either
  };

  // Holds at most `limit` bytes, of which `primed` are taken from the device now. The driver must outlive the pool.
  static absl::StatusOr<std::unique_ptr<DevicePool>> Create(Driver& driver, std::int64_t limit, std::int64_t primed);
  // Every block must have gone.
  ~DevicePool();

  // `bytes` on `stream`, aligned to kDeviceAlignment; an empty block for 0. Where the driver has none, waits for the
  // stream, gives unused memory back and tries once more. RESOURCE_EXHAUSTED (MEMORY_FULL): none then either.
  absl::StatusOr<DeviceBlock> Allocate(std::int64_t bytes, Stream stream);

  // `other` takes its memory from the same device: it gives back what it does not use where this one finds none. Before
  // the first allocation; must outlive this.
  void ShareWith(DevicePool& other) { other_ = &other; }

  // Gives unused memory back to the device. Bytes given.
  absl::StatusOr<std::int64_t> Trim();
  Use use() const;
  absl::StatusOr<std::int64_t> reserved() const { return driver_.Reserved(pool_); }
  std::int64_t limit() const { return limit_; }

 private:
  friend class DeviceBlock;
  DevicePool(Driver& driver, Pool pool, std::int64_t limit) : driver_(driver), pool_(pool), limit_(limit) {}
  void Free(const DeviceBlock& block);

  Driver& driver_;
  const Pool pool_;
  const std::int64_t limit_;
  DevicePool* other_ = nullptr;  // may be null
  mutable absl::Mutex mutex_;
  Use use_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kernd::gpu
