#include "kernels/emulator/emulator.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "kernels/emulator/block.h"

namespace kernd::emulator {
namespace {

constexpr std::size_t kGranule = 16;
constexpr int kPoison = 0xff;  // NaN in every floating type
constexpr std::int64_t kRegistersOfSm = 65536;

thread_local Block block_of_thread;

}  // namespace

Block& TheBlock() {
  return block_of_thread;
}

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
  hazards.Reset(shared_bytes_, threads / kLanes);
  mbarriers.clear();
  for (NamedBarrier& barrier : named) barrier = {};
  const unsigned each = std::min(255u, static_cast<unsigned>(kRegistersOfSm / threads)) / 8 * 8;
  registers.assign(threads / kLanes, each);
  free_registers = 0;  // a block has those that it started with
  std::memset(shared_, kPoison, shared_bytes_);
  live_ = threads;
  at_barrier_ = 0;
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
      if (!CanGoOn(threads_[i])) continue;
      threads_[i].state = State::kReady;
      current_ = i;
      fibers_[i]->Resume();
    }
  }
  EndWarpgroups(*this);
  if (!deliveries_.empty()) Fail("ended with bulk copies in flight");
}

// A warp goes as far as it can; then the next one in order. In random order, any that can go on.
bool Block::FindWarp(unsigned& warp) {
  const auto can = [&](unsigned w) {
    return std::any_of(threads_.begin() + w * kLanes, threads_.begin() + (w + 1) * kLanes, CanGoOn);
  };
  const auto count = static_cast<unsigned>(warps_.size());
  if (launch_order_ == Order::kRandom) {
    warp = static_cast<unsigned>(random() % count);
  } else if (can(warp)) {
    return true;
  }
  for (unsigned i = 0; i < count; ++i) {
    warp = launch_order_ == Order::kDescending ? (warp + count - 1) % count : (warp + 1) % count;
    if (can(warp)) return true;
  }
  return false;
}

// In ascending order as late as can be, in descending order at once.
unsigned Block::NextWarp() {
  if (launch_order_ == Order::kDescending) {
    while (!deliveries_.empty()) Deliver();
  } else if (launch_order_ == Order::kRandom && !deliveries_.empty() && random() % 4 == 0) {
    Deliver();
  }
  while (!FindWarp(last_warp_)) {
    if (deliveries_.empty()) FailStuck();
    Deliver();
  }
  return last_warp_;
}

void Block::Deliver() {
  const std::size_t at = launch_order_ == Order::kRandom ? random() % deliveries_.size() : 0;
  const std::function<void()> delivery = std::move(deliveries_[at]);
  deliveries_.erase(deliveries_.begin() + static_cast<std::ptrdiff_t>(at));
  delivery();
}

void Block::FailStuck() {
  std::fprintf(stderr, "emulator: %s block %u: nobody can go on: %u of %u threads are at a barrier", kernel_, block.x,
               at_barrier_, live_);
  for (unsigned w = 0; w < warps_.size(); ++w) {
    if (warps_[w].arrived > 0) {
      std::fprintf(stderr, "; %u lanes of warp %u are at %s", warps_[w].arrived, w, warps_[w].what);
    }
    for (unsigned i = w * kLanes; i < (w + 1) * kLanes; ++i) {
      if (threads_[i].state != State::kWaiting) continue;
      std::fprintf(stderr, "; thread %u is at %s of %u", i, threads_[i].what, threads_[i].at);
      break;
    }
  }
  for (const auto& [at, barrier] : mbarriers) {
    std::fprintf(stderr, "; the mbarrier at %u has parity %u and waits for %lld arrivals and %lld bytes", at,
                 barrier.parity, static_cast<long long>(barrier.pending), static_cast<long long>(barrier.bytes));
  }
  std::fprintf(stderr, "\n");
  std::abort();
}

void Block::WaitUntil(const std::function<bool()>& ready, const char* what, std::uint32_t at) {
  while (!ready()) {
    Thread& t = threads_[current_];
    t.ready = &ready;
    t.what = what;
    t.at = at;
    GiveWay(State::kWaiting);
  }
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
  LeaveWarpgroup(*this);
  --live_;
  if (live_ > 0 && at_barrier_ == live_) ReleaseBarrier();
  GiveWay(State::kLeft);
}

void Block::ReleaseBarrier() {
  at_barrier_ = 0;
  barrier_any_ = barrier_next_;
  hazards.JoinAll();
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

std::byte* Block::Written(std::uint32_t offset, std::size_t bytes, const char* what, unsigned lanes) {
  hazards.Write(warp(), lanes == 0 ? 1u << lane() : lanes, offset, bytes, what);
  return shared_ + offset;
}

void Block::Issue(const Copy& copy) {
  if (copy.there && reinterpret_cast<std::uintptr_t>(copy.from) % kGranule != 0) {
    Fail("cp.async from %p: not a multiple of 16", copy.from);
  }
  std::memset(Written(copy.to, kGranule, "cp.async"), kPoison, kGranule);
  hazards.SetInFlight(copy.to, true);
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
      hazards.SetInFlight(copy.to, false);
      std::byte* const to = Written(copy.to, kGranule, "arrival of cp.async");
      copy.there ? std::memcpy(to, copy.from, kGranule) : std::memset(to, 0, kGranule);
    }
    t.groups.pop_front();
  }
}

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
  return block_of_thread.thread_index();
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
  block_of_thread.hazards.Read(block_of_thread.warp(), offset, bytes, what);
  return block_of_thread.shared() + offset;
}
std::byte* WriteShared(std::uint32_t offset, std::size_t bytes, const char* what, unsigned lanes) {
  return block_of_thread.Written(offset, bytes, what, lanes);
}

void CopyAsync(std::uint32_t to, const void* from, bool there) {
  block_of_thread.Issue({to, from, there});
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
                 block_of_thread.thread_index().x);
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
