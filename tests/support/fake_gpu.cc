// Calls that fail when they are told to; streams and events, on which what was enqueued waits for somebody to wait.
#include "tests/support/fake_gpu.h"

#include <utility>

namespace kernd::testing {

struct FakeGpu::FakeStream {
  std::deque<std::function<void()>> work;
};

struct FakeGpu::FakeEvent {
  FakeStream* stream = nullptr;
  std::int64_t recorded = 0, passed = 0;  // times
};

FakeGpu::FakeGpu() {
  info.uuid = "GPU-00000000-0000-0000-0000-00000000fa6e";
  info.name = "Fake";
  info.sm = 90;
  info.multiprocessors = 132;
  info.shared_memory_optin = 232448;
  info.memory_bytes = memory;
}

FakeGpu::~FakeGpu() = default;

absl::Status FakeGpu::Begin(const std::string& call) {
  std::function<void()> hook;
  {
    absl::MutexLock lock(&mutex_);
    const auto it = hooks_.find(call);
    if (it != hooks_.end() && --it->second.first == 0) {
      hook = std::move(it->second.second);
      hooks_.erase(it);
    }
  }
  if (hook) hook();
  absl::MutexLock lock(&mutex_);
  ++calls_[call];
  if (lost_) return absl::InternalError(call + ": cudaErrorIllegalAddress");
  const auto it = failures_.find(call);
  if (it == failures_.end() || --it->second.first > 0) return absl::OkStatus();
  absl::Status status = std::move(it->second.second);
  failures_.erase(it);
  return status;
}

void FakeGpu::FailNext(const std::string& call, int nth, absl::Status status) {
  absl::MutexLock lock(&mutex_);
  failures_[call] = {nth, std::move(status)};
}

void FakeGpu::AtNext(const std::string& call, int nth, std::function<void()> what) {
  absl::MutexLock lock(&mutex_);
  hooks_[call] = {nth, std::move(what)};
}

void FakeGpu::Lose() {
  absl::MutexLock lock(&mutex_);
  lost_ = true;
}

FakeGpu::Alive FakeGpu::alive() const {
  absl::MutexLock lock(&mutex_);
  return alive_;
}

std::int64_t FakeGpu::calls(const std::string& call) const {
  absl::MutexLock lock(&mutex_);
  const auto it = calls_.find(call);
  return it == calls_.end() ? 0 : it->second;
}

std::int64_t FakeGpu::pending() const {
  absl::MutexLock lock(&mutex_);
  return pending_;
}

void FakeGpu::Enqueue(Stream stream, std::function<void()> work) {
  reinterpret_cast<FakeStream*>(stream)->work.push_back(std::move(work));
  absl::MutexLock lock(&mutex_);
  ++pending_;
}

absl::Status FakeGpu::Health() {
  absl::MutexLock lock(&mutex_);
  return lost_ ? absl::InternalError("cudaErrorIllegalAddress") : absl::OkStatus();
}

absl::StatusOr<Stream> FakeGpu::CreateStream() {
  if (const absl::Status s = Begin("CreateStream"); !s.ok()) return s;
  absl::MutexLock lock(&mutex_);
  ++alive_.streams;
  return reinterpret_cast<Stream>(new FakeStream);
}

void FakeGpu::Destroy(Stream stream) {
  auto* fake = reinterpret_cast<FakeStream*>(stream);
  while (Step(*fake)) {
  }
  delete fake;
  absl::MutexLock lock(&mutex_);
  --alive_.streams;
}

absl::StatusOr<gpu::Event> FakeGpu::CreateEvent() {
  if (const absl::Status s = Begin("CreateEvent"); !s.ok()) return s;
  absl::MutexLock lock(&mutex_);
  ++alive_.events;
  return static_cast<gpu::Event>(new FakeEvent);
}

void FakeGpu::DestroyEvent(gpu::Event event) {
  delete static_cast<FakeEvent*>(event);
  absl::MutexLock lock(&mutex_);
  --alive_.events;
}

bool FakeGpu::Step(FakeStream& stream) {
  if (stream.work.empty()) return false;
  const std::function<void()> next = std::move(stream.work.front());
  stream.work.pop_front();
  next();
  absl::MutexLock lock(&mutex_);
  --pending_;
  return true;
}

absl::Status FakeGpu::Record(gpu::Event event, Stream stream) {
  if (absl::Status s = Begin("Record"); !s.ok()) return s;
  auto* fake = static_cast<FakeEvent*>(event);
  fake->stream = reinterpret_cast<FakeStream*>(stream);
  ++fake->recorded;
  Enqueue(stream, [fake] { ++fake->passed; });
  return absl::OkStatus();
}

absl::StatusOr<bool> FakeGpu::Passed(gpu::Event event) {
  if (const absl::Status s = Begin("Passed"); !s.ok()) return s;
  auto* fake = static_cast<FakeEvent*>(event);
  if (fake->passed < fake->recorded) Step(*fake->stream);
  return fake->passed == fake->recorded;
}

absl::Status FakeGpu::Wait(gpu::Event event) {
  if (absl::Status s = Begin("Wait"); !s.ok()) return s;
  auto* fake = static_cast<FakeEvent*>(event);
  while (fake->passed < fake->recorded && Step(*fake->stream)) {
  }
  return absl::OkStatus();
}

absl::StatusOr<absl::Duration> FakeGpu::Between(gpu::Event from, gpu::Event to) {
  if (const absl::Status s = Begin("Between"); !s.ok()) return s;
  const auto done = [](gpu::Event event) {
    const auto* fake = static_cast<FakeEvent*>(event);
    return fake->recorded > 0 && fake->passed == fake->recorded;
  };
  if (!done(from) || !done(to)) return absl::InternalError("cudaErrorNotReady");
  return absl::Microseconds(1);
}

absl::Status FakeGpu::Synchronize(Stream stream) {
  absl::Status s = Begin("Synchronize");
  while (Step(*reinterpret_cast<FakeStream*>(stream))) {
  }
  return s;
}

absl::Status FakeGpu::Launch(Stream stream, std::function<void()> work) {
  if (absl::Status s = Begin("Launch"); !s.ok()) return s;
  Enqueue(stream, std::move(work));
  return absl::OkStatus();
}

}  // namespace kernd::testing
