#include "server/gpu/resident_pool.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernd/kernels/error.h"

namespace kernd::gpu {
namespace {

// For a pinned buffer to come free.
constexpr absl::Duration kPinnedPatience = absl::Milliseconds(20);

}  // namespace

class ResidentPool::Tensor final : public core::TensorMemory {
 public:
  Tensor(ResidentPool& pool, DeviceBlock block) : pool_(pool), block_(std::move(block)) {}
  ~Tensor() override {
    pool_.driver_.Bind().IgnoreError();  // whoever lets go of a tensor last; an error shows in the next call
    absl::MutexLock lock(&pool_.mutex_);
    const DeviceBlock gone = std::move(block_);  // freed on the stream, behind the copies that are still to come
  }

  std::int64_t bytes() const override { return block_.bytes(); }
  std::byte* data() const override { return block_.data(); }

  absl::Status Write(std::int64_t offset, absl::Span<const absl::Span<const std::byte>> runs) override {
    return pool_.Write(block_.data() + offset, runs);
  }
  absl::Status Settle() override {
    KERND_RETURN_IF_ERROR(pool_.driver_.Bind());
    return pool_.AwaitStream(pool_.in_);
  }
  absl::StatusOr<core::HostBuffer> Read(std::int64_t offset, std::int64_t bytes) override {
    KERND_RETURN_IF_ERROR(pool_.driver_.Bind());
    KERND_ASSIGN_OR_RETURN(core::HostBuffer buffer, pool_.results_.Allocate(bytes, kPinnedPatience));
    if (bytes == 0) return buffer;
    {
      absl::MutexLock lock(&pool_.mutex_);
      KERND_RETURN_IF_ERROR(pool_.driver_.CopyOut(buffer.data(), block_.data() + offset, bytes, pool_.out_));
    }
    if (const absl::Status read = pool_.AwaitStream(pool_.out_); !read.ok()) {
      absl::MutexLock lock(&pool_.mutex_);
      pool_.driver_.Synchronize(pool_.out_).IgnoreError();  // nothing may write the buffer when it has gone
      return read;
    }
    return buffer;
  }

 private:
  ResidentPool& pool_;
  DeviceBlock block_;
};

absl::StatusOr<std::unique_ptr<ResidentPool>> ResidentPool::Create(Driver& driver, PinnedPool& results,
                                                                   std::int64_t limit, std::int64_t chunk_bytes) {
  std::unique_ptr<ResidentPool> pool(new ResidentPool(driver, results, chunk_bytes));
  KERND_RETURN_IF_ERROR(driver.Bind());
  KERND_ASSIGN_OR_RETURN(pool->memory_, DevicePool::Create(driver, limit, 0));
  KERND_ASSIGN_OR_RETURN(pool->in_, driver.CreateStream());
  KERND_ASSIGN_OR_RETURN(pool->out_, driver.CreateStream());
  KERND_ASSIGN_OR_RETURN(pool->slab_, driver.AllocatePinned(kChunks * chunk_bytes));
  for (int i = 0; i < kChunks; ++i) {
    KERND_ASSIGN_OR_RETURN(const Event event, driver.CreateEvent());
    absl::MutexLock lock(&pool->mutex_);
    pool->free_.push_back({.data = pool->slab_ + i * chunk_bytes, .copied = event});
  }
  return pool;
}

ResidentPool::~ResidentPool() {
  driver_.Bind().IgnoreError();
  absl::MutexLock lock(&mutex_);
  for (const Stream stream : {in_, out_}) {
    if (stream != nullptr) driver_.Synchronize(stream).IgnoreError();
  }
  for (const Chunk& chunk : free_) driver_.DestroyEvent(chunk.copied);
  for (const Chunk& chunk : copying_) driver_.DestroyEvent(chunk.copied);
  for (const Event event : events_) driver_.DestroyEvent(event);
  if (slab_ != nullptr) driver_.FreePinned(slab_);
  for (const Stream stream : {in_, out_}) {
    if (stream != nullptr) driver_.Destroy(stream);
  }
}

absl::StatusOr<std::unique_ptr<core::TensorMemory>> ResidentPool::Allocate(std::int64_t bytes) {
  KERND_RETURN_IF_ERROR(driver_.Bind());
  absl::MutexLock lock(&mutex_);
  KERND_ASSIGN_OR_RETURN(DeviceBlock block, memory_->Allocate(bytes, in_));
  return std::make_unique<Tensor>(*this, std::move(block));
}

absl::StatusOr<ResidentPool::Chunk> ResidentPool::TakeChunk() {
  Chunk oldest;
  {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(
        +[](ResidentPool* p) { return !p->free_.empty() || !p->copying_.empty(); }, this));
    if (!free_.empty()) {
      const Chunk chunk = free_.back();
      free_.pop_back();
      return chunk;
    }
    oldest = copying_.front();
    copying_.pop_front();
  }
  if (const absl::Status copied = driver_.Wait(oldest.copied); !copied.ok()) {
    GiveChunk(oldest);
    return copied;
  }
  return oldest;
}

void ResidentPool::GiveChunk(const Chunk& chunk) {
  absl::MutexLock lock(&mutex_);
  free_.push_back(chunk);
}

absl::Status ResidentPool::Write(std::byte* device, absl::Span<const absl::Span<const std::byte>> runs) {
  KERND_RETURN_IF_ERROR(driver_.Bind());
  std::size_t next = 0, into = 0;  // run, and bytes of it that are staged
  while (next < runs.size()) {
    KERND_ASSIGN_OR_RETURN(const Chunk chunk, TakeChunk());
    std::size_t filled = 0;
    while (next < runs.size() && filled < static_cast<std::size_t>(chunk_bytes_)) {
      const std::size_t count = std::min(runs[next].size() - into, static_cast<std::size_t>(chunk_bytes_) - filled);
      if (count > 0) std::memcpy(chunk.data + filled, runs[next].data() + into, count);
      filled += count;
      into += count;
      if (into == runs[next].size()) {
        ++next;
        into = 0;
      }
    }
    if (filled == 0) {  // runs without bytes
      GiveChunk(chunk);
      continue;
    }
    absl::MutexLock lock(&mutex_);
    absl::Status status = driver_.CopyIn(device, chunk.data, static_cast<std::int64_t>(filled), in_);
    if (status.ok()) status = driver_.Record(chunk.copied, in_);
    if (!status.ok()) {
      driver_.Synchronize(in_).IgnoreError();  // the copy may be under way
      free_.push_back(chunk);
      return status;
    }
    copying_.push_back(chunk);
    device += filled;
  }
  return absl::OkStatus();
}

absl::Status ResidentPool::AwaitStream(Stream stream) {
  Event event = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    if (events_.empty()) {
      KERND_ASSIGN_OR_RETURN(event, driver_.CreateEvent());
    } else {
      event = events_.back();
      events_.pop_back();
    }
    if (const absl::Status recorded = driver_.Record(event, stream); !recorded.ok()) {
      events_.push_back(event);
      return recorded;
    }
  }
  const absl::Status passed = driver_.Wait(event);
  absl::MutexLock lock(&mutex_);
  events_.push_back(event);
  return passed;
}

}  // namespace kernd::gpu
