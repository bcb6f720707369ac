// Few queries, many keys: one block for a part of a sequence that is cut along its keys, at most 16 rows.
// Tile: 16 rows by 16 keys for each of 4 warps, which take turns at the part's keys. A warp has its own ring of copies
//   and waits for nobody, so that up to kStages - 1 tiles of each are on their way at any time.
// The warps' maxima, sums and O meet in shared memory at the end, in the order of the warps.
// Time: that of reading K and V. For 128 channels a tile of 8 KiB takes 16 + 16 mma.sync and about 250 other
//   instructions, some 600 clocks of one warp: 8 warps of an SM take in more than 100 bytes a clock, and memory
//   gives 20.
#pragma once

#include "kernels/gpu/attention_mma_fragment.cuh"
#include "kernels/gpu/launch.cuh"

namespace kernd::gpu::attention_mma {

template <MmaKind kKind, unsigned kD_, unsigned kDv_>
struct DecodeShape {
  static_assert(kKind != MmaKind::kF16Sm75, "needs asynchronous copies");
  static constexpr DataType kType = kKind == MmaKind::kBF16Sm80 ? DataType::kBF16 : DataType::kF16;
  static constexpr unsigned kD = kD_, kDv = kDv_, kRows = 16, kWarps = 4, kThreads = kWarp * kWarps, kKeys = 16;
  // 96 KiB of them, so that an SM has room for two blocks; at least the two that overlap, at most as many as help.
  static constexpr unsigned kStageElements = kKeys * (kD + kDv);
  static constexpr unsigned kFitting = (96u << 10) / (2 * kWarps * kStageElements);
  static constexpr unsigned kStages = kFitting < 2 ? 2 : kFitting > 6 ? 6 : kFitting;
  static constexpr unsigned kPitch = kDv + 8;  // floats between rows of a warp's O: banks move on by 8

  struct Shared {
    alignas(1024) std::uint16_t ring[kWarps][kStages][kStageElements];  // K, then V; O of the warps at the end
    std::uint16_t q[kRows * kD];
    float2 states[kWarps][kRows];  // maximum and sum
    MmaRow rows[kRows];
    AttentionWork work;
  };
  static_assert(sizeof(Shared::ring) >= kWarps * kRows * kPitch * sizeof(float));
};

template <typename S>
class MmaDecode {
 public:
  __device__ MmaDecode(const AttentionParams& p, const AttentionPlan& plan, typename S::Shared& shared)
      : p_(p), plan_(plan), shared_(shared), work_(shared.work) {}

  __device__ void Run() {
    if (thread_ < S::kRows) shared_.rows[thread_] = MmaRowOf(p_, Sequence(), work_, thread_);
    __syncthreads();
    begin_ = max(static_cast<int>(work_.first_key), shared_.rows[0].first) / kKeys * kKeys;
    end_ = shared_.rows[work_.rows - 1].last;
    const int tiles = (end_ - begin_ + kKeys - 1) / kKeys, mine = tiles - static_cast<int>(warp_) + kWarps - 1;
    tiles_ = mine > 0 ? mine / kWarps : 0;
    LoadQueries();
    const bool done = !logits_.general && Pass<false>();
    if (__syncthreads_or(!done)) Pass<true>();
    Merge();
  }

 private:
  static constexpr int kKeys = S::kKeys, kWarps = S::kWarps;
  using KeyCopies = RowCopies<S::kKeys, S::kD, kWarp>;
  using ValueCopies = RowCopies<S::kKeys, S::kDv, kWarp>;

  __device__ const AttentionSequence& Sequence() const { return p_.tables.sequences[work_.b]; }
  __device__ static const std::uint16_t* Elements(const void* base) { return static_cast<const std::uint16_t*>(base); }

  __device__ void LoadQueries() {
    using Place = SwizzledRows<S::kD>;
    for (unsigned i = thread_; i < S::kRows * Place::kChunks; i += S::kThreads) {
      const unsigned row = i / Place::kChunks, chunk = i % Place::kChunks;
      const MmaRow& at = shared_.rows[row];
      const std::uint16_t* const from = Elements(p_.args.q) + At(p_.q, work_.b, at.head, Sequence().q_start + at.query);
      Copy16<true>(SharedAddress(shared_.q) + Place::Offset(row, chunk), from + 8 * chunk,
                   at.first < at.last && 8 * chunk < p_.head_dim);
    }
    CommitCopies<true>();
  }

  // All tiles of the warp, from the start; with care: see attention_mma_fragment.cuh. False: O is not finite.
  template <bool kCareful>
  __device__ bool Pass() {
    state_[0] = state_[1] = {-KERND_INFINITY, 0.0f};
#pragma unroll
    for (unsigned n = 0; n < S::kDv / 8; ++n) o_[0][n][0] = o_[0][n][1] = o_[0][n][2] = o_[0][n][3] = 0;
    const std::int64_t first = Sequence().kv_start + begin_ + static_cast<std::int64_t>(warp_) * kKeys;
    const auto start = [&](const void* base, const HeadStrides& strides) {
      return Elements(base) + At(strides, work_.b, work_.kv_head, first);
    };
    keys_ = start(p_.args.k, p_.k) + KeyCopies::Start(lane_, p_.k.row);
    values_ = start(p_.args.v, p_.v) + ValueCopies::Start(lane_, p_.v.row);
    for (unsigned i = 0; i + 1 < S::kStages; ++i) Load(static_cast<int>(i));
    WaitCopies<true, S::kStages - 1>();  // for queries, which K and V need not wait for
    __syncthreads();
    unsigned stage = 0;
#pragma unroll 1
    for (int i = 0; i < tiles_; ++i) {
      WaitCopies<true, S::kStages - 2>();
      __syncwarp();  // the tile is there, and all lanes are done with the one before
      Load(i + static_cast<int>(S::kStages) - 1);
      const std::uint32_t tile = SharedAddress(shared_.ring[warp_][stage]);
      AddTile<kCareful>(FirstKey(i), tile, tile + 2 * S::kKeys * S::kD);
      stage = stage + 1 < S::kStages ? stage + 1 : 0;
    }
    return AllFinite(o_[0]);
  }

  __device__ int FirstKey(int tile) const {
    return begin_ + (tile * kWarps + static_cast<int>(warp_)) * kKeys;
  }

  // Called for each tile in turn. A group of copies, empty past the last tile.
  __device__ void Load(int tile) {
    if (tile < tiles_) {
      const std::uint32_t to = SharedAddress(shared_.ring[warp_][static_cast<unsigned>(tile) % S::kStages]);
      const auto keys = static_cast<unsigned>(min(end_ - FirstKey(tile), kKeys));
      KeyCopies::template Bring<true>(to, keys_, p_.k.row, keys, static_cast<unsigned>(p_.head_dim), lane_);
      ValueCopies::template Bring<true>(to + 2 * S::kKeys * S::kD, values_, p_.v.row, keys,
                                        static_cast<unsigned>(p_.v_head_dim), lane_);
      keys_ += (kWarps - 1) * kKeys * p_.k.row;
      values_ += (kWarps - 1) * kKeys * p_.v.row;
    }
    CommitCopies<true>();
  }

  template <bool kCareful>
  __device__ void AddTile(int base, std::uint32_t keys, std::uint32_t values) {
    float s[2][4] = {};
#pragma unroll
    for (unsigned step = 0; step < S::kD / 16; ++step) {
      std::uint32_t q[4], k[4];
      LoadMatrices(RowOperand<S::kD>(SharedAddress(shared_.q), lane_, 0, 2 * step), q);
      LoadMatrices(ColumnOperand<S::kD>(keys, lane_, 0, 2 * step), k);
      Multiply<S::kType, true>(s[0], q, k[0], k[1]);
      Multiply<S::kType, true>(s[1], q, k[2], k[3]);
    }
#pragma unroll
    for (unsigned half = 0; half < 2; ++half) {
      const MmaRow row = shared_.rows[8 * half + lane_ / 4];
      if (kCareful && logits_.general) Adjust(p_, Sequence(), work_, row, base, lane_, half, s);
      Select(row, base, lane_, half, s);
      [[maybe_unused]] std::uint32_t hidden = 0;
      if constexpr (kCareful) hidden = HiddenKeys(s, half);
      const float shrink = Soften(logits_, half, s, state_[half]);
      if constexpr (kCareful) HideKeys(hidden, half, s);
#pragma unroll
      for (unsigned n = 0; n < S::kDv / 8; ++n) {
        o_[0][n][2 * half] *= shrink;
        o_[0][n][2 * half + 1] *= shrink;
      }
    }
    std::uint32_t p[1][4];
    PackProbabilities<S::kType>(s, 0, p[0]);
    AddValues<S::kType, true, kCareful, S::kDv>(p, values, lane_, 0, o_);
  }

  // The warps' parts become the block's, in the workspace.
  __device__ void Merge() {
#pragma unroll
    for (unsigned half = 0; half < 2; ++half) {
      const float sum = QuadSum(state_[half].sum);
      if (lane_ % 4 == 0) shared_.states[warp_][8 * half + lane_ / 4] = make_float2(state_[half].largest, sum);
    }
    __syncthreads();  // states are there, and the ring is free
    auto* const parts = reinterpret_cast<float*>(shared_.ring);
#pragma unroll
    for (unsigned half = 0; half < 2; ++half) {
      const unsigned row = 8 * half + lane_ / 4;
      const float weight = Exp2((state_[half].largest - PivotOf(LargestOf(row))) * logits_.binary);
      float* const to = parts + (warp_ * S::kRows + row) * S::kPitch + lane_ % 4 * 2;
#pragma unroll
      for (unsigned n = 0; n < S::kDv / 8; ++n) {
        *reinterpret_cast<float2*>(to + 8 * n) =
            make_float2(o_[0][n][2 * half] * weight, o_[0][n][2 * half + 1] * weight);
      }
    }
    __syncthreads();
    const auto rows = static_cast<unsigned>(work_.rows), cols = static_cast<unsigned>(p_.v_head_dim);
    for (unsigned row = warp_; row < rows; row += S::kWarps) {
      const float largest = LargestOf(row), pivot = PivotOf(largest);
      float sum = 0;
#pragma unroll
      for (unsigned w = 0; w < S::kWarps; ++w) {
        const float2 state = shared_.states[w][row];
        sum += state.y * Exp2((state.x - pivot) * logits_.binary);
      }
      const std::int64_t slot = plan_.group.Slot(work_.b, p_.kv_heads, work_.kv_head, row, work_.split);
      if (lane_ == 0) plan_.workspace.state[slot] = make_float2(largest * logits_.Natural(p_), sum);
      if (sum == 0) continue;
      float* const to = plan_.workspace.sums + slot * p_.v_head_dim;
      for (unsigned c = lane_; c < cols; c += kWarp) {
        float x = 0;
#pragma unroll
        for (unsigned w = 0; w < S::kWarps; ++w) x += parts[(w * S::kRows + row) * S::kPitch + c];
        to[c] = x;
      }
    }
  }

  __device__ float LargestOf(unsigned row) const {
    float largest = -KERND_INFINITY;
#pragma unroll
    for (unsigned w = 0; w < S::kWarps; ++w) largest = fmaxf(largest, shared_.states[w][row].x);
    return largest;
  }
  __device__ static float PivotOf(float largest) {
    return largest == -KERND_INFINITY ? 0.0f : largest;
  }

  const AttentionParams& p_;
  const AttentionPlan& plan_;
  typename S::Shared& shared_;
  const AttentionWork& work_;
  const Logits logits_ = Logits::Of(p_);
  const unsigned thread_ = threadIdx.x, lane_ = thread_ % kWarp, warp_ = thread_ / kWarp;
  int begin_ = 0, end_ = 0, tiles_ = 0;                      // keys of the block; tiles of the warp
  const std::uint16_t *keys_ = nullptr, *values_ = nullptr;  // the next that the lane copies
  RowState state_[2];
  float o_[1][S::kDv / 8][4];
};

template <typename S>
__global__ void __launch_bounds__(S::kThreads, 2)
    AttentionMmaDecode(const __grid_constant__ AttentionParams p, const __grid_constant__ AttentionPlan plan) {
  if constexpr (kHasSm80) {
    auto& shared = *static_cast<typename S::Shared*>(DynamicShared());
    for (std::int64_t i = blockIdx.x; i < plan.works; i += gridDim.x) {
      __syncthreads();  // the piece before is done with shared memory
      if (threadIdx.x == 0) shared.work = FindWork(p, plan, i, S::kRows, S::kDv);
      __syncthreads();
      if (shared.work.any) MmaDecode<S>(p, plan, shared).Run();
    }
  }
}

template <typename S>
MmaKernel DecodeKernel() {
  constexpr std::size_t kBytes = sizeof(typename S::Shared);
  return {.rows = S::kRows,
          .shared_bytes = kBytes,
          .load = [] { return AllowSharedMemory(AttentionMmaDecode<S>, kBytes); },
          .launch =
              [](const AttentionParams& p, const AttentionPlan& plan, Stream stream) {
                return LaunchKernel("AttentionMmaDecode", AttentionMmaDecode<S>, GridOf(plan.works), S::kThreads,
                                    kBytes, stream, p, plan);
              }};
}

}  // namespace kernd::gpu::attention_mma
