// What the roles of a block of attention_wgmma.cu share: sizes, shared memory, and the jobs that the producer hands on.
#pragma once

#include "kernels/gpu/attention_wgmma.h"
#include "kernels/gpu/device/mbarrier.cuh"
#include "kernels/gpu/device/shared.cuh"
#include "kernels/gpu/device/tensor_load.cuh"
#include "kernels/gpu/device/warpgroup.cuh"
#include "kernels/gpu/launch.cuh"

namespace kernd::gpu::attention_wgmma {

// The keys from first to last - 1 that a query sees.
struct Window {
  int first, last;
};
__device__ inline Window WindowOf(const AttentionParams& p, const AttentionSequence& s, std::int64_t query) {
  const std::int64_t position = query + s.diagonal;
  const auto clamp = [&](std::int64_t key) {
    return static_cast<int>(max(min(key, s.kv_length), static_cast<std::int64_t>(0)));
  };
  return {clamp(position - p.window_left), clamp(position + p.window_right + 1)};
}

// What a block is made of. kGroups: warpgroups that compute, 64 rows each. kOverlap: the softmax of a tile runs beside
// Q K^T of the next and P V of its own. kPingPong: one warpgroup at a time issues products (with kOverlap) or takes
// exponentials (without). kQ: buffers of Q; kStages: of K, and as many of V.
template <DataType kType_, unsigned kD_, unsigned kDv_, unsigned kKeys_, unsigned kGroups_, bool kOverlap_,
          bool kPingPong_, unsigned kQ_ = 2, unsigned kStages_ = 2>
struct Shape {
  static constexpr DataType kType = kType_;
  static constexpr unsigned kD = kD_, kDv = kDv_, kKeys = kKeys_, kGroups = kGroups_, kQ = kQ_, kStages = kStages_;
  static constexpr bool kOverlap = kOverlap_, kPingPong = kPingPong_;
  static constexpr unsigned kRows = 64 * kGroups, kComputing = kWarpgroup * kGroups, kThreads = kWarpgroup + kComputing;
  static constexpr unsigned kSlabs = (kD + 63) / 64, kValueSlabs = (kDv + 63) / 64;  // of 64 channels
  // Of the 65536 registers of an SM; what the producer gives back is for the others.
  static constexpr unsigned kProducerRegisters = kGroups == 2 ? 40 : 32, kComputingRegisters = kGroups == 2 ? 232 : 160;
  static_assert(kGroups == 2 || kGroups == 3);
  static_assert(kKeys % 16 == 0 && kDv % 16 == 0 && kD % 16 == 0);
};

// A tile of rows and its tiles of keys, from the last to the first.
struct Job {
  enum Kind : int { kRun, kCareful, kPause, kEnd };  // the latter two have no tiles
  AttentionSequence sequence;
  AttentionWork work;
  Kind kind;
  int live;  // rows that are computed
  int first_tile, tiles;
  bool zero_tail;    // rows of V past the sequence's keys are another's
  unsigned ordinal;  // of the block's jobs
};

// Jobs whose O was not finite, by their ordinal modulo its bits: they are done again with care. One done for another's
// sake gets the same bits again.
inline constexpr unsigned kSuspectWords = 32;

// A slow warpgroup's, the one after it, which others are at already, and a third, which is prepared meanwhile: its
// first tiles may be on their way before the slow one has written its results.
inline constexpr unsigned kJobs = 3;

template <typename S>
struct Shared {
  alignas(1024) std::uint16_t q[S::kQ][S::kSlabs * S::kRows * 64];
  alignas(1024) std::uint16_t k[S::kStages][S::kSlabs * S::kKeys * 64];
  alignas(1024) std::uint16_t v[S::kStages][S::kValueSlabs * S::kKeys * 64];
  // Q's are full when a job is there, too, whether it has queries or not.
  alignas(8) std::uint64_t q_full[S::kQ], q_empty[S::kQ], k_full[S::kStages], k_empty[S::kStages], v_full[S::kStages],
      v_empty[S::kStages], job_full[kJobs], job_empty[kJobs];
  Job jobs[kJobs];
  unsigned suspects[kSuspectWords];
  Window windows[S::kRows];
  bool dirty[S::kKeys];  // with care: keys whose values are not all finite
};

// Barriers by number: a warpgroup's turn, all that compute, and a warpgroup for itself.
inline constexpr unsigned kTurn = 1, kAllComputing = 4, kOwnGroup = 5;

}  // namespace kernd::gpu::attention_wgmma
