#include "kernels/emulator/emulator.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <vector>

#include "kernels/emulator/fiber.h"

namespace kernd::emulator {
namespace {

constexpr std::size_t kGranule = 16;
constexpr int kPoison = 0xff;  // NaN in every floating type

struct Copy {
  std::uint32_t to;
  const void* from;
  unsigned bytes;
};

enum class State : std::uint8_t { kReady, kAtCollective, kAtBarrier, kLeft };

struct Thread {
  Index3 index;
  State state = State::kReady;
  bool barrier_value = false;
  std::vector<Copy> open;                // issued, not committed
  std::deque<std::vector<Copy>> groups;  // committed, oldest first
};

struct Warp {
  unsigned arrived = 0;
  const char* what = nullptr;
  void* lanes[kLanes] = {};
};

// Who touched 16 bytes of shared memory last. Epochs are counted by barriers.
struct Touch {
  std::uint32_t write_epoch = 0, read_epoch = 0;  // 0: never
  unsigned writer = 0;                            // warp
  unsigned readers = 0;                           // a bit for each warp
  bool in_flight = false;
};

// A block that runs, on the fibers of its host thread.
class Block {
 public:
  void Run(const char* kernel, Index3 grid, Index3 block, std::size_t shared_bytes,
           const std::function<void()>& thread);

  void Arrive(bool value, const char* what);
  void Collect(const char* what, void* lane, void (*all)(void* const*));
  std::byte* Touched(std::uint32_t offset, std::size_t bytes, bool write, const char* what);
  void Issue(const Copy& copy);
  void Commit();
  void Wait(unsigned newest);

  Thread& current() { return threads_[current_]; }
  bool running() const { return running_; }
  bool any() const { return barrier_any_; }
  std::byte* shared() { return shared_; }
  std::size_t shared_bytes() const { return shared_bytes_; }
  const char* kernel() const { return kernel_; }

  Index3 grid, block_dim, block;
  Counters counters;
  Order order = Order::kVaried;
  std::mt19937_64 random;

 private:
  void RunBlock();
  unsigned NextWarp();  // one with a thread that can go on
  void Leave();
  void ReleaseBarrier();
  void GiveWay(State state);
  unsigned warp() const { return current_ / kLanes; }

  const char* kernel_ = nullptr;
  Order launch_order_ = Order::kAscending;
  unsigned launch_ = 0;
  const std::function<void()>* entry_ = nullptr;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  std::vector<Touch> touches_;
  std::vector<std::byte> memory_;
  std::byte* shared_ = nullptr;
  std::size_t shared_bytes_ = 0;
  unsigned current_ = 0, live_ = 0, at_barrier_ = 0, last_warp_ = 0;
  const char* barrier_ = nullptr;
  bool barrier_any_ = false, barrier_next_ = false, running_ = false;
  std::uint32_t epoch_ = 1;
};

thread_local Block block_of_thread;

void Block::Run(const char* kernel, Index3 grid_dim, Index3 dim, std::size_t shared_bytes,
                const std::function<void()>& thread) {
  kernel_ = kernel;
  entry_ = &thread;
  grid = grid_dim;
  block_dim = dim;
  if (dim.y != 1 || dim.z != 1 || dim.x == 0 || dim.x > 1024 || dim.x % kLanes != 0 || grid.x == 0) {
    std::fprintf(stderr, "emulator: %s: launched with %u x %u x %u threads and %u blocks\n", kernel, dim.x, dim.y,
                 dim.z, grid.x);
    std::abort();
  }
  while (fibers_.size() < dim.x) fibers_.push_back(std::make_unique<Fiber>());
  constexpr std::size_t kAlignment = 1024;
  shared_bytes_ = shared_bytes;
  memory_.assign(shared_bytes + kAlignment, std::byte{kPoison});
  const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
  shared_ = memory_.data() + ((address + kAlignment - 1) / kAlignment * kAlignment - address);
  launch_order_ = order == Order::kVaried ? static_cast<Order>(launch_++ % 3) : order;
  ++counters.launches;
  running_ = true;
  for (block.z = 0; block.z < grid.z; ++block.z) {
    for (block.y = 0; block.y < grid.y; ++block.y) {
      for (block.x = 0; block.x < grid.x; ++block.x) RunBlock();
    }
  }
  running_ = false;
}

void Block::RunBlock() {
  ++counters.blocks;
  const unsigned threads = block_dim.x;
  threads_.assign(threads, Thread{});
  warps_.assign(threads / kLanes, Warp{});
  touches_.assign((shared_bytes_ + kGranule - 1) / kGranule, Touch{});
  std::memset(shared_, kPoison, shared_bytes_);
  live_ = threads;
  at_barrier_ = 0;
  epoch_ = 1;
  last_warp_ = launch_order_ == Order::kDescending ? 0 : static_cast<unsigned>(warps_.size()) - 1;
  for (unsigned i = 0; i < threads; ++i) {
    threads_[i].index = {i, 0, 0};
    fibers_[i]->Start(
        [](void* self) {
          auto* const b = static_cast<Block*>(self);
          (*b->entry_)();
          b->Leave();
        },
        this);
  }
  while (live_ > 0) {
    const unsigned chosen = NextWarp();
    for (unsigned i = chosen * kLanes; i < (chosen + 1) * kLanes; ++i) {
      if (threads_[i].state != State::kReady) continue;
      current_ = i;
      fibers_[i]->Resume();
    }
  }
}

// A warp goes as far as it can; then the next one in order. In random order, any that can go on.
unsigned Block::NextWarp() {
  const auto can = [&](unsigned w) {
    return std::any_of(threads_.begin() + w * kLanes, threads_.begin() + (w + 1) * kLanes,
                       [](const Thread& t) { return t.state == State::kReady; });
  };
  const auto count = static_cast<unsigned>(warps_.size());
  if (launch_order_ == Order::kRandom) {
    last_warp_ = static_cast<unsigned>(random() % count);
  } else if (can(last_warp_)) {
    return last_warp_;
  }
  for (unsigned i = 0; i < count; ++i) {
    last_warp_ = launch_order_ == Order::kDescending ? (last_warp_ + count - 1) % count : (last_warp_ + 1) % count;
    if (can(last_warp_)) return last_warp_;
  }
  std::fprintf(stderr, "emulator: %s block %u: nobody can go on: %u of %u threads are at a barrier", kernel_, block.x,
               at_barrier_, live_);
  for (unsigned w = 0; w < count; ++w) {
    if (warps_[w].arrived > 0) {
      std::fprintf(stderr, "; %u lanes of warp %u are at %s", warps_[w].arrived, w, warps_[w].what);
    }
  }
  std::fprintf(stderr, "\n");
  std::abort();
}

void Block::GiveWay(State state) {
  threads_[current_].state = state;
  fibers_[current_]->Yield();
}

void Block::Leave() {
  Thread& t = threads_[current_];
  for (const auto& group : t.groups) {
    if (!group.empty()) Fail("left with copies in flight");
  }
  if (!t.open.empty()) Fail("left with copies that were not committed");
  if (warps_[warp()].arrived > 0) Fail("left while %s waits for it", warps_[warp()].what);
  --live_;
  if (live_ > 0 && at_barrier_ == live_) ReleaseBarrier();
  GiveWay(State::kLeft);
}

void Block::ReleaseBarrier() {
  at_barrier_ = 0;
  barrier_any_ = barrier_next_;
  ++epoch_;
  ++counters.barriers;
  for (Thread& t : threads_) {
    if (t.state == State::kAtBarrier) t.state = State::kReady;
  }
}

void Block::Arrive(bool value, const char* what) {
  if (at_barrier_ == 0) {
    barrier_ = what;
    barrier_next_ = false;
  }
  if (barrier_ != what) Fail("is at %s and others at %s", what, barrier_);
  barrier_next_ = barrier_next_ || value;
  if (++at_barrier_ == live_) {
    ReleaseBarrier();
  } else {
    GiveWay(State::kAtBarrier);
  }
}

void Block::Collect(const char* what, void* lane, void (*all)(void* const*)) {
  Warp& w = warps_[warp()];
  if (w.arrived == 0) w.what = what;
  if (w.what != what) Fail("is at %s and other lanes at %s", what, w.what);
  w.lanes[current_ % kLanes] = lane;
  const unsigned first = warp() * kLanes;
  if (++w.arrived < kLanes) {
    GiveWay(State::kAtCollective);
    return;
  }
  w.arrived = 0;
  all(w.lanes);
  for (unsigned i = first; i < first + kLanes; ++i) {
    if (threads_[i].state == State::kAtCollective) threads_[i].state = State::kReady;
  }
}

std::byte* Block::Touched(std::uint32_t offset, std::size_t bytes, bool write, const char* what) {
  if (offset % kGranule != 0 || bytes % kGranule != 0) Fail("%s at %u: not a multiple of 16", what, offset);
  if (offset + bytes > shared_bytes_) Fail("%s at %u: shared memory has %zu bytes", what, offset, shared_bytes_);
  for (std::size_t g = offset / kGranule; g < (offset + bytes) / kGranule; ++g) {
    Touch& t = touches_[g];
    const auto at = static_cast<unsigned>(g * kGranule);
    if (t.in_flight) Fail("%s at %u, which a copy is still to fill", what, at);
    if (t.write_epoch == epoch_ && t.writer != warp()) {
      Fail("%s at %u, which warp %u wrote since the last barrier", what, at, t.writer);
    }
    const unsigned self = 1u << warp();
    if (write) {
      if (t.read_epoch == epoch_ && (t.readers & ~self) != 0) {
        Fail("%s at %u, which other warps (mask %x) read since the last barrier", what, at, t.readers & ~self);
      }
      t.write_epoch = epoch_;
      t.writer = warp();
    } else {
      t.readers = t.read_epoch == epoch_ ? t.readers | self : self;
      t.read_epoch = epoch_;
    }
  }
  return shared_ + offset;
}

void Block::Issue(const Copy& copy) {
  if (copy.bytes > kGranule) Fail("cp.async of %u bytes", copy.bytes);
  if (copy.bytes > 0 && reinterpret_cast<std::uintptr_t>(copy.from) % kGranule != 0) {
    Fail("cp.async from %p: not a multiple of 16", copy.from);
  }
  std::memset(Touched(copy.to, kGranule, true, "cp.async"), kPoison, kGranule);
  touches_[copy.to / kGranule].in_flight = true;
  threads_[current_].open.push_back(copy);
  ++counters.copies;
}

void Block::Commit() {
  Thread& t = threads_[current_];
  t.groups.push_back(std::move(t.open));
  t.open.clear();
}

void Block::Wait(unsigned newest) {
  Thread& t = threads_[current_];
  while (t.groups.size() > newest) {
    for (const Copy& copy : t.groups.front()) {
      touches_[copy.to / kGranule].in_flight = false;
      std::byte* const to = Touched(copy.to, kGranule, true, "arrival of cp.async");
      std::memcpy(to, copy.from, copy.bytes);
      std::memset(to + copy.bytes, 0, kGranule - copy.bytes);
    }
    t.groups.pop_front();
  }
}

}  // namespace

void SetOrder(Order order, std::uint64_t seed) {
  block_of_thread.order = order;
  block_of_thread.random.seed(seed);
}

Counters& Counts() {
  return block_of_thread.counters;
}
void ResetCounters() {
  block_of_thread.counters = {};
}

void Run(const char* kernel, Index3 grid, Index3 block, std::size_t shared_bytes, const std::function<void()>& thread) {
  block_of_thread.Run(kernel, grid, block, shared_bytes, thread);
}

const Index3& ThreadIndex() {
  return block_of_thread.current().index;
}
const Index3& BlockIndex() {
  return block_of_thread.block;
}
const Index3& BlockDim() {
  return block_of_thread.block_dim;
}
const Index3& GridDim() {
  return block_of_thread.grid;
}

void Barrier() {
  block_of_thread.Arrive(false, "__syncthreads");
}

bool BarrierOr(bool value) {
  block_of_thread.Arrive(value, "__syncthreads_or");
  return block_of_thread.any();
}

void Collective(const char* what, void* lane, void (*all)(void* const*)) {
  block_of_thread.Collect(what, lane, all);
}

std::byte* SharedMemory() {
  return block_of_thread.shared();
}

std::uint32_t SharedOffset(const void* address) {
  const auto distance = static_cast<const std::byte*>(address) - block_of_thread.shared();
  if (distance < 0 || static_cast<std::size_t>(distance) >= block_of_thread.shared_bytes()) {
    Fail("%p is not in shared memory", address);
  }
  return static_cast<std::uint32_t>(distance);
}

const std::byte* ReadShared(std::uint32_t offset, std::size_t bytes, const char* what) {
  return block_of_thread.Touched(offset, bytes, false, what);
}
std::byte* WriteShared(std::uint32_t offset, std::size_t bytes, const char* what) {
  return block_of_thread.Touched(offset, bytes, true, what);
}

void CopyAsync(std::uint32_t to, const void* from, unsigned bytes) {
  block_of_thread.Issue({to, from, bytes});
}
void CommitCopies() {
  block_of_thread.Commit();
}
void WaitCopies(unsigned newest) {
  block_of_thread.Wait(newest);
}

void Fail(const char* format, ...) {
  if (block_of_thread.running()) {
    std::fprintf(stderr, "emulator: %s block %u thread %u: ", block_of_thread.kernel(), block_of_thread.block.x,
                 block_of_thread.current().index.x);
  } else {
    std::fprintf(stderr, "emulator: ");
  }
  va_list arguments;
  va_start(arguments, format);
  std::vfprintf(stderr, format, arguments);
  va_end(arguments);
  std::fprintf(stderr, "\n");
  std::abort();
}

}  // namespace kernd::emulator
