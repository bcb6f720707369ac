#include "tests/support/fake_gpu.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <utility>

#include "kernels/reference/attention.h"
#include "kernels/reference/matmul.h"

namespace kernd::testing {
namespace {

// What memory holds that nobody has written, or that was given back: as F32, a NaN.
constexpr int kPoison = 0xff;

}  // namespace

struct FakeGpu::FakeStream {
  std::deque<std::function<void()>> work;
};

struct FakeGpu::FakeEvent {
  FakeStream* stream = nullptr;
  std::int64_t recorded = 0, passed = 0;  // times
};

struct FakeGpu::FakePool {
  std::int64_t limit = 0, used = 0, reserved = 0;
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

absl::Status FakeGpu::Launch(Stream stream, std::function<void()> work) {
  if (absl::Status s = Begin("Launch"); !s.ok()) return s;
  Enqueue(stream, std::move(work));
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

namespace {

FakeGpu* g_gpu = nullptr;  // rows of a table are plain functions

template <typename Problem, typename Geometry>
std::string Anything(const Problem&, const Geometry&, const DeviceInfo&) {
  return "";
}
template <typename Problem, typename Geometry>
double OneMicrosecond(const Problem&, const Geometry&, const DeviceInfo&) {
  return 1;
}
template <typename Problem, typename Geometry>
std::int64_t OneUnit(const Problem&, const Geometry&, const DeviceInfo&) {
  return kDeviceAlignment;
}
absl::Status Load(const DeviceInfo&) {
  return absl::OkStatus();
}

absl::Status LaunchMatmul(const MatmulProblem& p, const MatmulGeometry&, const DeviceInfo&, const MatmulArgs& args,
                          void* workspace, Stream stream) {
  return g_gpu->Launch(stream, [=, &p] {
    std::memset(workspace, 0, kDeviceAlignment);
    reference::Matmul(p, args).IgnoreError();
  });
}

absl::Status LaunchAttention(const AttentionProblem& p, const AttentionGeometry& g, const DeviceInfo&,
                             const AttentionArgs& args, const AttentionTables& tables, void* workspace, Stream stream) {
  return g_gpu->Launch(stream, [=, &p, &g] {
    std::memset(workspace, 0, kDeviceAlignment);
    // The tables as they arrived: a kernel would read them in place of the problem's own arrays.
    AttentionProblem on_device = p;
    if (!p.alibi_slopes.empty()) on_device.alibi_slopes.assign(tables.alibi_slopes, tables.alibi_slopes + g.q_heads);
    if (!p.sinks.empty()) on_device.sinks.assign(tables.sinks, tables.sinks + g.q_heads);
    for (std::size_t i = 0; i < p.kv_lengths.size(); ++i) on_device.kv_lengths[i] = tables.sequences[i].kv_length;
    for (std::size_t i = 0; i < p.q_lengths.size(); ++i) on_device.q_lengths[i] = tables.sequences[i].q_length;
    reference::Attention(on_device, args).IgnoreError();
  });
}

AttentionVariant AttentionRow(const char* name, int min_sm) {
  return {.info = {.name = name, .op = OpKind::kAttention, .dtypes = {DataType::kF32}, .method = "the reference"},
          .min_sm = min_sm,
          .why_not = Anything,
          .estimate = OneMicrosecond,
          .workspace_bytes = OneUnit,
          .load = Load,
          .launch = LaunchAttention};
}

MatmulVariant MatmulRow(const char* name, int min_sm) {
  return {.info = {.name = name, .op = OpKind::kMatmul, .dtypes = {DataType::kF32}, .method = "the reference"},
          .min_sm = min_sm,
          .why_not = Anything,
          .estimate = OneMicrosecond,
          .workspace_bytes = OneUnit,
          .load = Load,
          .launch = LaunchMatmul};
}

}  // namespace

gpu::KernelTables FakeKernels(FakeGpu& gpu) {
  g_gpu = &gpu;
  static const auto& attention = *new std::vector<AttentionVariant>{AttentionRow("attention_f32_sm75_fake", 75),
                                                                    AttentionRow("attention_f32_sm100_fake", 100)};
  static const auto& matmul =
      *new std::vector<MatmulVariant>{MatmulRow("matmul_f32_sm75_fake", 75), MatmulRow("matmul_f32_sm100_fake", 100)};
  return {.attention = attention, .matmul = matmul};
}

}  // namespace kernd::testing
