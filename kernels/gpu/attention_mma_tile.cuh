// The tile of attention_mma.cu: what one block does with its rows and keys.
#pragma once

#include "kernels/gpu/attention_mma_fragment.cuh"
#include "kernels/gpu/launch.cuh"

namespace kernd::gpu::attention_mma {

// Of a block's tiles of keys, those of which a warp's rows see something, and all.
struct WarpTiles {
  int from, to, full_from, full_to;
};

// A tile's size and instructions. kM: 16s of rows of a warp. kBuffers: of K, and as many of V.
template <MmaKind kKind, unsigned kD_, unsigned kDv_, unsigned kM_, unsigned kWarps, unsigned kBlocksPerSm_,
          unsigned kBuffers_ = 1>
struct TileShape {
  static constexpr DataType kType = kKind == MmaKind::kBF16Sm80 ? DataType::kBF16 : DataType::kF16;
  static constexpr bool kSm80 = kKind != MmaKind::kF16Sm75;
  static constexpr unsigned kD = kD_, kDv = kDv_, kM = kM_, kBuffers = kBuffers_, kBlocksPerSm = kBlocksPerSm_;
  static constexpr unsigned kRowsPerWarp = 16 * kM, kRows = kRowsPerWarp * kWarps, kThreads = kWarp * kWarps;
  static constexpr unsigned kTiles = kMmaKeys / 8;  // of S

  struct Shared {
    alignas(1024) std::uint16_t q[kRows * kD];
    std::uint16_t k[kBuffers][kMmaKeys * kD], v[kBuffers][kMmaKeys * kDv];
    MmaRow rows[kRows];
    WarpTiles seen[kWarps];
    AttentionWork work;
  };
};

template <typename S>
class MmaTile {
 public:
  __device__ MmaTile(const AttentionParams& p, const AttentionPlan& plan, typename S::Shared& shared)
      : p_(p), plan_(plan), shared_(shared), work_(shared.work) {}

  __device__ void Run() {
    for (unsigned r = thread_; r < S::kRows; r += S::kThreads) shared_.rows[r] = MmaRowOf(p_, Sequence(), work_, r);
    __syncthreads();
    FindTiles();
    if (tiles_ > 0) LoadQueries();
    const bool done = !logits_.general && Pass<false>();
    if (__syncthreads_or(!done)) Pass<true>();
    Finish();
  }

 private:
  static constexpr int kKeys = kMmaKeys;

  // Rows that are computed.
  __device__ unsigned Live() const {
    const std::int64_t computed = Sequence().q_length * p_.group - work_.first_row;
    return static_cast<unsigned>(max(min(computed, static_cast<std::int64_t>(S::kRows)), std::int64_t{0}));
  }

  // The block's tiles of keys, and of these, those of which the warp's rows see something, and all.
  __device__ void FindTiles() {
    tiles_ = 0;
    const unsigned live = Live();
    if (live == 0) return;
    // Windows move on with the rows: those of the first and the last row bound all.
    begin_ = max(static_cast<int>(work_.first_key), shared_.rows[0].first) / kKeys * kKeys;
    const int keys = shared_.rows[live - 1].last - begin_;
    if (keys <= 0) return;
    tiles_ = (keys + kKeys - 1) / kKeys;
    last_keys_ = keys - (tiles_ - 1) * kKeys;
    if (lane_ == 0) {
      WarpTiles seen{};
      if (row_ < live) {
        const MmaRow &first = shared_.rows[row_], &last = shared_.rows[min(live, row_ + S::kRowsPerWarp) - 1];
        const auto tile = [&](int key, int up) { return (max(key - begin_, 0) + up) / kKeys; };  // counted from begin_
        seen = {tile(first.first, 0), tile(last.last, kKeys - 1), tile(last.first, kKeys - 1), tile(first.last, 0)};
      }
      shared_.seen[row_ / S::kRowsPerWarp] = seen;
    }
    __syncwarp();
  }
  __device__ const WarpTiles& Seen() const { return shared_.seen[row_ / S::kRowsPerWarp]; }

  // All tiles, from the start; with care: see attention_mma_fragment.cuh. K of the next tile is on its way while P V is
  // computed, and V of the next while Q K^T is. False: O is not finite.
  template <bool kCareful>
  __device__ bool Pass() {
#pragma unroll
    for (unsigned m = 0; m < S::kM; ++m) {
      state_[m][0] = state_[m][1] = {-KERND_INFINITY, 0.0f};
#pragma unroll
      for (unsigned n = 0; n < S::kDv / 8; ++n) o_[m][n][0] = o_[m][n][1] = o_[m][n][2] = o_[m][n][3] = 0;
    }
    StartLoads();
    LoadKeys(0);
    LoadValues(0);
#pragma unroll 1
    for (int tile = 0; tile < tiles_; ++tile) {
      const bool seen = tile >= Seen().from && tile < Seen().to;
      float s[S::kM][S::kTiles][4];
      WaitCopies<S::kSm80, 1>();
      __syncthreads();  // K is there, and everyone is done with the V before
      if constexpr (S::kBuffers > 1) LoadKeys(tile + 1);
      if (seen) MultiplyKeys(tile, s);
      if constexpr (S::kBuffers == 1) {
        __syncthreads();
        LoadKeys(tile + 1);
      }
      std::uint32_t p[kMmaKeys / 16][S::kM][4];
      if (seen) Softmax<kCareful>(tile, s, p);
      WaitCopies<S::kSm80, 1>();
      __syncthreads();  // V is there, and everyone is done with K
      if constexpr (S::kBuffers > 1) LoadValues(tile + 1);
      if (seen) {
        const std::uint32_t values = SharedAddress(shared_.v[tile % S::kBuffers]);
        // With care it is a lot of code, once in it is enough.
#pragma unroll(kCareful ? 1 : kMmaKeys / 16)
        for (unsigned k = 0; k < kMmaKeys / 16; ++k) {
          AddValues<S::kType, S::kSm80, kCareful, S::kDv>(p[k], values, lane_, 16 * k, o_);
        }
      }
      if constexpr (S::kBuffers == 1) {
        __syncthreads();
        LoadValues(tile + 1);
      }
    }
    bool finite = true;
#pragma unroll
    for (unsigned m = 0; m < S::kM; ++m) finite = AllFinite(o_[m]) && finite;
    return finite;
  }

  __device__ const AttentionSequence& Sequence() const {
    return p_.tables.sequences[work_.b];
  }
  __device__ static const std::uint16_t* Elements(const void* base) {
    return static_cast<const std::uint16_t*>(base);
  }

  __device__ void LoadQueries() {
    using Place = SwizzledRows<S::kD>;
    const std::uint32_t to = SharedAddress(shared_.q);
    for (unsigned i = thread_; i < S::kRows * Place::kChunks; i += S::kThreads) {
      const unsigned row = i / Place::kChunks, chunk = i % Place::kChunks;
      const MmaRow& at = shared_.rows[row];
      const std::uint16_t* const from = Elements(p_.args.q) + At(p_.q, work_.b, at.head, Sequence().q_start + at.query);
      Copy16<S::kSm80>(to + Place::Offset(row, chunk), from + 8 * chunk, at.first < at.last && 8 * chunk < p_.head_dim);
    }
  }

  using KeyCopies = RowCopies<kMmaKeys, S::kD, S::kThreads>;
  using ValueCopies = RowCopies<kMmaKeys, S::kDv, S::kThreads>;

  __device__ void StartLoads() {
    const auto start = [&](const void* base, const HeadStrides& strides) {
      return Elements(base) + At(strides, work_.b, work_.kv_head, Sequence().kv_start + begin_);
    };
    keys_ = start(p_.args.k, p_.k) + KeyCopies::Start(thread_, p_.k.row);
    values_ = start(p_.args.v, p_.v) + ValueCopies::Start(thread_, p_.v.row);
  }

  // Called for each tile in turn. A group of copies, empty past the last tile.
  __device__ void LoadKeys(int tile) {
    if (tile < tiles_) {
      KeyCopies::template Bring<S::kSm80>(SharedAddress(shared_.k[tile % S::kBuffers]), keys_, p_.k.row, KeysOf(tile),
                                          static_cast<unsigned>(p_.head_dim), thread_);
    }
    CommitCopies<S::kSm80>();
  }
  __device__ void LoadValues(int tile) {
    if (tile < tiles_) {
      ValueCopies::template Bring<S::kSm80>(SharedAddress(shared_.v[tile % S::kBuffers]), values_, p_.v.row,
                                            KeysOf(tile), static_cast<unsigned>(p_.v_head_dim), thread_);
    }
    CommitCopies<S::kSm80>();
  }
  __device__ unsigned KeysOf(int tile) const {
    return tile + 1 < tiles_ ? kMmaKeys : static_cast<unsigned>(last_keys_);
  }

  // S = Q K^T of the warp's rows.
  __device__ void MultiplyKeys(int tile, float (&s)[S::kM][S::kTiles][4]) const {
    const std::uint32_t queries = SharedAddress(shared_.q), keys = SharedAddress(shared_.k[tile % S::kBuffers]);
#pragma unroll
    for (unsigned m = 0; m < S::kM; ++m) {
#pragma unroll
      for (unsigned n = 0; n < S::kTiles; ++n) s[m][n][0] = s[m][n][1] = s[m][n][2] = s[m][n][3] = 0;
    }
#pragma unroll
    for (unsigned step = 0; step < S::kD / 16; ++step) {
      std::uint32_t q[S::kM][4];
#pragma unroll
      for (unsigned m = 0; m < S::kM; ++m) {
        LoadMatrices(RowOperand<S::kD>(queries, lane_, row_ + 16 * m, 2 * step), q[m]);
      }
#pragma unroll
      for (unsigned n = 0; n < kMmaKeys / 16; ++n) {
        std::uint32_t k[4];
        LoadMatrices(ColumnOperand<S::kD>(keys, lane_, 16 * n, 2 * step), k);
#pragma unroll
        for (unsigned m = 0; m < S::kM; ++m) {
          Multiply<S::kType, S::kSm80>(s[m][2 * n], q[m], k[0], k[1]);
          Multiply<S::kType, S::kSm80>(s[m][2 * n + 1], q[m], k[2], k[3]);
        }
      }
    }
  }

  // Logits become P; maximum, sum and O move on.
  template <bool kCareful>
  __device__ void Softmax(int tile, float (&s)[S::kM][S::kTiles][4], std::uint32_t (&p)[kMmaKeys / 16][S::kM][4]) {
    const int base = begin_ + tile * kKeys;
    const bool full = tile >= Seen().full_from && tile < Seen().full_to;
#pragma unroll
    for (unsigned m = 0; m < S::kM; ++m) {
      float shrink[2];
#pragma unroll
      for (unsigned half = 0; half < 2; ++half) {
        const MmaRow& row = shared_.rows[row_ + 16 * m + 8 * half + lane_ / 4];
        if (kCareful && logits_.general) Adjust(p_, Sequence(), work_, row, base, lane_, half, s[m]);
        if (!full) Select(row, base, lane_, half, s[m]);
        [[maybe_unused]] std::uint32_t hidden = 0;
        if constexpr (kCareful) hidden = HiddenKeys(s[m], half);
        shrink[half] = Soften(logits_, half, s[m], state_[m][half]);
        if constexpr (kCareful) HideKeys(hidden, half, s[m]);
      }
#pragma unroll
      for (unsigned k = 0; k < kMmaKeys / 16; ++k) PackProbabilities<S::kType>(s[m], k, p[k][m]);
      // Maxima settle soon; then there is nothing to multiply.
      if (__any_sync(kAll, shrink[0] != 1 || shrink[1] != 1) == 0) continue;
#pragma unroll
      for (unsigned n = 0; n < S::kDv / 8; ++n) {
#pragma unroll
        for (unsigned i = 0; i < 4; ++i) o_[m][n][i] *= shrink[i / 2];
      }
    }
  }

  __device__ void Finish() {
#pragma unroll
    for (unsigned m = 0; m < S::kM; ++m) {
#pragma unroll
      for (unsigned half = 0; half < 2; ++half) {
        const unsigned r = row_ + 16 * m + 8 * half + lane_ / 4;
        const float sum = QuadSum(state_[m][half].sum);
        const float largest = state_[m][half].largest * logits_.Natural(p_);
        if (work_.first_row + r >= work_.rows) continue;
        const bool empty = sum == 0 || r >= Live();  // else the largest logit alone makes it 1
        if (plan_.split) {
          LeavePart(m, half, r, empty ? make_float2(-KERND_INFINITY, 0.0f) : make_float2(largest, sum));
        } else {
          WriteRow(m, half, shared_.rows[r], empty, largest, sum);
        }
      }
    }
  }

  __device__ void LeavePart(unsigned m, unsigned half, unsigned r, float2 state) {
    const std::int64_t slot = plan_.group.Slot(work_.b, p_.kv_heads, work_.kv_head, work_.first_row + r, work_.split);
    if (lane_ % 4 == 0) plan_.workspace.state[slot] = state;
    if (state.y == 0) return;
    float* const to = plan_.workspace.sums + slot * p_.v_head_dim;
#pragma unroll
    for (unsigned n = 0; n < S::kDv / 8; ++n) {
      if (8 * n >= p_.v_head_dim) break;
      *reinterpret_cast<float2*>(to + 8 * n + lane_ % 4 * 2) = make_float2(o_[m][n][2 * half], o_[m][n][2 * half + 1]);
    }
  }

  __device__ void WriteRow(unsigned m, unsigned half, const MmaRow& row, bool empty, float largest, float sum) {
    const std::int64_t query = Sequence().q_start + row.query;
    const float factor = empty ? 0.0f : OutputFactor(p_, row.head, largest, sum, 1.0f);
    const std::int64_t at = At(p_.o, work_.b, row.head, query) + lane_ % 4 * 2;
#pragma unroll
    for (unsigned n = 0; n < S::kDv / 8; ++n) {
      if (8 * n >= p_.v_head_dim) break;
      // + 0: the sign of a zero may tell which keys were skipped.
      const float low = empty ? 0.0f : o_[m][n][2 * half] * factor + 0.0f;
      const float high = empty ? 0.0f : o_[m][n][2 * half + 1] * factor + 0.0f;
      if (p_.o_type == DataType::kF32) {
        *reinterpret_cast<float2*>(static_cast<float*>(p_.args.o) + at + 8 * n) = make_float2(low, high);
      } else {
        *reinterpret_cast<std::uint32_t*>(static_cast<std::uint16_t*>(p_.args.o) + at + 8 * n) =
            Pack<S::kType>(low, high);
      }
    }
    if (lane_ % 4 == 0 && p_.args.lse != nullptr) {
      p_.args.lse[At(p_.lse, work_.b, row.head, query)] = empty ? -KERND_INFINITY : largest + logf(sum);
    }
  }

  const AttentionParams& p_;
  const AttentionPlan& plan_;
  typename S::Shared& shared_;
  const AttentionWork& work_;
  const Logits logits_ = Logits::Of(p_);
  const unsigned thread_ = threadIdx.x, lane_ = thread_ % kWarp;
  const unsigned row_ = thread_ / kWarp * S::kRowsPerWarp;   // the warp's first
  int begin_ = 0;                                            // the first key of the first tile
  int tiles_ = 0, last_keys_ = 0;                            // how many, and keys of the last
  const std::uint16_t *keys_ = nullptr, *values_ = nullptr;  // the next that the thread copies
  RowState state_[S::kM][2];
  float o_[S::kM][S::kDv / 8][4];
};

template <typename S>
__global__ void __launch_bounds__(S::kThreads, S::kBlocksPerSm)
    AttentionMma(const __grid_constant__ AttentionParams p, const __grid_constant__ AttentionPlan plan) {
  if constexpr (kHasSm80 || !S::kSm80) {
    auto& shared = *static_cast<typename S::Shared*>(DynamicShared());
    for (std::int64_t i = blockIdx.x; i < plan.works; i += gridDim.x) {
      __syncthreads();  // the piece before is done with shared memory
      if (threadIdx.x == 0) shared.work = FindWork(p, plan, i, S::kRows, S::kDv);
      __syncthreads();
      if (shared.work.any) MmaTile<S>(p, plan, shared).Run();
    }
  }
}

// The kernel of a shape, as the host sees it.
template <typename S>
MmaKernel TileKernel() {
  constexpr std::size_t kBytes = sizeof(typename S::Shared);
  return {.rows = S::kRows,
          .shared_bytes = kBytes,
          .load = [] { return AllowSharedMemory(AttentionMma<S>, kBytes); },
          .launch =
              [](const AttentionParams& p, const AttentionPlan& plan, Stream stream) {
                return LaunchKernel("AttentionMma", AttentionMma<S>, GridOf(plan.works), S::kThreads, kBytes, stream, p,
                                    plan);
              }};
}

}  // namespace kernd::gpu::attention_mma
