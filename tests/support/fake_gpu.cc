#include "tests/support/fake_gpu.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <utility>

#include "kernd/kernels/non_finite.h"
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

namespace {

FakeGpu* g_gpu = nullptr;  // rows of a table are plain functions

template <typename Problem, typename Geometry>
std::string Anything(const Problem&, const Geometry&, const DeviceInfo&) {
  return "";
}
double Estimate(const MatmulProblem&, const MatmulGeometry& g, const DeviceInfo&) {
  return g_gpu->microseconds_a_row * static_cast<double>(g.batch * g.m);
}
double Estimate(const AttentionProblem&, const AttentionGeometry& g, const DeviceInfo&) {
  double rows = 0;
  for (const AttentionSequence& s : g.sequences) rows += static_cast<double>(g.q_heads * s.q_rows);
  return g_gpu->microseconds_a_row * rows;
}
template <typename Problem, typename Geometry>
std::int64_t OneUnit(const Problem&, const Geometry&, const DeviceInfo&) {
  return kDeviceAlignment;
}
absl::Status Load(const DeviceInfo&) {
  return absl::OkStatus();
}

void AfterKernel(void* result, std::int64_t elements) {
  if (g_gpu->after_kernel) g_gpu->after_kernel(static_cast<float*>(result), elements);
}

absl::Status LaunchMatmul(const MatmulProblem& p, const MatmulGeometry& g, const DeviceInfo&, const MatmulArgs& args,
                          void* workspace, Stream stream) {
  return g_gpu->Launch(stream, [=, &p, &g] {
    std::memset(workspace, 0, kDeviceAlignment);
    reference::Matmul(p, args).IgnoreError();
    AfterKernel(args.d, g.d.elements());
  });
}

// Elements (head, row, column) at these strides, one sequence's.
TensorSpec SpecOf(DataType type, const HeadStrides& strides, std::int64_t heads, std::int64_t rows, std::int64_t cols) {
  return {.dtype = type, .shape = {1, heads, rows, cols}, .strides = {strides.batch, strides.head, strides.row, 1}};
}
TensorSpec SpecOf(DataType type, const BroadcastStrides& strides, const AttentionGeometry& g,
                  const AttentionSequence& s) {
  return {.dtype = type,
          .shape = {1, g.q_heads, s.q_rows, s.kv_length},
          .strides = {strides.batch, strides.head, strides.row, 1}};
}

template <typename T>
const T* At(const void* data, std::int64_t element) {
  return data == nullptr ? nullptr : static_cast<const T*>(data) + element;
}

// As a kernel would: shapes, strides and lengths from geometry and tables, of which a slice has its own; from the
// problem what no slice changes. One sequence after the other.
void Attention(const AttentionProblem& p, const AttentionGeometry& g, const AttentionArgs& args,
               const AttentionTables& tables) {
  for (std::int64_t b = 0; b < g.batch; ++b) {
    const AttentionSequence& s = tables.sequences[b];
    AttentionProblem one;
    one.q = SpecOf(p.q.dtype, g.q, g.q_heads, s.q_rows, g.head_dim);
    one.k = SpecOf(p.k.dtype, g.k, g.kv_heads, s.kv_length, g.head_dim);
    one.v = SpecOf(p.v.dtype, g.v, g.kv_heads, s.kv_length, g.v_head_dim);
    if (p.mask) one.mask = SpecOf(DataType::kBool, g.mask, g, s);
    if (p.bias) one.bias = SpecOf(p.bias->dtype, g.bias, g, s);
    one.scale = g.scale;
    one.softcap = p.softcap;
    one.alignment = s.diagonal == 0 ? MaskAlignment::kTopLeft : MaskAlignment::kBottomRight;
    one.window_left = g.window_left;
    one.window_right = g.window_right;
    one.q_lengths = {s.q_length};
    if (tables.alibi_slopes != nullptr) one.alibi_slopes.assign(tables.alibi_slopes, tables.alibi_slopes + g.q_heads);
    if (tables.sinks != nullptr) one.sinks.assign(tables.sinks, tables.sinks + g.q_heads);
    one.want_lse = p.want_lse;
    std::vector<float> o(static_cast<std::size_t>(g.q_heads * s.q_rows * g.v_head_dim));
    std::vector<float> lse(static_cast<std::size_t>(g.q_heads * s.q_rows));
    const std::int64_t mask = b * g.mask.batch, bias = b * g.bias.batch;
    const absl::Status done = reference::Attention(one, {.q = At<float>(args.q, b * g.q.batch + s.q_start * g.q.row),
                                                         .k = At<float>(args.k, b * g.k.batch + s.kv_start * g.k.row),
                                                         .v = At<float>(args.v, b * g.v.batch + s.kv_start * g.v.row),
                                                         .mask = At<char>(args.mask, mask),
                                                         .bias = At<float>(args.bias, bias),
                                                         .o = o.data(),
                                                         .lse = p.want_lse ? lse.data() : nullptr});
    if (!done.ok()) std::abort();
    for (std::int64_t h = 0; h < g.q_heads; ++h) {
      for (std::int64_t i = 0; i < s.q_rows; ++i) {
        const float* const row = o.data() + (h * s.q_rows + i) * g.v_head_dim;
        std::copy(row, row + g.v_head_dim,
                  static_cast<float*>(args.o) + b * g.o.batch + h * g.o.head + (s.q_start + i) * g.o.row);
        if (p.want_lse) args.lse[b * g.lse.batch + h * g.lse.head + s.q_start + i] = lse[h * s.q_rows + i];
      }
    }
  }
}

absl::Status LaunchAttention(const AttentionProblem& p, const AttentionGeometry& g, const DeviceInfo&,
                             const AttentionArgs& args, const AttentionTables& tables, void* workspace, Stream stream) {
  return g_gpu->Launch(stream, [=, &p, &g] {
    std::memset(workspace, 0, kDeviceAlignment);
    Attention(p, g, args, tables);
    AfterKernel(args.o, g.o_spec.elements());
  });
}

absl::Status ScanTensor(DataType type, const void* data, std::int64_t elements, std::uint64_t* counts,
                        const DeviceInfo&, Stream stream) {
  return g_gpu->Launch(stream, [=] {
    const NonFinite found = CountNonFinite(type, data, elements);
    counts[0] += static_cast<std::uint64_t>(found.nan);
    counts[1] += static_cast<std::uint64_t>(found.inf);
  });
}

AttentionVariant AttentionRow(const char* name, int min_sm) {
  return {.info = {.name = name, .op = OpKind::kAttention, .dtypes = {DataType::kF32}, .method = "the reference"},
          .min_sm = min_sm,
          .why_not = Anything,
          .estimate = Estimate,
          .workspace_bytes = OneUnit,
          .load = Load,
          .launch = LaunchAttention};
}

MatmulVariant MatmulRow(const char* name, int min_sm) {
  return {.info = {.name = name, .op = OpKind::kMatmul, .dtypes = {DataType::kF32}, .method = "the reference"},
          .min_sm = min_sm,
          .why_not = Anything,
          .estimate = Estimate,
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
  return {.attention = attention, .matmul = matmul, .scan = ScanTensor};
}

}  // namespace kernd::testing
