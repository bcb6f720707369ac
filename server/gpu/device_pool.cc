#include "server/gpu/device_pool.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernd/kernels/error.h"

namespace kernd::gpu {
namespace {

constexpr absl::Duration kRetryAfter = absl::Milliseconds(100);

}  // namespace

DeviceBlock::~DeviceBlock() {
  if (data_ != nullptr) pool_->Free(*this);
}

absl::StatusOr<std::unique_ptr<DevicePool>> DevicePool::Create(Driver& driver, std::int64_t limit,
                                                               std::int64_t primed) {
  KERND_ASSIGN_OR_RETURN(const Pool handle, driver.CreatePool(limit));
  std::unique_ptr<DevicePool> pool(new DevicePool(driver, handle, limit));
  KERND_ASSIGN_OR_RETURN(const Stream stream, driver.CreateStream());
  absl::Status primed_status;
  {
    const absl::StatusOr<DeviceBlock> block = pool->Allocate(std::min(limit, primed), stream);
    primed_status = block.status();
  }
  if (primed_status.ok()) primed_status = driver.Synchronize(stream);
  driver.Destroy(stream);
  if (!primed_status.ok()) return primed_status;
  absl::MutexLock lock(&pool->mutex_);
  pool->use_ = {};
  return pool;
}

DevicePool::~DevicePool() {
  driver_.DestroyPool(pool_);
}

absl::StatusOr<DeviceBlock> DevicePool::Allocate(std::int64_t bytes, Stream stream) {
  if (bytes == 0) return DeviceBlock();
  bool retried = false;
  absl::StatusOr<std::byte*> data = driver_.Allocate(pool_, bytes, stream);
  if (absl::IsResourceExhausted(data.status())) {
    // Blocks that were given back count as free only when their stream has got there.
    retried = true;
    KERND_RETURN_IF_ERROR(driver_.Synchronize(stream));
    KERND_RETURN_IF_ERROR(driver_.Trim(pool_, 0));
    if (other_ != nullptr) KERND_RETURN_IF_ERROR(other_->Trim().status());
    data = driver_.Allocate(pool_, bytes, stream);
  }
  absl::MutexLock lock(&mutex_);
  use_.retries += retried;
  if (absl::IsResourceExhausted(data.status())) {
    ++use_.failures;
    return WithDetail(absl::ResourceExhaustedError(absl::StrCat(
                          "the device has no ", bytes, " bytes now, though they are within the limit: ", use_.used,
                          " of ", limit_, " are in use here, so others hold the rest; try again")),
                      {.reason = std::string(reason::kMemoryFull),
                       .retry_after = kRetryAfter,
                       .metadata = {{"needed_bytes", absl::StrCat(bytes)}, {"limit_bytes", absl::StrCat(limit_)}}});
  }
  KERND_RETURN_IF_ERROR(data.status());
  ++use_.allocations;
  use_.used += bytes;
  use_.peak = std::max(use_.peak, use_.used);
  return DeviceBlock(this, *data, bytes, stream);
}

void DevicePool::Free(const DeviceBlock& block) {
  // An error here is the device's, and the next call on the stream says so too.
  driver_.Free(block.data(), block.stream_).IgnoreError();
  absl::MutexLock lock(&mutex_);
  use_.used -= block.bytes();
}

absl::StatusOr<std::int64_t> DevicePool::Trim() {
  KERND_ASSIGN_OR_RETURN(const std::int64_t before, reserved());
  KERND_RETURN_IF_ERROR(driver_.Trim(pool_, 0));
  KERND_ASSIGN_OR_RETURN(const std::int64_t after, reserved());
  return std::max<std::int64_t>(before - after, 0);
}

DevicePool::Use DevicePool::use() const {
  absl::MutexLock lock(&mutex_);
  return use_;
}

}  // namespace kernd::gpu
