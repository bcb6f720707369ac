// The two threads of attention_wgmma.cu that feed the others: one finds the block's jobs, ahead of time, as that takes
// divisions and reads of tables; one keeps the rings of Q, K and V full.
#pragma once

#include "kernels/gpu/attention_wgmma_shape.cuh"

namespace kernd::gpu::attention_wgmma {

template <typename S>
class Scheduler {
 public:
  __device__ Scheduler(const WgmmaLaunch& launch, Shared<S>& shared) : launch_(launch), shared_(shared) {}

  __device__ void Run() {
    // All that compute are through with the first pass once they have let go of the pause.
#pragma unroll 1
    for (int pass = 0; pass < 2; ++pass) {
      ForEachPiece(pass == 0 ? Job::kRun : Job::kCareful);
      Job& job = Place();
      job.kind = pass == 0 ? Job::kPause : Job::kEnd;
      job.tiles = 0;
      const RingPlace<kJobs> place = jobs_;
      Hand();
      if (pass == 0) MbarrierWait(SharedAddress(&shared_.job_empty[place.index]), place.parity);
    }
  }

 private:
  // Pairs in turn; or pieces, there and back again, as early ones are longer.
  __device__ void ForEachPiece(Job::Kind kind) {
    const bool paired = launch_.pairs > 0;
    const std::int64_t end = paired ? launch_.pairs : launch_.plan.works;
    unsigned ordinal = 0;
    for (std::int64_t round = 0; round < end; round += gridDim.x) {
      WgmmaPieces pieces{-1, -1};
      if (!paired) {
        pieces.first = pieces.second = round + (ordinal % 2 == 0 ? blockIdx.x : gridDim.x - 1 - blockIdx.x);
      } else if (round + blockIdx.x < end) {
        pieces = WgmmaPair(launch_.plan, round + blockIdx.x);
      }
#pragma unroll 1
      for (unsigned i = pieces.first == pieces.second; i < 2; ++i, ++ordinal) {
        const std::int64_t piece = i == 0 ? pieces.first : pieces.second;
        const bool wanted =
            kind == Job::kRun || (shared_.suspects[ordinal / 32 % kSuspectWords] >> (ordinal % 32) & 1) != 0;
        if (piece >= 0 && piece < launch_.plan.works && wanted) Find(piece, ordinal, kind);
      }
    }
  }

  __device__ void Find(std::int64_t piece, unsigned ordinal, Job::Kind kind) {
    const AttentionParams& p = launch_.params;
    const AttentionWork work = FindWork(p, launch_.plan, piece, S::kRows, S::kDv);
    if (!work.any) return;
    const AttentionSequence s = p.tables.sequences[work.b];
    const std::int64_t live = min(max(s.q_length * p.group - work.first_row, static_cast<std::int64_t>(0)),
                                  static_cast<std::int64_t>(S::kRows));
    Window seen{0, 0};
    if (live > 0) {
      seen = {WindowOf(p, s, work.first_row >> launch_.group_shift).first,
              WindowOf(p, s, (work.first_row + live - 1) >> launch_.group_shift).last};
    }
    constexpr int kKeys = S::kKeys;
    const int first = seen.first / kKeys;
    const int tiles = seen.first < seen.last ? (seen.last + kKeys - 1) / kKeys - first : 0;
    const std::int64_t end = static_cast<std::int64_t>(first + tiles) * kKeys;
    Place() = {.sequence = s,
               .work = work,
               .kind = kind,
               .live = static_cast<int>(live),
               .first_tile = first,
               .tiles = tiles,
               .zero_tail = end > s.kv_length && s.kv_start + s.kv_length < launch_.kv_rows,
               .ordinal = ordinal};
    Hand();
  }

  // Where the next job goes, once nobody reads the one before it there.
  __device__ Job& Place() {
    MbarrierWait(SharedAddress(&shared_.job_empty[jobs_.index]), jobs_.parity ^ 1);
    return shared_.jobs[jobs_.index];
  }
  __device__ void Hand() {
    MbarrierArrive(SharedAddress(&shared_.job_full[jobs_.index]));
    jobs_.Next();
  }

  const WgmmaLaunch& launch_;
  Shared<S>& shared_;
  RingPlace<kJobs> jobs_;
};

template <typename S>
class Producer {
 public:
  __device__ Producer(const WgmmaLaunch& launch, Shared<S>& shared) : launch_(launch), shared_(shared) {}

  __device__ void Run() {
    for (bool more = true; more; jobs_.Next()) {
      MbarrierWait(SharedAddress(&shared_.job_full[jobs_.index]), jobs_.parity);
      const Job& job = shared_.jobs[jobs_.index];
      more = job.kind != Job::kEnd;
      if (job.tiles > 0) {
        Bring(job);
      } else {
        MbarrierWait(SharedAddress(&shared_.q_empty[q_.index]), q_.parity ^ 1);
        MbarrierArrive(SharedAddress(&shared_.q_full[q_.index]));
        q_.Next();
      }
    }
  }

 private:
  __device__ void Bring(const Job& job) {
    const int sequence = static_cast<int>(job.work.b) * launch_.sequence_step;
    const int kv_head = static_cast<int>(job.work.kv_head / launch_.fold);
    const int start = static_cast<int>(job.sequence.kv_start) + job.first_tile * static_cast<int>(S::kKeys);
    const int last = job.tiles - 1;
    const auto row = [start](int tile) { return start + tile * static_cast<int>(S::kKeys); };
    // K is a tile ahead, as products are; its first waits for nothing but its buffer.
    LoadKeys(kv_head, row(last), sequence);
    LoadQueries(job, sequence);
    for (int tile = last; tile > 0; --tile) {
      LoadKeys(kv_head, row(tile - 1), sequence);
      LoadValues(kv_head, row(tile), sequence);
    }
    LoadValues(kv_head, start, sequence);
  }

  __device__ void LoadQueries(const Job& job, int sequence) {
    const std::uint32_t full = SharedAddress(&shared_.q_full[q_.index]), to = SharedAddress(shared_.q[q_.index]);
    const auto head = static_cast<int>(job.work.kv_head * launch_.params.group);
    const auto row = static_cast<int>(job.sequence.q_start + (job.work.first_row >> launch_.group_shift));
    MbarrierWait(SharedAddress(&shared_.q_empty[q_.index]), q_.parity ^ 1);
    MbarrierArriveExpect(full, sizeof(shared_.q[0]));
    for (unsigned slab = 0; slab < S::kSlabs; ++slab) {
      TensorLoad(to + slab * Slabs<S::kRows>::kBytes, launch_.q, full, static_cast<int>(64 * slab), head, row,
                 sequence);
    }
    q_.Next();
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
  RingPlace<kJobs> jobs_;
  RingPlace<S::kQ> q_;
  RingPlace<S::kStages> k_, v_;
};

}  // namespace kernd::gpu::attention_wgmma
