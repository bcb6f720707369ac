// A GPU made of host memory, for the parts of the backend that are not kernels. It is as lazy as a GPU may be: what is
// enqueued on a stream happens only when somebody waits for it, one operation at a time, so that a buffer that is
// reused too early, or given back too early, shows. Every k-th call of a kind can be made to fail, and the device can
// be lost.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "server/gpu/driver.h"

namespace kernd::testing {

class FakeGpu final : public gpu::Driver {
 public:
  // What is alive; all 0 once everything has been given back.
  struct Alive {
    int streams = 0, events = 0, pools = 0, blocks = 0, pinned = 0, registered = 0;
    bool operator==(const Alive&) const = default;
  };

  FakeGpu();
  ~FakeGpu() override;

  DeviceInfo info;                              // an H200 in all but speed
  std::int64_t memory = std::int64_t{1} << 30;  // of the device
  double microseconds_a_row = 1e-3;             // of a result, in the estimates of fake_kernels.h
  // Runs after each of these with its result D or O: for kernels that write where they should not.
  std::function<void(float* result, std::int64_t elements)> after_kernel;

  // The `nth` next call of this name ("Allocate", "CopyIn", "Launch", ...) fails with `status`; 1 is the next one.
  void FailNext(const std::string& call, int nth, absl::Status status);
  // Runs `what` at the `nth` next call of this name, before it has its effect.
  void AtNext(const std::string& call, int nth, std::function<void()> what);
  // From now on every call fails, as after an illegal address.
  void Lose();
  // Runs `work` in the order of the stream. For kernels. The status that FailNext("Launch") asked for, or OK.
  absl::Status Launch(Stream stream, std::function<void()> work);

  Alive alive() const;
  std::int64_t calls(const std::string& call) const;
  // Operations that are enqueued and have not happened.
  std::int64_t pending() const;

  const DeviceInfo& device() const override { return info; }
  absl::Status Bind() override { return Begin("Bind"); }
  absl::Status Health() override;
  absl::StatusOr<Stream> CreateStream() override;
  absl::StatusOr<gpu::Event> CreateEvent() override;
  void Destroy(Stream stream) override;
  void DestroyEvent(gpu::Event event) override;
  absl::Status Record(gpu::Event event, Stream stream) override;
  absl::StatusOr<bool> Passed(gpu::Event event) override;
  absl::Status Wait(gpu::Event event) override;
  absl::StatusOr<absl::Duration> Between(gpu::Event from, gpu::Event to) override;
  absl::Status Synchronize(Stream stream) override;
  absl::Status CopyIn(std::byte* device, const std::byte* host, std::int64_t bytes, Stream stream) override;
  absl::Status CopyOut(std::byte* host, const std::byte* device, std::int64_t bytes, Stream stream) override;
  absl::Status CopyRows(std::byte* to, const std::byte* from, std::int64_t pitch, std::int64_t row_bytes,
                        std::int64_t rows, Stream stream) override;
  absl::StatusOr<std::byte*> AllocatePinned(std::int64_t bytes) override;
  void FreePinned(std::byte* memory) override;
  absl::Status RegisterHost(std::byte* memory, std::int64_t bytes) override;
  // Writes the first and the last byte, as a driver that touches pages: they must still be there.
  void UnregisterHost(std::byte* memory) override;
  absl::StatusOr<gpu::Pool> CreatePool(std::int64_t limit) override;
  void DestroyPool(gpu::Pool pool) override;
  absl::StatusOr<std::byte*> Allocate(gpu::Pool pool, std::int64_t bytes, Stream stream) override;
  absl::Status Free(std::byte* memory, Stream stream) override;
  absl::StatusOr<std::int64_t> Reserved(gpu::Pool pool) override;
  absl::Status Trim(gpu::Pool pool, std::int64_t keep) override;
  absl::StatusOr<std::int64_t> FreeMemory() override;

 private:
  struct FakeStream;
  struct FakeEvent;
  struct FakePool;

  absl::Status Begin(const std::string& call);
  absl::Status CheckInBlock(const std::byte* device, std::int64_t bytes) const;
  bool IsRegistered(const std::byte* host, std::int64_t bytes) const;
  void Enqueue(Stream stream, std::function<void()> work);
  // Performs the stream's next operation; false where it has none.
  bool Step(FakeStream& stream);

  mutable absl::Mutex mutex_;
  std::map<std::string, std::int64_t> calls_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::pair<int, absl::Status>> failures_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::pair<int, std::function<void()>>> hooks_ ABSL_GUARDED_BY(mutex_);
  std::int64_t pending_ ABSL_GUARDED_BY(mutex_) = 0;
  bool lost_ ABSL_GUARDED_BY(mutex_) = false;
  Alive alive_ ABSL_GUARDED_BY(mutex_);
  std::int64_t used_ ABSL_GUARDED_BY(mutex_) = 0;  // of `memory`
  std::map<std::byte*, std::pair<FakePool*, std::int64_t>> blocks_ ABSL_GUARDED_BY(mutex_);
  std::map<std::byte*, std::int64_t> registered_ ABSL_GUARDED_BY(mutex_);  // host memory
};

}  // namespace kernd::testing
