// Which accesses of a block's shared memory are ordered. Each warp has a vector clock; barriers of any kind pass clocks
// on, and an access that no chain of barriers separates from another warp's, one of the two a write, ends the process.
//
// Two proxies reach shared memory: ordinary instructions by the generic one, bulk copies and wgmma by the async one.
// What the generic one wrote is seen by the async one only past fence.proxy.async of the threads that wrote.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kernd::emulator {

inline constexpr unsigned kMaxWarps = 32, kMaxMbarriers = 64;

// Who writes: a warp, or the bulk copies that complete on one mbarrier.
using Actor = unsigned;
inline constexpr Actor ActorOfMbarrier(unsigned index) {
  return kMaxWarps + index;
}

// How much of what each actor did is known.
struct Clock {
  std::array<std::uint32_t, kMaxWarps + kMaxMbarriers> at{};
  void Join(const Clock& other);
};

class Hazards {
 public:
  // All of `bytes` untouched, for a block of so many warps.
  void Reset(std::size_t bytes, unsigned warps);

  const Clock& Of(unsigned warp) const { return clocks_[warp]; }
  // What the warp knows goes on to whoever acquires `into`; what it does from now on does not.
  void Release(unsigned warp, Clock& into);
  void Acquire(unsigned warp, const Clock& from) { clocks_[warp].Join(from); }
  // __syncthreads of warps first .. first + count - 1.
  void JoinAll(unsigned first, unsigned count);
  // fence.proxy.async of a lane.
  void Fence(unsigned warp, unsigned lane);

  // Accesses by instructions of a warp; `lanes` that write. Offsets and sizes are multiples of 16.
  void Read(unsigned warp, std::uint32_t offset, std::size_t bytes, const char* what);
  void Write(unsigned warp, unsigned lanes, std::uint32_t offset, std::size_t bytes, const char* what);
  // cp.async, whose bytes nobody may touch before the wait.
  void SetInFlight(std::uint32_t offset, bool in_flight);

  // wgmma of a warp reads from Begin to End.
  void BeginAsyncRead(unsigned warp, std::uint32_t offset, const char* what);  // 16 bytes
  void EndAsyncRead(unsigned warp, std::uint32_t offset);
  // A bulk copy that the warp starts, and that ends as the actor's.
  void BeginAsyncWrite(unsigned warp, std::uint32_t offset, std::size_t bytes, const char* what);
  void EndAsyncWrite(Actor actor, std::uint32_t now, std::uint32_t offset, std::size_t bytes);

 private:
  static constexpr std::size_t kGranule = 16;
  struct Touch {
    std::uint32_t write_at = 0;  // the writer's clock; 0: never
    Actor writer = 0;
    std::uint16_t async_reads = 0;
    bool in_flight = false, generic = false;
  };

  void Check(std::uint32_t offset, std::size_t bytes, const char* what) const;
  void CheckWriter(const Touch& touch, unsigned warp, unsigned at, const char* what) const;
  void CheckReaders(std::size_t granule, unsigned warp, const char* what) const;
  void CheckFence(const Touch& touch, unsigned warp, unsigned at, const char* what) const;
  std::uint32_t& ReadAt(std::size_t granule, unsigned warp) { return reads_[granule * warps_ + warp]; }

  std::size_t bytes_ = 0;
  unsigned warps_ = 0;
  std::vector<Clock> clocks_;
  std::vector<std::vector<std::uint32_t>> fences_;  // of each warp: its clock at each
  std::vector<unsigned> unfenced_;                  // of each warp: lanes that wrote since their last fence
  std::vector<Touch> touches_;
  std::vector<std::uint32_t> reads_;  // [granule, warp]: the reader's clock
};

}  // namespace kernd::emulator
