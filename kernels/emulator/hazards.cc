#include "kernels/emulator/hazards.h"

#include <algorithm>

#include "kernels/emulator/emulator.h"

namespace kernd::emulator {

void Clock::Join(const Clock& other) {
  for (std::size_t i = 0; i < at.size(); ++i) at[i] = std::max(at[i], other.at[i]);
}

void Hazards::Reset(std::size_t bytes, unsigned warps) {
  const std::size_t granules = (bytes + kGranule - 1) / kGranule;
  bytes_ = bytes;
  warps_ = warps;
  clocks_.assign(warps, Clock{});
  for (unsigned w = 0; w < warps; ++w) clocks_[w].at[w] = 1;
  fences_.assign(warps, {});
  unfenced_.assign(warps, 0);
  touches_.assign(granules, Touch{});
  reads_.assign(granules * warps, 0);
}

void Hazards::Release(unsigned warp, Clock& into) {
  into.Join(clocks_[warp]);
  ++clocks_[warp].at[warp];
}

void Hazards::JoinAll(unsigned first, unsigned count) {
  Clock all;
  for (unsigned w = first; w < first + count; ++w) Release(w, all);
  for (unsigned w = first; w < first + count; ++w) Acquire(w, all);
}

void Hazards::Fence(unsigned warp, unsigned lane) {
  const unsigned before = unfenced_[warp];
  unfenced_[warp] &= ~(1u << lane);
  if (before == 0 || unfenced_[warp] != 0) return;
  std::uint32_t& now = clocks_[warp].at[warp];
  fences_[warp].push_back(now);
  ++now;
}

void Hazards::Check(std::uint32_t offset, std::size_t bytes, const char* what) const {
  if (offset % kGranule != 0 || bytes % kGranule != 0) Fail("%s at %u: not a multiple of 16", what, offset);
  if (offset + bytes > bytes_) Fail("%s at %u: shared memory has %zu bytes", what, offset, bytes_);
}

void Hazards::CheckWriter(const Touch& touch, unsigned warp, unsigned at, const char* what) const {
  if (touch.in_flight) Fail("%s at %u, which a copy is still to fill", what, at);
  if (touch.writer == warp || touch.write_at <= clocks_[warp].at[touch.writer]) return;
  if (touch.writer < kMaxWarps) Fail("%s at %u, which warp %u wrote since the last barrier", what, at, touch.writer);
  Fail("%s at %u, which a bulk copy wrote whose mbarrier the warp has not waited for", what, at);
}

void Hazards::CheckReaders(std::size_t granule, unsigned warp, const char* what) const {
  const auto at = static_cast<unsigned>(granule * kGranule);
  if (touches_[granule].async_reads > 0) Fail("%s at %u, which wgmma is still to read", what, at);
  for (unsigned w = 0; w < warps_; ++w) {
    if (w != warp && reads_[granule * warps_ + w] > clocks_[warp].at[w]) {
      Fail("%s at %u, which other warps (%u) read since the last barrier", what, at, w);
    }
  }
}

// Between the write and what made the reader know of it, its threads must have fenced.
void Hazards::CheckFence(const Touch& touch, unsigned warp, unsigned at, const char* what) const {
  if (!touch.generic) return;
  const std::vector<std::uint32_t>& fences = fences_[touch.writer];
  const auto fence = std::lower_bound(fences.begin(), fences.end(), touch.write_at);
  if (fence == fences.end() || *fence > clocks_[warp].at[touch.writer]) {
    Fail("%s at %u, which warp %u wrote with no fence.proxy.async since", what, at, touch.writer);
  }
}

void Hazards::Read(unsigned warp, std::uint32_t offset, std::size_t bytes, const char* what) {
  Check(offset, bytes, what);
  for (std::size_t g = offset / kGranule; g < (offset + bytes) / kGranule; ++g) {
    CheckWriter(touches_[g], warp, static_cast<unsigned>(g * kGranule), what);
    ReadAt(g, warp) = clocks_[warp].at[warp];
  }
}

void Hazards::Write(unsigned warp, unsigned lanes, std::uint32_t offset, std::size_t bytes, const char* what) {
  Check(offset, bytes, what);
  unfenced_[warp] |= lanes;
  for (std::size_t g = offset / kGranule; g < (offset + bytes) / kGranule; ++g) {
    Touch& touch = touches_[g];
    CheckWriter(touch, warp, static_cast<unsigned>(g * kGranule), what);
    CheckReaders(g, warp, what);
    touch.write_at = clocks_[warp].at[warp];
    touch.writer = warp;
    touch.generic = true;
  }
}

void Hazards::SetInFlight(std::uint32_t offset, bool in_flight) {
  touches_[offset / kGranule].in_flight = in_flight;
}

void Hazards::BeginAsyncRead(unsigned warp, std::uint32_t offset, const char* what) {
  Check(offset, kGranule, what);
  Touch& touch = touches_[offset / kGranule];
  CheckWriter(touch, warp, offset, what);
  CheckFence(touch, warp, offset, what);
  ++touch.async_reads;
}

void Hazards::EndAsyncRead(unsigned warp, std::uint32_t offset) {
  --touches_[offset / kGranule].async_reads;
  ReadAt(offset / kGranule, warp) = clocks_[warp].at[warp];
}

void Hazards::BeginAsyncWrite(unsigned warp, std::uint32_t offset, std::size_t bytes, const char* what) {
  Check(offset, bytes, what);
  for (std::size_t g = offset / kGranule; g < (offset + bytes) / kGranule; ++g) {
    Touch& touch = touches_[g];
    CheckWriter(touch, warp, static_cast<unsigned>(g * kGranule), what);
    CheckReaders(g, warp, what);
    CheckFence(touch, warp, static_cast<unsigned>(g * kGranule), what);
    touch.in_flight = true;
  }
}

void Hazards::EndAsyncWrite(Actor actor, std::uint32_t now, std::uint32_t offset, std::size_t bytes) {
  for (std::size_t g = offset / kGranule; g < (offset + bytes) / kGranule; ++g) {
    touches_[g] = {.write_at = now, .writer = actor};
  }
}

}  // namespace kernd::emulator
