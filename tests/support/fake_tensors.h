// Resident memory for tests of the session store: in a string, poisoned, and able to fail or to keep callers waiting.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "kernd/kernels/tensor.h"
#include "server/core/tensor_memory.h"

namespace kernd::testing {

// U8[bytes].
inline TensorSpec Bytes(std::int64_t bytes) {
  return {.dtype = DataType::kU8, .shape = {bytes}};
}

inline std::string Pattern(std::int64_t bytes, int seed) {
  std::string text(static_cast<std::size_t>(bytes), '\0');
  for (std::size_t i = 0; i < text.size(); ++i)
    text[i] = static_cast<char>(i * 131 + i / 251 + 17u * static_cast<unsigned>(seed));
  return text;
}

// Thread-safe; outlives its memory.
class FakeTensors {
 public:
  absl::StatusOr<std::unique_ptr<core::TensorMemory>> Allocate(std::int64_t bytes) {
    absl::MutexLock lock(&mutex_);
    ++allocations_;
    waiting_ = blocked_;
    mutex_.Await(absl::Condition(
        +[](FakeTensors* t) { return !t->blocked_; }, this));
    if (absl::Status status = std::exchange(fail_, absl::OkStatus()); !status.ok()) return status;
    ++alive_;
    return std::make_unique<Memory>(*this, bytes);
  }

  // The next of each ends with `status`.
  void FailNext(absl::Status status) { Set(fail_, std::move(status)); }
  void FailNextWrite(absl::Status status) { Set(fail_write_, std::move(status)); }
  void FailNextSettle(absl::Status status) { Set(fail_settle_, std::move(status)); }

  // Allocations wait until Unblock.
  void Block() { Set(blocked_, true); }
  void Unblock() { Set(blocked_, false); }
  void AwaitBlocked() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&waiting_));
  }

  std::string Text(const core::TensorMemory& memory) { return static_cast<const Memory&>(memory).text; }
  int alive() const { return Get(alive_); }
  int allocations() const { return Get(allocations_); }
  int settled() const { return Get(settled_); }

 private:
  struct Memory final : core::TensorMemory {
    Memory(FakeTensors& owner, std::int64_t bytes) : fake(owner), text(static_cast<std::size_t>(bytes), '\xEE') {}
    ~Memory() override {
      absl::MutexLock lock(&fake.mutex_);
      --fake.alive_;
      text.assign(text.size(), '\xDD');
    }
    std::int64_t bytes() const override { return static_cast<std::int64_t>(text.size()); }
    std::byte* data() const override { return nullptr; }
    absl::Status Write(std::int64_t offset, absl::Span<const absl::Span<const std::byte>> runs) override {
      if (absl::Status status = fake.Take(fake.fail_write_); !status.ok()) return status;
      for (const absl::Span<const std::byte> run : runs) {
        std::copy(run.begin(), run.end(), reinterpret_cast<std::byte*>(text.data()) + offset);
        offset += static_cast<std::int64_t>(run.size());
      }
      return absl::OkStatus();
    }
    absl::Status Settle() override {
      absl::MutexLock lock(&fake.mutex_);
      ++fake.settled_;
      return std::exchange(fake.fail_settle_, absl::OkStatus());
    }
    absl::StatusOr<core::HostBuffer> Read(std::int64_t, std::int64_t) override {
      return absl::UnimplementedError("not asked for by the store");
    }
    FakeTensors& fake;
    std::string text;
  };

  template <typename T>
  void Set(T& field, T value) {
    absl::MutexLock lock(&mutex_);
    field = std::move(value);
  }
  int Get(const int& field) const {
    absl::MutexLock lock(&mutex_);
    return field;
  }
  absl::Status Take(absl::Status& field) {
    absl::MutexLock lock(&mutex_);
    return std::exchange(field, absl::OkStatus());
  }

  mutable absl::Mutex mutex_;
  bool blocked_ = false, waiting_ = false;
  absl::Status fail_, fail_write_, fail_settle_;
  int alive_ = 0, allocations_ = 0, settled_ = 0;
};

}  // namespace kernd::testing
