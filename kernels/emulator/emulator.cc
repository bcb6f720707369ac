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
constexpr unsigned kMaxCluster = 8;

thread_local Block block_of_thread;

}  // namespace

Block& TheBlock() {
  return block_of_thread;
}

void Block::Run(const char* kernel, Index3 grid_dim, Index3 dim, std::size_t shared_bytes, unsigned cluster,
                const std::function<void()>& thread) {
  kernel_ = kernel;
  entry_ = &thread;
  grid = grid_dim;
  block_dim = dim;
  cluster_ = cluster;
  if (dim.y != 1 || dim.z != 1 || dim.x == 0 || dim.x > 1024 || dim.x % kLanes != 0 || grid.x == 0 || cluster == 0 ||
      cluster > kMaxCluster || grid.x % cluster != 0 || cluster * dim.x > kMaxWarps * kLanes) {
    std::fprintf(stderr, "emulator: %s: launched with %u x %u x %u threads and %u blocks in clusters of %u\n", kernel,
                 dim.x, dim.y, dim.z, grid.x, cluster);
    std::abort();
  }
  while (fibers_.size() < cluster * dim.x) fibers_.push_back(std::make_unique<Fiber>());
  constexpr std::size_t kAlignment = 1024;
  shared_bytes_ = shared_bytes;
  stride_ = static_cast<std::uint32_t>((shared_bytes + kAlignment - 1) / kAlignment * kAlignment);
  memory_.assign(cluster * stride_ + kAlignment, std::byte{kPoison});
  const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
  shared_ = memory_.data() + ((address + kAlignment - 1) / kAlignment * kAlignment - address);
  launch_order_ = order == Order::kVaried ? static_cast<Order>(launch_++ % 3) : order;
  ++counters.launches;
  running_ = true;
  Index3 first;
  for (first.z = 0; first.z < grid.z; ++first.z) {
    for (first.y = 0; first.y < grid.y; ++first.y) {
      for (first.x = 0; first.x < grid.x; first.x += cluster) RunCluster(first);
    }
  }
  running_ = false;
}

void Block::RunCluster(const Index3& first) {
  counters.blocks += cluster_;
  const unsigned threads = cluster_ * block_dim.x;
  threads_.assign(threads, Thread{});
  warps_.assign(threads / kLanes, Warp{});
  hazards.Reset((cluster_ - 1) * stride_ + shared_bytes_, threads / kLanes);
  mbarriers.clear();
  const unsigned each = std::min(255u, static_cast<unsigned>(kRegistersOfSm / block_dim.x)) / 8 * 8;
  registers.assign(threads / kLanes, each);
  members_.assign(cluster_, Member{.live = block_dim.x});  // none has registers but those that it started with
  std::memset(shared_, kPoison, cluster_ * stride_);
  live_ = threads;
  at_cluster_ = 0;
  last_warp_ = launch_order_ == Order::kDescending ? 0 : static_cast<unsigned>(warps_.size()) - 1;
  for (unsigned i = 0; i < threads; ++i) {
    threads_[i].index = {i % block_dim.x, 0, 0};
    threads_[i].block = {first.x + i / block_dim.x, first.y, first.z};
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
  std::fprintf(stderr, "emulator: %s block %u: nobody can go on: %u of %u threads are at a barrier", kernel_,
               threads_[0].block.x, members_[0].at_barrier, members_[0].live);
  for (unsigned rank = 1; rank < cluster_; ++rank) {
    std::fprintf(stderr, "; of block %u, %u of %u", threads_[0].block.x + rank, members_[rank].at_barrier,
                 members_[rank].live);
  }
  if (at_cluster_ > 0) std::fprintf(stderr, "; %u of %u are at the cluster's", at_cluster_, live_);
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
  --own().live;
  if (own().live > 0 && own().at_barrier == own().live) ReleaseBarrier(rank());
  if (live_ > 0 && at_cluster_ == live_) ReleaseCluster();
  GiveWay(State::kLeft);
}

void Block::ReleaseBarrier(unsigned rank) {
  members_[rank].at_barrier = 0;
  members_[rank].any = members_[rank].next;
  const unsigned first = rank * block_dim.x;
  hazards.JoinAll(first / kLanes, block_dim.x / kLanes);
  ++counters.barriers;
  for (unsigned i = first; i < first + block_dim.x; ++i) {
    if (threads_[i].state == State::kAtBarrier) threads_[i].state = State::kReady;
  }
}

void Block::Arrive(bool value, const char* what) {
  Member& m = own();
  if (m.at_barrier == 0) {
    m.barrier = what;
    m.next = false;
  }
  if (m.barrier != what) Fail("is at %s and others at %s", what, m.barrier);
  m.next = m.next || value;
  if (++m.at_barrier == m.live) {
    ReleaseBarrier(rank());
  } else {
    GiveWay(State::kAtBarrier);
  }
}

void Block::ReleaseCluster() {
  at_cluster_ = 0;
  hazards.JoinAll(0, warps());
  for (Thread& t : threads_) {
    if (t.state == State::kAtCluster) t.state = State::kReady;
  }
}

void Block::ArriveAtCluster() {
  if (++at_cluster_ == live_) {
    ReleaseCluster();
  } else {
    GiveWay(State::kAtCluster);
  }
}

std::uint32_t Block::PlaceIn(unsigned other, std::uint32_t offset, const char* what) const {
  if (other >= cluster_) Fail("%s of block %u of a cluster of %u", what, other, cluster_);
  if (members_[other].live == 0) Fail("%s of block %u of the cluster, which has left", what, other);
  return offset - base() + other * stride_;
}

// Ordinary accesses are of the block's own memory.
void Block::CheckOwn(std::uint32_t offset, std::size_t bytes, const char* what) const {
  if (offset < base() || offset + bytes > base() + shared_bytes_) {
    Fail("%s at %u: shared memory has %zu bytes", what, offset - base(), shared_bytes_);
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

const std::byte* Block::Read(std::uint32_t offset, std::size_t bytes, const char* what) {
  CheckOwn(offset, bytes, what);
  hazards.Read(warp(), offset, bytes, what);
  return shared_ + offset;
}

std::byte* Block::Written(std::uint32_t offset, std::size_t bytes, const char* what, unsigned lanes) {
  CheckOwn(offset, bytes, what);
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

void Run(const char* kernel, Index3 grid, Index3 block, std::size_t shared_bytes, const std::function<void()>& thread,
         unsigned cluster) {
  block_of_thread.Run(kernel, grid, block, shared_bytes, cluster, thread);
}

const Index3& ThreadIndex() {
  return block_of_thread.thread_index();
}
const Index3& BlockIndex() {
  return block_of_thread.block_index();
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
  return block_of_thread.own().any;
}

void Collective(const char* what, void* lane, void (*all)(void* const*)) {
  block_of_thread.Collect(what, lane, all);
}

std::byte* SharedMemory() {
  return block_of_thread.shared() + block_of_thread.base();
}

std::uint32_t SharedOffset(const void* address) {
  const auto distance = static_cast<const std::byte*>(address) - SharedMemory();
  if (distance < 0 || static_cast<std::size_t>(distance) >= block_of_thread.shared_bytes()) {
    Fail("%p is not in shared memory", address);
  }
  return block_of_thread.base() + static_cast<std::uint32_t>(distance);
}

const std::byte* ReadShared(std::uint32_t offset, std::size_t bytes, const char* what) {
  return block_of_thread.Read(offset, bytes, what);
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
    std::fprintf(stderr, "emulator: %s block %u thread %u: ", block_of_thread.kernel(), block_of_thread.block_index().x,
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
