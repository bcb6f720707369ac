#include "server/gpu/pinned_pool.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernd/kernels/error.h"

namespace kernd::gpu {
namespace {

// Small enough to waste little, large enough that a slab is never in crumbs.
constexpr std::int64_t kUnit = 4096;

}  // namespace

std::int64_t PinnedPool::Rounded(std::int64_t bytes) {
  const std::optional<std::int64_t> up = CheckedAdd(bytes, kUnit - 1);
  return up ? *up / kUnit * kUnit : bytes;
}

absl::StatusOr<std::unique_ptr<PinnedPool>> PinnedPool::Create(Driver& driver, std::int64_t bytes) {
  const std::int64_t size = bytes / kUnit * kUnit;
  std::byte* slab = nullptr;
  if (size > 0) {
    KERND_ASSIGN_OR_RETURN(slab, driver.AllocatePinned(size));
  }
  return std::unique_ptr<PinnedPool>(new PinnedPool(driver, slab, size));
}

PinnedPool::PinnedPool(Driver& driver, std::byte* slab, std::int64_t bytes) : driver_(driver), slab_(slab) {
  absl::MutexLock lock(&mutex_);
  use_.limit = bytes;
  if (bytes > 0) free_[0] = bytes;
}

PinnedPool::~PinnedPool() {
  if (slab_ != nullptr) driver_.FreePinned(slab_);
}

std::byte* PinnedPool::Take(std::int64_t rounded) {
  const auto run = std::find_if(free_.begin(), free_.end(), [&](const auto& r) { return r.second >= rounded; });
  if (run == free_.end()) return nullptr;
  const auto [offset, length] = *run;
  free_.erase(run);
  if (length > rounded) free_[offset + rounded] = length - rounded;
  live_[offset] = rounded;
  use_.used += rounded;
  use_.peak = std::max(use_.peak, use_.used);
  return slab_ + offset;
}

void PinnedPool::Give(std::byte* data) {
  absl::MutexLock lock(&mutex_);
  const auto live = live_.find(data - slab_);
  std::int64_t offset = live->first, length = live->second;
  live_.erase(live);
  use_.used -= length;
  const auto after = free_.lower_bound(offset);
  if (after != free_.end() && after->first == offset + length) length += after->second;
  if (after != free_.begin()) {
    if (const auto before = std::prev(after); before->first + before->second == offset) {
      offset = before->first;
      length += before->second;
    }
  }
  if (after != free_.end() && after->first < offset + length) free_.erase(after);
  free_[offset] = length;
}

absl::StatusOr<core::HostBuffer> PinnedPool::Allocate(std::int64_t bytes, absl::Duration patience) {
  if (bytes == 0) return core::HostBuffer();
  const std::int64_t rounded = Rounded(bytes);
  {
    absl::MutexLock lock(&mutex_);
    std::byte* data = Take(rounded);
    if (data == nullptr && rounded <= use_.limit) {
      ++use_.waits;
      const auto taken = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return (data = Take(rounded)) != nullptr; };
      mutex_.AwaitWithTimeout(absl::Condition(&taken), patience);
    }
    if (data != nullptr) {
      return core::HostBuffer(
          data, bytes, [](std::byte* p, void* pool) { static_cast<PinnedPool*>(pool)->Give(p); }, this);
    }
    ++use_.pageable;
  }
  auto* data = static_cast<std::byte*>(std::malloc(static_cast<std::size_t>(bytes)));
  if (data == nullptr) {
    return WithDetail(
        absl::ResourceExhaustedError(absl::StrCat("the system has no ", bytes, " bytes for the results; try again")),
        {.reason = std::string(reason::kMemoryFull), .retry_after = absl::Milliseconds(50)});
  }
  return core::HostBuffer(
      data, bytes, [](std::byte* p, void*) { std::free(p); }, nullptr);
}

PinnedPool::Use PinnedPool::use() const {
  absl::MutexLock lock(&mutex_);
  return use_;
}

}  // namespace kernd::gpu
