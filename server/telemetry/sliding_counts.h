// Counters of the last minute.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "server/core/stage.h"

namespace kernd::telemetry {

// Counts in slots of time, of which the oldest is emptied for the newest. Thread-safe; adding is one atomic addition,
// and a lock once in each slot's time.
class SlidingCounts {
 public:
  static constexpr std::chrono::seconds kSlot{5};
  static constexpr int kSlots = 13;  // of the window: the one under way and twelve whole ones

  explicit SlidingCounts(std::size_t counters);

  // `now` may lag behind that of other threads. One that lags by more than the ring holds comes out as newer than it
  // is.
  void Add(std::size_t counter, core::SteadyTime now);

  std::size_t counters() const { return counters_; }

  // Each counter's count in the slot under way (age 0), or that many slots before it.
  std::vector<std::uint64_t> Slot(int age, core::SteadyTime now) const;
  // In all slots of the window.
  std::vector<std::uint64_t> Sum(core::SteadyTime now) const;

  // How far back the window of `now` reaches: 60 to 65 s.
  static std::chrono::nanoseconds Span(core::SteadyTime now);

 private:
  // One more than the window, so that a reader of the oldest sees nobody empty it.
  static constexpr std::int64_t kRing = kSlots + 1;

  struct Ring {
    std::atomic<std::int64_t> tick = -1;  // time / kSlot
    std::unique_ptr<std::atomic<std::uint32_t>[]> counts;
  };

  void AddTo(std::int64_t tick, std::vector<std::uint64_t>& sums) const;
  void Turn(Ring& slot, std::int64_t tick);

  const std::size_t counters_;
  std::array<Ring, kRing> ring_;
  std::mutex turn_;
};

}  // namespace kernd::telemetry
