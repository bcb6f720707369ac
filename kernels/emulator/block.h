// A block, or the blocks of a cluster, that run on the fibers of their host thread: for this folder's sources alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/emulator/emulator.h"
#include "kernels/emulator/fiber.h"
#include "kernels/emulator/hazards.h"

namespace kernd::emulator {

struct Copy {  // cp.async
  std::uint32_t to;
  const void* from;
  bool there;
};

struct Mbarrier {
  unsigned index = 0;        // among the block's, in the order of their init
  unsigned count = 0;        // arrivals of a phase
  std::int64_t pending = 0;  // arrivals that the phase still waits for
  std::int64_t bytes = 0;    // of copies that it waits for; negative where they came before they were announced
  unsigned parity = 0;       // of the phase that goes on
  unsigned init_warp = 0;
  std::uint32_t init_at = 0, copies = 0;
  bool fenced = false;      // bulk copies may complete on it
  Clock coming, completed;  // of those who arrive, and of the last phase
};

struct NamedBarrier {
  unsigned threads = 0, arrived = 0, warps = 0, generation = 0;
  Clock coming, completed;
};

// What each block of a cluster has for itself.
struct Member {
  unsigned live = 0, at_barrier = 0;  // threads
  const char* barrier = nullptr;      // what they are at
  bool any = false, next = false;
  NamedBarrier named[16];
  std::int64_t free_registers = 0;
};

struct WarpgroupState;  // wgmma.cc

// Threads, warps and shared memory are counted through all blocks of the cluster. Most clusters are of one block.

class Block {
 public:
  Block();
  ~Block();

  void Run(const char* kernel, Index3 grid, Index3 block, std::size_t shared_bytes, unsigned cluster,
           const std::function<void()>& thread);

  void Arrive(bool value, const char* what);
  void ArriveAtCluster();
  void Collect(const char* what, void* lane, void (*all)(void* const*));
  // Comes back when `ready`. Others go on meanwhile; where nobody can, `what` and `at` are in the message.
  void WaitUntil(const std::function<bool()>& ready, const char* what, std::uint32_t at);
  // What the hardware does in its own time: at once, late or in any order, as the order of warps has it.
  void Later(std::function<void()> delivery) { deliveries_.push_back(std::move(delivery)); }
  const std::byte* Read(std::uint32_t offset, std::size_t bytes, const char* what);
  std::byte* Written(std::uint32_t offset, std::size_t bytes, const char* what, unsigned lanes = 0);
  void Issue(const Copy& copy);
  void Commit();
  void Wait(unsigned newest);

  Mbarrier& MbarrierAt(std::uint32_t at, const char* what);

  const Index3& thread_index() const { return threads_[current_].index; }
  const Index3& block_index() const { return threads_[current_].block; }
  bool running() const { return running_; }
  std::byte* shared() { return shared_; }
  std::size_t shared_bytes() const { return shared_bytes_; }  // of one block
  unsigned warps() const { return static_cast<unsigned>(warps_.size()); }
  // The running thread's block: its number in the cluster, what it has, and where its shared memory begins.
  unsigned rank() const { return current_ / block_dim.x; }
  Member& own() { return members_[rank()]; }
  std::uint32_t base() const { return rank() * stride_; }
  // The same place of another block of the cluster, one that has not left.
  std::uint32_t PlaceIn(unsigned rank, std::uint32_t offset, const char* what) const;
  const char* kernel() const { return kernel_; }
  unsigned warp() const { return current_ / kLanes; }
  unsigned lane() const { return current_ % kLanes; }
  Order launch_order() const { return launch_order_; }

  Index3 grid, block_dim;
  Counters counters;
  Order order = Order::kVaried;
  std::mt19937_64 random;

  Hazards hazards;
  std::map<std::uint32_t, Mbarrier> mbarriers;  // by their place
  std::vector<unsigned> registers;              // of a thread of each warp
  std::unique_ptr<WarpgroupState> warpgroups;

 private:
  enum class State : std::uint8_t { kReady, kAtCollective, kAtBarrier, kAtCluster, kWaiting, kLeft };
  struct Thread {
    Index3 index, block;
    State state = State::kReady;
    const std::function<bool()>* ready = nullptr;
    const char* what = nullptr;
    std::uint32_t at = 0;
    std::vector<Copy> open;                // issued, not committed
    std::deque<std::vector<Copy>> groups;  // committed, oldest first
  };
  struct Warp {
    unsigned arrived = 0;
    const char* what = nullptr;
    void* lanes[kLanes] = {};
  };

  void RunCluster(const Index3& first);
  void CheckOwn(std::uint32_t offset, std::size_t bytes, const char* what) const;
  static bool CanGoOn(const Thread& thread) {
    return thread.state == State::kReady || (thread.state == State::kWaiting && (*thread.ready)());
  }
  unsigned NextWarp();  // one with a thread that can go on
  bool FindWarp(unsigned& warp);
  void Deliver();
  [[noreturn]] void FailStuck();
  void Leave();
  void ReleaseBarrier(unsigned rank);
  void ReleaseCluster();
  void GiveWay(State state);

  const char* kernel_ = nullptr;
  Order launch_order_ = Order::kAscending;
  unsigned launch_ = 0;
  const std::function<void()>* entry_ = nullptr;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  std::vector<Member> members_;
  std::vector<std::byte> memory_;
  std::deque<std::function<void()>> deliveries_;
  std::byte* shared_ = nullptr;
  std::size_t shared_bytes_ = 0;
  std::uint32_t stride_ = 0;  // from one block's shared memory to the next one's
  unsigned cluster_ = 1, current_ = 0, live_ = 0, at_cluster_ = 0, last_warp_ = 0;
  bool running_ = false;
};

// Bytes of a copy arrive.
void CompleteBytes(Mbarrier& barrier, std::int64_t bytes);

// Of this host thread.
Block& TheBlock();

// wgmma.cc: checks what a warp that leaves may not leave behind, and a block that ends.
void LeaveWarpgroup(Block& block);
void EndWarpgroups(Block& block);

}  // namespace kernd::emulator
