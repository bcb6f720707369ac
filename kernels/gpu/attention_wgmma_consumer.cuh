// A computing warpgroup of attention_wgmma.cu: 64 rows of each job, S, P and O in registers.
#pragma once

#include "kernels/gpu/attention_wgmma_care.cuh"
#include "kernels/gpu/attention_wgmma_softmax.cuh"
#include "kernels/gpu/device/mma.cuh"
#include "kernels/gpu/device/wgmma.cuh"

namespace kernd::gpu::attention_wgmma {

template <typename S>
class Consumer {
 public:
  __device__ Consumer(const WgmmaLaunch& launch, Shared<S>& shared)
      : launch_(launch), p_(launch.params), shared_(shared), scaling_(Scaling::Of(launch.params)) {}

  __device__ void Run() {
    if (S::kPingPong && group_ == S::kGroups - 1) NamedArrive(kTurn, kTurnThreads);  // the first has the first turn
    for (;; jobs_.Next()) {
      MbarrierWait(SharedAddress(&shared_.q_full[q_.index]), q_.parity);
      const Job& job = shared_.jobs[jobs_.index];
      if (job.kind == Job::kEnd) break;
      if (job.kind == Job::kRun) {
        Do<false>(job);
      } else if (job.kind == Job::kCareful) {
        Do<true>(job);
      } else {
        LetGoOfQueries();
      }
      Release(shared_.job_empty[jobs_.index]);
    }
    if (S::kPingPong && group_ == 0) NamedSync(kTurn, kTurnThreads);  // the turn that nobody takes
  }

 private:
  static constexpr unsigned kTiles = S::kKeys / 8, kColumns = S::kDv / 8, kSteps = S::kKeys / 16;
  static constexpr unsigned kTurnThreads = 2 * kWarpgroup;
  using Scores = float[kTiles][4];
  using Probabilities = std::uint32_t[kSteps][4];
  using Output = float[kColumns][4];

  // Of a warpgroup: the keys that all its rows see, and its tiles of keys that some see, from `high` down to `low`.
  struct Sight {
    Window full;
    int high, low;
  };
  // Leaves in shared memory what the lane's two rows see.
  __device__ Sight FindWindows(const Job& job) const {
    const auto window = [&](unsigned row) {
      return WindowOf(p_, job.sequence, (job.work.first_row + static_cast<std::int64_t>(row)) >> launch_.group_shift);
    };
    const unsigned live = static_cast<unsigned>(job.live), first = group_ * 64, end = min(live, first + 64);
    for (unsigned row = row_; row < row_ + 16; row += 8) {
      if (lane_ % 4 == 0) shared_.windows[row] = row < live ? window(row) : Window{0, 0};
    }
    __syncwarp();
    if (first >= end) return {.full = {0, 0}, .high = -1, .low = 0};
    const Window early = window(first), late = window(end - 1);
    constexpr int kKeys = S::kKeys;
    return {.full = {late.first, early.last},
            .high = min(job.tiles, (late.last + kKeys - 1) / kKeys - job.first_tile) - 1,
            .low = max(0, early.first / kKeys - job.first_tile)};
  }

  template <bool kCareful>
  __device__ void Do(const Job& job) {
    Output o;
#pragma unroll
    for (unsigned n = 0; n < kColumns; ++n) o[n][0] = o[n][1] = o[n][2] = o[n][3] = 0;
    RowState state[2] = {{-KERND_INFINITY, 0.0f}, {-KERND_INFINITY, 0.0f}};
    if (job.tiles > 0) {
      const Sight sight = FindWindows(job);
      if constexpr (kCareful) {
        AttendWithCare(job, sight.full, state, o);
      } else {
        if (job.zero_tail) ZeroTail(job);  // before any turn, as all take part
        // One tile of a job is without a turn where products overlap: the first that the warpgroup computes, or skips.
        const bool sees = sight.low <= sight.high;
        if (!sees) LetGoOfQueries();
        for (int tile = job.tiles - 1; tile > sight.high; --tile) Skip(sees || !S::kOverlap || tile > 0);
        if (sees) {
          if constexpr (S::kOverlap) {
            AttendOverlapped(job, sight, state, o);
          } else {
            Attend(job, sight, state, o);
          }
          for (int tile = sight.low; tile > 0; --tile) Skip(true);
        }
      }
      if constexpr (!kCareful) {
        if (!FiniteWhereLive(job, o)) {
          atomicOr(&shared_.suspects[job.ordinal / 32 % kSuspectWords], 1u << (job.ordinal % 32));
        }
      }
    } else {
      LetGoOfQueries();
    }
    Finish(job, state, o);
  }

  // A tile of which the warpgroup sees nothing.
  __device__ void Skip(bool turn) {
    MbarrierWait(SharedAddress(&shared_.k_full[k_.index]), k_.parity);
    LetGoOfKeys();
    if (S::kPingPong && turn) {
      NamedSync(kTurn + group_, kTurnThreads);
      NamedArrive(kTurn + (group_ + 1) % S::kGroups, kTurnThreads);
    }
    MbarrierWait(SharedAddress(&shared_.v_full[v_.index]), v_.parity);
    LetGoOfValues();
  }

  // A tile after the other: Q K^T, softmax, P V.
  __device__ void Attend(const Job& job, const Sight& sight, RowState (&state)[2], Output& o) {
#pragma unroll 1
    for (int tile = sight.high; tile >= sight.low; --tile) {
      Scores s;
      IssueScores(s);
      WgmmaWait<0>();
      FenceRegisters(s);
      LetGoOfKeys();
      if (tile == sight.low) LetGoOfQueries();
      float shrink[2];
      Logits(sight.full, KeyOf(job, tile), s);
      Maxima(s, state, shrink);
      if constexpr (S::kPingPong) NamedSync(kTurn + group_, kTurnThreads);
      Exponentials(shrink, s, state);
      Rescale(shrink, o);
      Probabilities p;
      Pack(s, p);
      if constexpr (S::kPingPong) NamedArrive(kTurn + (group_ + 1) % S::kGroups, kTurnThreads);
      IssueValues(p, o);
      WgmmaWait<0>();
      FenceRegisters(o);
      FenceRegisters(p);
      LetGoOfValues();
    }
  }

  // Q K^T of a tile, then P V of the tile before, whose end the softmax need not wait for.
  __device__ void AttendOverlapped(const Job& job, const Sight& sight, RowState (&state)[2], Output& o) {
    Scores s;
    Probabilities p;
    float shrink[2];
    IssueScores(s);
    WgmmaWait<0>();
    FenceRegisters(s);
    LetGoOfKeys();
    if (sight.high == sight.low) LetGoOfQueries();
    Logits(sight.full, KeyOf(job, sight.high), s);
    Maxima(s, state, shrink);
    Exponentials(shrink, s, state);
    Pack(s, p);
#pragma unroll 1
    for (int tile = sight.high - 1; tile >= sight.low; --tile) {
      if constexpr (S::kPingPong) NamedSync(kTurn + group_, kTurnThreads);
      IssueScores(s);
      IssueValues(p, o);
      if constexpr (S::kPingPong) NamedArrive(kTurn + (group_ + 1) % S::kGroups, kTurnThreads);
      WgmmaWait<1>();
      FenceRegisters(s);
      LetGoOfKeys();
      if (tile == sight.low) LetGoOfQueries();
      Logits(sight.full, KeyOf(job, tile), s);
      Maxima(s, state, shrink);
      Exponentials(shrink, s, state);
      WgmmaWait<0>();
      FenceRegisters(o);
      FenceRegisters(p);
      LetGoOfValues();
      Rescale(shrink, o);
      Pack(s, p);
    }
    IssueValues(p, o);
    WgmmaWait<0>();
    FenceRegisters(o);
    FenceRegisters(p);
    LetGoOfValues();
  }

  __device__ void AttendWithCare(const Job& job, Window full, RowState (&state)[2], Output& o) {
    Infinities<kColumns> infinities;
#pragma unroll 1
    for (int tile = job.tiles - 1; tile >= 0; --tile) {
      Scores s;
      IssueScores(s);
      WgmmaWait<0>();
      FenceRegisters(s);
      LetGoOfKeys();
      if (tile == 0) LetGoOfQueries();
      float shrink[2];
      Logits(full, KeyOf(job, tile), s);
      std::uint64_t hidden[2];
      FindHidden(s, hidden);
      Maxima(s, state, shrink);
      Exponentials(shrink, s, state);
      Rescale(shrink, o);
      Probabilities p;
      Pack(s, p);
      MbarrierWait(SharedAddress(&shared_.v_full[v_.index]), v_.parity);
      TakeInfinities<S>(SharedAddress(shared_.v[v_.index]), hidden, shared_.dirty, infinities);
      IssueValues(p, o);
      WgmmaWait<0>();
      FenceRegisters(o);
      FenceRegisters(p);
      LetGoOfValues();
    }
    infinities.AddTo(o);
  }

  __device__ static int KeyOf(const Job& job, int tile) {
    return (job.first_tile + tile) * static_cast<int>(S::kKeys);
  }

  __device__ void IssueScores(Scores& s) {
    MbarrierWait(SharedAddress(&shared_.k_full[k_.index]), k_.parity);
    const std::uint64_t queries = KMajorDescriptor(SharedAddress(shared_.q[q_.index]) + group_ * 64 * 128);
    const std::uint64_t keys = KMajorDescriptor(SharedAddress(shared_.k[k_.index]));
    FenceRegisters(s);
    WgmmaFence();
#pragma unroll
    for (unsigned step = 0; step < S::kD / 16; ++step) {
      const unsigned slab = step / 4, bytes = step % 4 * 32;
      Wgmma<S::kType, S::kKeys>::Shared(s, Further(queries, slab * Slabs<S::kRows>::kBytes + bytes),
                                        Further(keys, slab * Slabs<S::kKeys>::kBytes + bytes), step > 0);
    }
    WgmmaCommit();
  }

  __device__ void IssueValues(Probabilities& p, Output& o) {
    MbarrierWait(SharedAddress(&shared_.v_full[v_.index]), v_.parity);
    const std::uint64_t values = MnMajorDescriptor(SharedAddress(shared_.v[v_.index]), Slabs<S::kKeys>::kBytes);
    FenceRegisters(o);
    FenceRegisters(p);
    WgmmaFence();
#pragma unroll
    for (unsigned step = 0; step < kSteps; ++step) {
      Wgmma<S::kType, S::kDv>::Registers(o, p[step], Further(values, step * 16 * 128), true);
    }
    WgmmaCommit();
  }

  // The warp is done with a buffer.
  __device__ void Release(std::uint64_t& empty) const {
    __syncwarp();
    if (lane_ == 0) MbarrierArrive(SharedAddress(&empty));
  }
  __device__ void LetGoOfQueries() {
    Release(shared_.q_empty[q_.index]);
    q_.Next();
  }
  __device__ void LetGoOfKeys() {
    Release(shared_.k_empty[k_.index]);
    k_.Next();
  }
  __device__ void LetGoOfValues() {
    Release(shared_.v_empty[v_.index]);
    v_.Next();
  }

  // Of the job's first tile of values: rows past the sequence's keys, which are another sequence's or padding, become
  // zero.
  __device__ void ZeroTail(const Job& job) {
    MbarrierWait(SharedAddress(&shared_.v_full[v_.index]), v_.parity);
    const std::uint32_t values = SharedAddress(shared_.v[v_.index]);
    const auto first = static_cast<unsigned>(job.sequence.kv_length - KeyOf(job, job.tiles - 1));
    constexpr unsigned kChunks = S::kValueSlabs * 8;
    for (unsigned i = first * kChunks + thread_; i < S::kKeys * kChunks; i += S::kComputing) {
      StoreShared16(values + Slabs<S::kKeys>::Offset(i / kChunks, i % kChunks), make_uint4(0, 0, 0, 0));
    }
    FenceProxyAsync();
    NamedSync(kAllComputing, S::kComputing);
  }

  // Dot products become logits up to a factor; what a row may not see is minus infinity.
  __device__ void Logits(Window full, int base, Scores& s) const {
    if (scaling_.general) scaling_.Adjust(s);
    if (base >= full.first && base + static_cast<int>(S::kKeys) <= full.last) return;
#pragma unroll
    for (unsigned half = 0; half < 2; ++half) {
      const Window window = shared_.windows[row_ + 8 * half];
      attention_mma::Select({.first = window.first, .last = window.last}, base, lane_, half, s);
    }
  }
  __device__ void Maxima(const Scores& s, RowState (&state)[2], float (&shrink)[2]) const {
#pragma unroll
    for (unsigned half = 0; half < 2; ++half) shrink[half] = MoveMaximum(scaling_.binary, half, s, state[half]);
  }
  __device__ void Exponentials(const float (&shrink)[2], Scores& s, RowState (&state)[2]) const {
#pragma unroll
    for (unsigned half = 0; half < 2; ++half) Exponentiate(scaling_.binary, half, shrink[half], s, state[half]);
  }
  __device__ static void Pack(const Scores& s, Probabilities& p) {
#pragma unroll
    for (unsigned step = 0; step < kSteps; ++step) attention_mma::PackProbabilities<S::kType>(s, step, p[step]);
  }

  __device__ bool FiniteWhereLive(const Job& job, const Output& o) const {
    float poison[2] = {0, 0};  // becomes NaN with the first infinity or NaN
#pragma unroll
    for (unsigned n = 0; n < kColumns; ++n) {
#pragma unroll
      for (unsigned i = 0; i < 4; ++i) poison[i / 2] = fmaf(o[n][i], 0.0f, poison[i / 2]);
    }
    const auto live = static_cast<unsigned>(job.live);
    return (row_ >= live || poison[0] == 0) && (row_ + 8 >= live || poison[1] == 0);
  }

  __device__ void Finish(const Job& job, const RowState (&state)[2], Output& o) {
    float factor[2];
#pragma unroll
    for (unsigned half = 0; half < 2; ++half) {
      const unsigned row = row_ + 8 * half;
      const float sum = attention_mma::QuadSum(state[half].sum);
      constexpr float kLn2 = 0.693147180559945309417f;
      const float largest = state[half].largest * kLn2;
      const bool empty = row >= static_cast<unsigned>(job.live) || sum == 0;  // else the largest logit alone makes it 1
      const std::int64_t at = job.work.first_row + row, query = job.sequence.q_start + (at >> launch_.group_shift);
      const std::int64_t head = HeadOf(job, at);
      factor[half] = empty ? 0.0f : OutputFactor(p_, head, largest, sum, 1.0f);
      if (empty) {
#pragma unroll
        for (unsigned n = 0; n < kColumns; ++n) o[n][2 * half] = o[n][2 * half + 1] = 0;
      }
      if (lane_ % 4 == 0 && at < job.work.rows && p_.args.lse != nullptr) {
        p_.args.lse[At(p_.lse, job.work.b, head, query)] = empty ? -KERND_INFINITY : largest + logf(sum);
      }
    }
#pragma unroll
    for (unsigned n = 0; n < kColumns; ++n) {
      // + 0: the sign of a zero may tell which keys were skipped.
#pragma unroll
      for (unsigned i = 0; i < 4; ++i) o[n][i] = fmaf(o[n][i], factor[i / 2], 0.0f);
    }
    if (p_.o_type == DataType::kF32) {
      WriteWide(job, o);
    } else {
      WriteHalves(job, o);
    }
  }

  __device__ std::int64_t HeadOf(const Job& job, std::int64_t row) const {
    return job.work.kv_head * p_.group + (row & (p_.group - 1));
  }
  // Element 0 of a row of O.
  __device__ std::int64_t PlaceOf(const Job& job, std::int64_t row) const {
    return At(p_.o, job.work.b, HeadOf(job, row), job.sequence.q_start + (row >> launch_.group_shift));
  }

  __device__ void WriteWide(const Job& job, const Output& o) const {
#pragma unroll
    for (unsigned half = 0; half < 2; ++half) {
      const std::int64_t row = job.work.first_row + row_ + 8 * half;
      if (row >= job.work.rows) continue;
      float* const to = static_cast<float*>(p_.args.o) + PlaceOf(job, row) + lane_ % 4 * 2;
#pragma unroll
      for (unsigned n = 0; n < kColumns; ++n) {
        if (8 * n >= p_.v_head_dim) break;
        *reinterpret_cast<float2*>(to + 8 * n) = make_float2(o[n][2 * half], o[n][2 * half + 1]);
      }
    }
  }

  // Four lanes have a row's columns in pairs; they trade, so that each writes 16 bytes, and all of them 64 in a piece.
  __device__ void WriteHalves(const Job& job, const Output& o) const {
    static_assert(kColumns % 4 == 0);
    const unsigned t = lane_ % 4;
#pragma unroll
    for (unsigned half = 0; half < 2; ++half) {
      const std::int64_t row = job.work.first_row + row_ + 8 * half;
      const bool writes = row < job.work.rows;
      auto* const to = static_cast<std::uint16_t*>(p_.args.o) + (writes ? PlaceOf(job, row) : 0) + 8 * t;
#pragma unroll
      for (unsigned n = 0; n < kColumns; n += 4) {
        std::uint32_t x[4];
#pragma unroll
        for (unsigned i = 0; i < 4; ++i) x[i] = Pack16(o[n + i][2 * half], o[n + i][2 * half + 1]);
        Trade<1>(t, x);
        Trade<2>(t, x);
        if (writes && 8 * (n + t) < p_.v_head_dim) {
          *reinterpret_cast<uint4*>(to + 8 * n) = make_uint4(x[0], x[1], x[2], x[3]);
        }
      }
    }
  }
  // Of four lanes' four words each, as a matrix: swaps those off the diagonal of each 2 x 2 square that is kStep apart.
  template <unsigned kStep>
  __device__ static void Trade(unsigned t, std::uint32_t (&x)[4]) {
    const bool late = (t & kStep) != 0;
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) {
      if ((i & kStep) != 0) continue;
      const std::uint32_t got = __shfl_xor_sync(attention_mma::kAll, late ? x[i] : x[i + kStep], kStep);
      x[i] = late ? got : x[i];
      x[i + kStep] = late ? x[i + kStep] : got;
    }
  }
  __device__ static std::uint32_t Pack16(float low, float high) {
    return gpu::Pack<S::kType>(low, high);
  }

  const WgmmaLaunch& launch_;
  const AttentionParams& p_;
  Shared<S>& shared_;
  const Scaling scaling_;
  const unsigned thread_ = threadIdx.x - kWarpgroup, lane_ = thread_ % 32;
  // By a shuffle, so that the compiler knows that it is the same in all lanes.
  const unsigned group_ = __shfl_sync(attention_mma::kAll, thread_ / kWarpgroup, 0);
  const unsigned row_ = thread_ / 32 * 16 + lane_ / 4;  // the lane's first of the tile; the other is 8 further
  RingPlace<kJobs> jobs_;
  RingPlace<S::kQ> q_;
  RingPlace<S::kStages> k_, v_;
};

}  // namespace kernd::gpu::attention_wgmma
