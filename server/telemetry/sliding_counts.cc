#include "server/telemetry/sliding_counts.h"

#include <algorithm>

namespace kernd::telemetry {
namespace {

std::int64_t TickOf(core::SteadyTime time) {
  return time.time_since_epoch() / SlidingCounts::kSlot;
}

}  // namespace

SlidingCounts::SlidingCounts(std::size_t counters) : counters_(counters) {
  for (Ring& slot : ring_) slot.counts = std::make_unique<std::atomic<std::uint32_t>[]>(counters);
}

void SlidingCounts::Add(std::size_t counter, core::SteadyTime now) {
  const std::int64_t tick = TickOf(now);
  Ring& slot = ring_[static_cast<std::size_t>(tick % kRing)];
  if (slot.tick.load(std::memory_order_acquire) < tick) Turn(slot, tick);
  slot.counts[counter].fetch_add(1, std::memory_order_relaxed);
}

void SlidingCounts::Turn(Ring& slot, std::int64_t tick) {
  const std::lock_guard lock(turn_);
  if (slot.tick.load(std::memory_order_relaxed) >= tick) return;
  for (std::size_t i = 0; i < counters_; ++i) slot.counts[i].store(0, std::memory_order_relaxed);
  slot.tick.store(tick, std::memory_order_release);
}

void SlidingCounts::AddTo(std::int64_t tick, std::vector<std::uint64_t>& sums) const {
  if (tick < 0) return;
  const Ring& slot = ring_[static_cast<std::size_t>(tick % kRing)];
  if (slot.tick.load(std::memory_order_acquire) != tick) return;
  for (std::size_t i = 0; i < counters_; ++i) sums[i] += slot.counts[i].load(std::memory_order_relaxed);
}

std::vector<std::uint64_t> SlidingCounts::Slot(int age, core::SteadyTime now) const {
  std::vector<std::uint64_t> sums(counters_);
  AddTo(TickOf(now) - age, sums);
  return sums;
}

std::vector<std::uint64_t> SlidingCounts::Sum(core::SteadyTime now) const {
  std::vector<std::uint64_t> sums(counters_);
  for (int age = 0; age < kSlots; ++age) AddTo(TickOf(now) - age, sums);
  return sums;
}

std::chrono::nanoseconds SlidingCounts::Span(core::SteadyTime now) {
  return (kSlots - 1) * kSlot + now.time_since_epoch() % kSlot;
}

}  // namespace kernd::telemetry
