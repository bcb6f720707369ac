// Memory of the fake: pools of the device, pages of the host, and copies between them.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "tests/support/fake_gpu.h"

namespace kernd::testing {
namespace {

// What memory holds that nobody has written, or that was given back: as F32, a NaN.
constexpr int kPoison = 0xff;

}  // namespace

struct FakeGpu::FakePool {
  std::int64_t limit = 0, used = 0, reserved = 0;
};

// As CUDA has it: a copy that leaves its block is refused when it is enqueued.
absl::Status FakeGpu::CheckInBlock(const std::byte* device, std::int64_t bytes) const {
  absl::MutexLock lock(&mutex_);
  const auto after = blocks_.upper_bound(const_cast<std::byte*>(device));
  if (after != blocks_.begin()) {
    const auto& [start, block] = *std::prev(after);
    if (bytes >= 0 && device - start + bytes <= block.second) return absl::OkStatus();
  }
  return absl::InternalError("cudaErrorInvalidValue");
}

bool FakeGpu::IsRegistered(const std::byte* host, std::int64_t bytes) const {
  absl::MutexLock lock(&mutex_);
  const auto after = registered_.upper_bound(const_cast<std::byte*>(host));
  if (after == registered_.begin()) return false;
  const auto& [start, size] = *std::prev(after);
  return bytes >= 0 && host - start + bytes <= size;
}

absl::Status FakeGpu::CopyIn(std::byte* device, const std::byte* host, std::int64_t bytes, Stream stream) {
  if (absl::Status s = Begin("CopyIn"); !s.ok()) return s;
  if (absl::Status s = CheckInBlock(device, bytes); !s.ok()) return s;
  Enqueue(stream, [=] { std::memcpy(device, host, static_cast<std::size_t>(bytes)); });
  return absl::OkStatus();
}

absl::Status FakeGpu::CopyOut(std::byte* host, const std::byte* device, std::int64_t bytes, Stream stream) {
  if (absl::Status s = Begin("CopyOut"); !s.ok()) return s;
  if (absl::Status s = CheckInBlock(device, bytes); !s.ok()) return s;
  Enqueue(stream, [=] { std::memcpy(host, device, static_cast<std::size_t>(bytes)); });
  return absl::OkStatus();
}

absl::Status FakeGpu::CopyRows(std::byte* to, const std::byte* from, std::int64_t pitch, std::int64_t row_bytes,
                               std::int64_t rows, Stream stream) {
  if (absl::Status s = Begin("CopyRows"); !s.ok()) return s;
  if (pitch < row_bytes || rows < 1 || row_bytes < 1) return absl::InternalError("cudaErrorInvalidPitchValue");
  if (absl::Status s = CheckInBlock(to, row_bytes * rows); !s.ok()) return s;
  const std::int64_t span = pitch * (rows - 1) + row_bytes;
  if (absl::Status s = CheckInBlock(from, span); !s.ok() && !IsRegistered(from, span)) return s;
  Enqueue(stream, [=] {
    for (std::int64_t row = 0; row < rows; ++row) {
      std::memcpy(to + row * row_bytes, from + row * pitch, static_cast<std::size_t>(row_bytes));
    }
  });
  return absl::OkStatus();
}

absl::StatusOr<std::byte*> FakeGpu::AllocatePinned(std::int64_t bytes) {
  if (const absl::Status s = Begin("AllocatePinned"); !s.ok()) return s;
  absl::MutexLock lock(&mutex_);
  ++alive_.pinned;
  auto* memory_of = static_cast<std::byte*>(std::malloc(static_cast<std::size_t>(bytes)));
  std::memset(memory_of, kPoison, static_cast<std::size_t>(bytes));
  return memory_of;
}

void FakeGpu::FreePinned(std::byte* freed) {
  std::free(freed);
  absl::MutexLock lock(&mutex_);
  --alive_.pinned;
}

absl::Status FakeGpu::RegisterHost(std::byte* registered, std::int64_t bytes) {
  if (absl::Status s = Begin("RegisterHost"); !s.ok()) return s;
  absl::MutexLock lock(&mutex_);
  if (!registered_.emplace(registered, bytes).second)
    return absl::InternalError("cudaErrorHostMemoryAlreadyRegistered");
  ++alive_.registered;
  return absl::OkStatus();
}

void FakeGpu::UnregisterHost(std::byte* registered) {
  Begin("UnregisterHost").IgnoreError();
  absl::MutexLock lock(&mutex_);
  const auto it = registered_.find(registered);
  if (it == registered_.end()) std::abort();
  registered[0] = registered[it->second - 1] = std::byte{0};
  registered_.erase(it);
  --alive_.registered;
}

absl::StatusOr<gpu::Pool> FakeGpu::CreatePool(std::int64_t limit) {
  if (const absl::Status s = Begin("CreatePool"); !s.ok()) return s;
  absl::MutexLock lock(&mutex_);
  ++alive_.pools;
  return static_cast<gpu::Pool>(new FakePool{.limit = limit});
}

void FakeGpu::DestroyPool(gpu::Pool pool) {
  auto* fake = static_cast<FakePool*>(pool);
  absl::MutexLock lock(&mutex_);
  used_ -= fake->reserved;
  --alive_.pools;
  delete fake;
}

absl::StatusOr<std::byte*> FakeGpu::Allocate(gpu::Pool pool, std::int64_t bytes, Stream /*stream*/) {
  if (const absl::Status s = Begin("Allocate"); !s.ok()) return s;
  auto* fake = static_cast<FakePool*>(pool);
  absl::MutexLock lock(&mutex_);
  const std::int64_t more = std::max<std::int64_t>(fake->used + bytes - fake->reserved, 0);
  if (fake->used + bytes > fake->limit || used_ + more > memory)
    return absl::ResourceExhaustedError("cudaErrorMemoryAllocation");
  fake->used += bytes;
  fake->reserved += more;
  used_ += more;
  ++alive_.blocks;
  auto* block = static_cast<std::byte*>(std::aligned_alloc(
      kDeviceAlignment,
      static_cast<std::size_t>((bytes + kDeviceAlignment - 1) / kDeviceAlignment * kDeviceAlignment)));
  std::memset(block, kPoison, static_cast<std::size_t>(bytes));
  blocks_[block] = {fake, bytes};
  return block;
}

absl::Status FakeGpu::Free(std::byte* freed, Stream stream) {
  const absl::Status s = Begin("Free");
  Enqueue(stream, [this, freed] {
    absl::MutexLock lock(&mutex_);
    const auto it = blocks_.find(freed);
    it->second.first->used -= it->second.second;
    std::memset(freed, kPoison, static_cast<std::size_t>(it->second.second));
    std::free(freed);
    blocks_.erase(it);
    --alive_.blocks;
  });
  return s;
}

absl::StatusOr<std::int64_t> FakeGpu::Reserved(gpu::Pool pool) {
  if (const absl::Status s = Begin("Reserved"); !s.ok()) return s;
  absl::MutexLock lock(&mutex_);
  return static_cast<FakePool*>(pool)->reserved;
}

absl::Status FakeGpu::Trim(gpu::Pool pool, std::int64_t keep) {
  if (absl::Status s = Begin("Trim"); !s.ok()) return s;
  auto* fake = static_cast<FakePool*>(pool);
  absl::MutexLock lock(&mutex_);
  const std::int64_t held = std::max(fake->used, std::min(fake->reserved, keep));
  used_ -= fake->reserved - held;
  fake->reserved = held;
  return absl::OkStatus();
}

absl::StatusOr<std::int64_t> FakeGpu::FreeMemory() {
  if (const absl::Status s = Begin("FreeMemory"); !s.ok()) return s;
  absl::MutexLock lock(&mutex_);
  return memory - used_;
}

}  // namespace kernd::testing
