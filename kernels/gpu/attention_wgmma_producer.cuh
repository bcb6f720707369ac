// The producer of attention_wgmma.cu: one thread that finds the block's jobs and keeps the rings of Q, K and V full.
#pragma once

#include "kernels/gpu/attention_wgmma_shape.cuh"

namespace kernd::gpu::attention_wgmma {

template <typename S>
class Producer {
 public:
  __device__ Producer(const WgmmaLaunch& launch, Shared<S>& shared) : launch_(launch), shared_(shared) {}

  __device__ void Run() {
    ForEachJob([](unsigned) { return true; }, Job::kRun);
    // All that compute are through once they have let go of this one.
    const RingPlace<S::kQ> pause = q_;
    Control(Job::kPause);
    MbarrierWait(SharedAddress(&shared_.q_empty[pause.index]), pause.parity);
    ForEachJob([this](unsigned n) { return (shared_.suspects[n / 32 % kSuspectWords] >> (n % 32) & 1) != 0; },
               Job::kCareful);
    Control(Job::kEnd);
  }

 private:
  // Pairs in turn; or pieces, there and back again, as early ones are longer.
  template <typename Wanted>
  __device__ void ForEachJob(const Wanted& wanted, Job::Kind kind) {
    unsigned n = 0;
    const auto send = [&](std::int64_t work) {
      if (wanted(n)) Send(work, n, kind);
      ++n;
    };
    if (launch_.pairs > 0) {
      for (std::int64_t pair = blockIdx.x; pair < launch_.pairs; pair += gridDim.x) {
        const WgmmaPieces pieces = WgmmaPair(launch_.plan, pair);
        send(pieces.first);
        if (pieces.second != pieces.first) send(pieces.second);
      }
      return;
    }
    for (std::int64_t round = 0; round < launch_.plan.works; round += gridDim.x) {
      const std::int64_t work = round + (n % 2 == 0 ? blockIdx.x : gridDim.x - 1 - blockIdx.x);
      if (work < launch_.plan.works) send(work);
    }
  }

  __device__ void Control(Job::Kind kind) {
    Job& job = NextJob();
    job.kind = kind;
    MbarrierArrive(SharedAddress(&shared_.q_full[q_.index]));
    q_.Next();
  }

  __device__ Job& NextJob() {
    MbarrierWait(SharedAddress(&shared_.q_empty[q_.index]), q_.parity ^ 1);
    return shared_.jobs[q_.index];
  }

  __device__ void Send(std::int64_t index, unsigned ordinal, Job::Kind kind) {
    const AttentionParams& p = launch_.params;
    const AttentionWork work = FindWork(p, launch_.plan, index, S::kRows, S::kDv);
    if (!work.any) return;
    const AttentionSequence s = p.tables.sequences[work.b];
    const std::int64_t live = min(max(s.q_length * p.group - work.first_row, static_cast<std::int64_t>(0)),
                                  static_cast<std::int64_t>(S::kRows));
    const std::int64_t query = work.first_row >> launch_.group_shift;
    Window seen{0, 0};
    if (live > 0) {
      seen = {WindowOf(p, s, query).first, WindowOf(p, s, (work.first_row + live - 1) >> launch_.group_shift).last};
    }
    constexpr int kKeys = S::kKeys;
    const int first = seen.first / kKeys;
    const int tiles = seen.first < seen.last ? (seen.last + kKeys - 1) / kKeys - first : 0;
    const std::int64_t end = static_cast<std::int64_t>(first + tiles) * kKeys;
    Job& job = NextJob();
    job = {.sequence = s,
           .work = work,
           .kind = kind,
           .live = static_cast<int>(live),
           .first_tile = first,
           .tiles = tiles,
           .zero_tail = end > s.kv_length && s.kv_start + s.kv_length < launch_.kv_rows,
           .ordinal = ordinal};
    const std::uint32_t full = SharedAddress(&shared_.q_full[q_.index]);
    if (tiles == 0) {
      MbarrierArrive(full);
      q_.Next();
      return;
    }
    const int sequence = static_cast<int>(work.b) * launch_.sequence_step;
    MbarrierArriveExpect(full, sizeof(shared_.q[0]));
    const std::uint32_t queries = SharedAddress(shared_.q[q_.index]);
    for (unsigned slab = 0; slab < S::kSlabs; ++slab) {
      TensorLoad(queries + slab * Slabs<S::kRows>::kBytes, launch_.q, full, static_cast<int>(64 * slab),
                 static_cast<int>(work.kv_head * p.group), static_cast<int>(s.q_start + query), sequence);
    }
    q_.Next();
    const int kv_head = static_cast<int>(work.kv_head / launch_.fold), start = static_cast<int>(s.kv_start);
    // K is a tile ahead, as products are.
    for (int tile = first + tiles - 1; tile >= first; --tile) {
      LoadKeys(kv_head, start + tile * kKeys, sequence);
      if (tile < first + tiles - 1) LoadValues(kv_head, start + (tile + 1) * kKeys, sequence);
    }
    LoadValues(kv_head, start + first * kKeys, sequence);
  }

  __device__ void LoadKeys(int head, int row, int sequence) {
    Load<S::kSlabs>(shared_.k, shared_.k_full, shared_.k_empty, k_, launch_.k, head, row, sequence);
  }
  __device__ void LoadValues(int head, int row, int sequence) {
    Load<S::kValueSlabs>(shared_.v, shared_.v_full, shared_.v_empty, v_, launch_.v, head, row, sequence);
  }

  template <unsigned kSlabs, typename Tiles>
  __device__ static void Load(Tiles& tiles, std::uint64_t (&full)[S::kStages], std::uint64_t (&empty)[S::kStages],
                              RingPlace<S::kStages>& place, const CUtensorMap& map, int head, int row, int sequence) {
    MbarrierWait(SharedAddress(&empty[place.index]), place.parity ^ 1);
    const std::uint32_t barrier = SharedAddress(&full[place.index]), to = SharedAddress(tiles[place.index]);
    MbarrierArriveExpect(barrier, sizeof(tiles[0]));
    for (unsigned slab = 0; slab < kSlabs; ++slab) {
      TensorLoad(to + slab * Slabs<S::kKeys>::kBytes, map, barrier, static_cast<int>(64 * slab), head, row, sequence);
    }
    place.Next();
  }

  const WgmmaLaunch& launch_;
  Shared<S>& shared_;
  RingPlace<S::kQ> q_;
  RingPlace<S::kStages> k_, v_;
};

}  // namespace kernd::gpu::attention_wgmma
