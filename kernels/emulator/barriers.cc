#include "kernels/emulator/barriers.h"

#include <cstdlib>

#include "kernels/emulator/block.h"

namespace kernd::emulator {
namespace {

constexpr std::int64_t kMaxBytes = (1 << 20) - 1, kMaxArrivals = (1 << 20) - 1;

void EndPhaseIfDone(Mbarrier& barrier) {
  if (barrier.pending != 0 || barrier.bytes != 0) return;
  barrier.completed = barrier.coming;
  barrier.pending = barrier.count;
  barrier.parity ^= 1;
}

void Arrive(std::uint32_t at, std::uint32_t bytes, const char* what) {
  Block& block = TheBlock();
  Mbarrier& barrier = block.MbarrierAt(at, what);
  if (barrier.pending == 0) Fail("%s at %u, where the phase has had its %u arrivals", what, at, barrier.count);
  barrier.bytes += bytes;
  if (barrier.bytes > kMaxBytes)
    Fail("%s at %u: waits for %lld bytes", what, at, static_cast<long long>(barrier.bytes));
  block.hazards.Release(block.warp(), barrier.coming);
  --barrier.pending;
  EndPhaseIfDone(barrier);
}

struct NamedLane {
  unsigned id, threads, generation;
};

// The warp arrives, once its lanes are here.
void ArriveAtNamed(void* const* lanes) {
  Block& block = TheBlock();
  const auto& first = *static_cast<const NamedLane*>(lanes[0]);
  for (unsigned i = 0; i < kLanes; ++i) {
    auto& lane = *static_cast<NamedLane*>(lanes[i]);
    if (lane.id != first.id || lane.threads != first.threads) Fail("lanes disagree on the named barrier");
  }
  if (first.id == 0 || first.id > 15) Fail("named barrier %u: 1 to 15, as 0 is that of __syncthreads", first.id);
  if (first.threads % kLanes != 0 || first.threads == 0 || first.threads > block.block_dim.x) {
    Fail("named barrier %u of %u threads", first.id, first.threads);
  }
  NamedBarrier& barrier = block.own().named[first.id];
  if (barrier.arrived > 0 && barrier.threads != first.threads) {
    Fail("named barrier %u has %u threads, and others said %u", first.id, first.threads, barrier.threads);
  }
  const unsigned self = 1u << block.warp();
  if ((barrier.warps & self) != 0) Fail("comes to named barrier %u again before the others have come", first.id);
  for (unsigned i = 0; i < kLanes; ++i) static_cast<NamedLane*>(lanes[i])->generation = barrier.generation;
  barrier.threads = first.threads;
  barrier.warps |= self;
  barrier.arrived += kLanes;
  block.hazards.Release(block.warp(), barrier.coming);
  if (barrier.arrived < barrier.threads) return;
  barrier.completed = barrier.coming;
  barrier.arrived = barrier.warps = 0;
  ++barrier.generation;
}

}  // namespace

Mbarrier& Block::MbarrierAt(std::uint32_t at, const char* what) {
  const auto found = mbarriers.find(at);
  if (found == mbarriers.end()) Fail("%s at %u, where there is no mbarrier", what, at);
  Mbarrier& barrier = found->second;
  if (barrier.init_warp != warp() && hazards.Of(warp()).at[barrier.init_warp] < barrier.init_at) {
    Fail("%s at %u, which warp %u initialised since the last barrier", what, at, barrier.init_warp);
  }
  return barrier;
}

void MbarrierInit(std::uint32_t at, unsigned arrivals) {
  Block& block = TheBlock();
  if (at % 8 != 0 || at < block.base() || at + 8 > block.base() + block.shared_bytes()) Fail("mbarrier.init at %u", at);
  if (arrivals == 0 || arrivals > kMaxArrivals) Fail("mbarrier.init of %u arrivals", arrivals);
  const auto index = static_cast<unsigned>(block.mbarriers.size());
  if (index >= kMaxMbarriers) Fail("mbarrier.init: the emulator has %u", kMaxMbarriers);
  Mbarrier barrier;
  barrier.index = index;
  barrier.count = arrivals;
  barrier.pending = arrivals;
  barrier.init_warp = block.warp();
  barrier.init_at = block.hazards.Of(block.warp()).at[block.warp()];
  if (!block.mbarriers.emplace(at, barrier).second) Fail("mbarrier.init at %u, where there is one", at);
}

void FenceMbarrierInit() {
  Block& block = TheBlock();
  for (auto& [at, barrier] : block.mbarriers) barrier.fenced = barrier.fenced || barrier.init_warp == block.warp();
}

void MbarrierArrive(std::uint32_t at) {
  Arrive(at, 0, "mbarrier.arrive");
}

void MbarrierArriveExpect(std::uint32_t at, std::uint32_t bytes) {
  Arrive(at, bytes, "mbarrier.arrive.expect_tx");
}

bool MbarrierTest(std::uint32_t at, unsigned parity) {
  Block& block = TheBlock();
  if (parity > 1) Fail("mbarrier.try_wait.parity of %u", parity);
  const Mbarrier& barrier = block.MbarrierAt(at, "mbarrier.try_wait");
  if (barrier.parity == parity) return false;
  block.hazards.Acquire(block.warp(), barrier.completed);
  return true;
}

void MbarrierWait(std::uint32_t at, unsigned parity) {
  Block& block = TheBlock();
  if (MbarrierTest(at, parity)) return;
  const Mbarrier& barrier = block.MbarrierAt(at, "mbarrier.try_wait");
  block.WaitUntil([&] { return barrier.parity != parity; }, "mbarrier.try_wait", at);
  block.hazards.Acquire(block.warp(), barrier.completed);
}

void CompleteBytes(Mbarrier& barrier, std::int64_t bytes) {
  barrier.bytes -= bytes;
  if (barrier.bytes < -kMaxBytes) Fail("an mbarrier got %lld bytes too many", static_cast<long long>(-barrier.bytes));
  EndPhaseIfDone(barrier);
}

void FenceProxyAsync() {
  Block& block = TheBlock();
  block.hazards.Fence(block.warp(), block.lane());
}

void NamedSync(unsigned id, unsigned threads) {
  Block& block = TheBlock();
  NamedLane lane{id, threads, 0};
  Collective("bar.sync", &lane, ArriveAtNamed);
  const NamedBarrier& barrier = block.own().named[id];
  block.WaitUntil([&] { return barrier.generation != lane.generation; }, "bar.sync", id);
  block.hazards.Acquire(block.warp(), barrier.completed);
}

void NamedArrive(unsigned id, unsigned threads) {
  NamedLane lane{id, threads, 0};
  Collective("bar.arrive", &lane, ArriveAtNamed);
}

void SetMaxRegisters(unsigned count, bool increase) {
  Block& block = TheBlock();
  if (count % 8 != 0 || count < 24 || count > 256) Fail("setmaxnreg %u: a multiple of 8 from 24 to 256", count);
  unsigned& own = block.registers[block.warp()];
  Collective(increase ? "setmaxnreg.inc" : "setmaxnreg.dec", nullptr, [](void* const*) {});
  if (block.lane() == 0) {
    if (increase ? count < own : count > own) Fail("setmaxnreg from %u to %u", own, count);
    const std::int64_t more = (static_cast<std::int64_t>(count) - own) * kLanes;
    std::int64_t& free = block.own().free_registers;
    block.WaitUntil([&] { return free >= more; }, "setmaxnreg", count);
    free -= more;
    own = count;
  }
  Collective("setmaxnreg", nullptr, [](void* const*) {});
}

unsigned ClusterRank() {
  return TheBlock().rank();
}

void ClusterSync() {
  TheBlock().ArriveAtCluster();
}

void MbarrierArriveAt(std::uint32_t at, unsigned rank) {
  constexpr const char* kWhat = "mbarrier.arrive in a cluster";
  Arrive(TheBlock().PlaceIn(rank, at, kWhat), 0, kWhat);
}

bool ElectOne() {
  const Block& block = TheBlock();
  Collective("elect.sync", nullptr, [](void* const*) {});
  return block.lane() == (block.launch_order() == Order::kDescending ? kLanes - 1 : 0);
}

}  // namespace kernd::emulator
