// The tile of attention_simt.cu: what one block does with its rows, columns and keys.
#pragma once

#include "kernels/gpu/attention_work.cuh"
#include "kernels/gpu/element.cuh"

namespace kernd::gpu::attention_simt {

constexpr unsigned kWarp = 32, kKeys = 128, kKeysPerLane = kKeys / kWarp, kChunk = 32;
static_assert(kSplitKeyMultiple % kKeys == 0);

using Work = AttentionWork;
using Plan = AttentionPlan;

// A tile's size, and what a block keeps in shared memory.
template <unsigned kRowsPerWarp_, unsigned kWarps, unsigned kColsPerLane_>
struct Shape {
  static constexpr unsigned kRowsPerWarp = kRowsPerWarp_, kColsPerLane = kColsPerLane_;
  static constexpr unsigned kRows = kRowsPerWarp * kWarps, kThreads = kWarp * kWarps, kCols = kWarp * kColsPerLane;
  static constexpr unsigned kBlocksPerSm = kRows == 64 ? 2 : kRows == 16 ? 4 : kRows == 8 ? 3 : 6;
  static constexpr unsigned kOctetsInFlight = kThreads == 256 ? 2 : 4;  // of each thread, where it loads

  struct Shared {
    float4 tile[kChunk * kKeys / 4];  // K [kChunk][kKeys], keys swizzled; then V [kChunk][kCols]
    float4 q[kRows * kChunk / 4];     // [kRows][kChunk]
    float4 p[kRows * kKeys / 4];      // [kRows][kKeys]; logits before, O at the end
    AttentionRow rows[kRows];
    int2 window[kRows];   // of the rows, in the tile at hand
    float2 state[kRows];  // maximum and sum, at the end
    Work work;            // of the block
  };
};
using Large = Shape<8, 8, 4>;
using LargeNarrow = Shape<8, 8, 2>;
using Medium = Shape<4, 4, 4>;
using Small = Shape<1, 4, 4>;
using Wide = Shape<1, 8, 4>;  // more threads that load, where blocks are few

// One block's piece of work.
template <typename S>
class Tile {
 public:
  __device__ Tile(const AttentionParams& p, const Plan& plan, typename S::Shared& shared)
      : p_(p), plan_(plan), shared_(shared), work_(shared.work), s_(p.tables.sequences[work_.b]) {}

  __device__ void Run() {
    const std::int64_t computed = s_.q_length * p_.group - work_.first_row;
    const auto live = static_cast<unsigned>(max(min(computed, static_cast<std::int64_t>(S::kRows)), std::int64_t{0}));
    if (thread_ < S::kRows) {
      AttentionRow row{};
      if (thread_ < live) row = RowOf(p_, s_, work_.b, Head(thread_), Query(thread_));
      shared_.rows[thread_] = row;
    }
    const float factor = LogitFactor(p_, work_.b, work_.kv_head);
#pragma unroll
    for (unsigned r = 0; r < S::kRowsPerWarp; ++r) {
      largest_[r] = -KERND_INFINITY;
      sum_[r] = 0;
#pragma unroll
      for (unsigned c = 0; c < S::kColsPerLane; ++c) o_[r][c] = 0;
    }
    __syncthreads();
    // Windows move on with the rows: those of the first and the last row bound all.
    std::int64_t begin = 0, end = 0;
    if (live > 0) {
      const std::int64_t right = shared_.rows[live - 1].position + p_.window_right + 1;
      begin = max(work_.first_key, shared_.rows[0].position - p_.window_left) / kKeys * kKeys;
      end = min(work_.last_key, right);
    }
    for (std::int64_t base = begin; base < end; base += kKeys) {
      const unsigned keys = static_cast<unsigned>(min(static_cast<std::int64_t>(kKeys), end - base));
      float s[S::kRowsPerWarp][kKeysPerLane] = {};
      const bool active = Dots(base, keys, s);
      if (active) Softmax(base, factor, s);
      AddValues(base, keys, active);
    }
    Finish();
  }

 private:
  __device__ std::int64_t Query(unsigned row) const {
    return (work_.first_row + row) / p_.group;
  }
  __device__ std::int64_t Head(unsigned row) const {
    return work_.kv_head * p_.group + (work_.first_row + row) % p_.group;
  }

  // S = Q K^T of the warp's rows. False: none of them sees a key of the tile, and S is not set.
  __device__ bool Dots(std::int64_t base, unsigned keys, float (&s)[S::kRowsPerWarp][kKeysPerLane]) {
    bool active = false;
    for (std::int64_t d0 = 0; d0 == 0 || d0 < p_.head_dim; d0 += kChunk) {
      __syncthreads();
      if (d0 == 0 && thread_ < S::kRows) shared_.window[thread_] = WindowOf(shared_.rows[thread_], base);
      LoadKeys(base, keys, d0);
      LoadQueries(d0);
      __syncthreads();
      if (d0 == 0) {
        for (unsigned r = 0; r < S::kRowsPerWarp; ++r) {
          const int2 window = shared_.window[row_ + r];
          active = active || window.x < window.y;
        }
      }
      if (!active) continue;
      const unsigned width = static_cast<unsigned>(min(static_cast<std::int64_t>(kChunk), p_.head_dim - d0));
      const float4* const q = shared_.q + row_ * (kChunk / 4);
      const unsigned octets = (width + kOctet - 1) / kOctet;
#pragma unroll 1
      for (unsigned octet = 0; octet < octets; ++octet) {
        const float4* const keys_at = shared_.tile + octet * (kOctet * kKeys / 4) + (lane_ ^ (2 * octet));
#pragma unroll
        for (unsigned half = 0; half < 2; ++half) {
          float4 k[4];
#pragma unroll
          for (unsigned i = 0; i < 4; ++i) k[i] = keys_at[(4 * half + i) * (kKeys / 4)];
#pragma unroll
          for (unsigned r = 0; r < S::kRowsPerWarp; ++r) {
            const float4 x = q[r * (kChunk / 4) + 2 * octet + half];
            AddProduct(x.x, k[0], s[r]);
            AddProduct(x.y, k[1], s[r]);
            AddProduct(x.z, k[2], s[r]);
            AddProduct(x.w, k[3], s[r]);
          }
        }
      }
    }
    return active;
  }

  __device__ static void AddProduct(float a, const float4& b, float (&sum)[kKeysPerLane]) {
    sum[0] = fmaf(a, b.x, sum[0]);
    sum[1] = fmaf(a, b.y, sum[1]);
    sum[2] = fmaf(a, b.z, sum[2]);
    sum[3] = fmaf(a, b.w, sum[3]);
  }

  // The row's keys in the tile that starts at `base`; of no other split.
  __device__ int2 WindowOf(const AttentionRow& row, std::int64_t base) const {
    const std::int64_t last = min(row.last, work_.last_key);
    const auto in_tile = [base](std::int64_t key) {
      return static_cast<int>(max(min(key - base, static_cast<std::int64_t>(kKeys)), std::int64_t{0}));
    };
    return make_int2(in_tile(row.first), in_tile(last));
  }

  // Brings a matrix of kElements, kCols a row, of the operands' dtype into shared memory.
  template <unsigned kElements, unsigned kCols, unsigned kStride, typename From, typename To>
  __device__ bool Bring(const From& from, const To& to) const {
    return BringMatrix<kElements, kCols, kStride, S::kThreads, S::kOctetsInFlight>(p_.type, p_.type_bytes, from, to);
  }
  __device__ OctetSource SourceAt(const void* base, std::int64_t at, std::int64_t count) const {
    return {static_cast<const char*>(base) + at * p_.type_bytes, count};
  }

  // Channels d0 .. d0 + kChunk of the tile's keys. A warp writes 8 keys by 4 octets of channels: the swizzle, which
  // keeps four keys together, gives each its own bank.
  __device__ void LoadKeys(std::int64_t base, unsigned keys, std::int64_t d0) {
    const std::int64_t at = At(p_.k, work_.b, work_.kv_head, s_.kv_start + base) + d0, left = p_.head_dim - d0;
    float* const tile = &shared_.tile[0].x;
    Bring<kKeys * kChunk, kChunk, kKeys>(
        [&](unsigned key, unsigned d) {
          return SourceAt(p_.args.k, at + key * p_.k.row + d, key < keys ? left - d : 0);
        },
        [&](unsigned key, unsigned d) { return tile + d * kKeys + (key ^ d); });
  }

  __device__ void LoadQueries(std::int64_t d0) {
    const std::int64_t left = p_.head_dim - d0;
    float* const q = &shared_.q[0].x;
    Bring<S::kRows * kChunk, kChunk, 1>(
        [&](unsigned row, unsigned d) {
          const AttentionRow& at = shared_.rows[row];
          return SourceAt(p_.args.q, at.q + d0 + d, at.first < at.last ? left - d : 0);
        },
        [&](unsigned row, unsigned d) { return q + row * kChunk + d; });
  }

  // `count` keys from the element `at` on. False where this thread met infinity or NaN.
  __device__ bool LoadValues(std::int64_t at, unsigned count) {
    const std::int64_t left = p_.v_head_dim - work_.first_col;
    float* const tile = &shared_.tile[0].x;
    return Bring<kChunk * S::kCols, S::kCols, 1>(
        [&](unsigned key, unsigned c) {
          return SourceAt(p_.args.v, at + key * p_.v.row + work_.first_col + c, key < count ? left - c : 0);
        },
        [&](unsigned key, unsigned c) { return tile + key * S::kCols + c; });
  }

  // Logits become P, in shared memory; maximum, sum and O move on.
  __device__ void Softmax(std::int64_t base, float factor, float (&s)[S::kRowsPerWarp][kKeysPerLane]) {
#pragma unroll
    for (unsigned r = 0; r < S::kRowsPerWarp; ++r) {
#pragma unroll
      for (unsigned c = 0; c < kKeysPerLane; ++c) s[r][c] *= factor;
    }
    const bool adjust =
        p_.args.mask != nullptr || p_.args.bias != nullptr || p_.tables.alibi_slopes != nullptr || p_.softcap > 0;
    if (adjust) Adjust(base, s);
#pragma unroll
    for (unsigned r = 0; r < S::kRowsPerWarp; ++r) {
      const int2 window = shared_.window[row_ + r];
      float most = -KERND_INFINITY;
#pragma unroll
      for (unsigned c = 0; c < kKeysPerLane; ++c) {
        const int key = static_cast<int>(lane_ * kKeysPerLane + c);
        if (key < window.x || key >= window.y) s[r][c] = -KERND_INFINITY;
        most = fmaxf(most, s[r][c]);  // leaves NaN to the sum
      }
#pragma unroll
      for (unsigned step = kWarp / 2; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
      most = fmaxf(most, largest_[r]);
      const float pivot = most == -KERND_INFINITY ? 0.0f : most;
      const float shrink = ExpOfNegative(largest_[r] - pivot);
      largest_[r] = most;
      const float4 p = make_float4(Probability(s[r][0], pivot), Probability(s[r][1], pivot),
                                   Probability(s[r][2], pivot), Probability(s[r][3], pivot));
      shared_.p[((row_ + r) * kKeys) / 4 + lane_] = p;
      sum_[r] = sum_[r] * shrink + ((p.x + p.y) + (p.z + p.w));
#pragma unroll
      for (unsigned c = 0; c < S::kColsPerLane; ++c) o_[r][c] *= shrink;
    }
    __syncwarp();
  }

  // The options, by way of shared memory, where a loop can find a row: unrolled, they would be the bulk of the code.
  // Each lane meets its own logits alone.
  __device__ void Adjust(std::int64_t base, float (&s)[S::kRowsPerWarp][kKeysPerLane]) {
    float4* const at = &shared_.p[row_ * kKeys / 4 + lane_];
#pragma unroll
    for (unsigned r = 0; r < S::kRowsPerWarp; ++r) at[r * kKeys / 4] = make_float4(s[r][0], s[r][1], s[r][2], s[r][3]);
#pragma unroll 1
    for (unsigned r = 0; r < S::kRowsPerWarp; ++r) {
      const int2 window = shared_.window[row_ + r];
      const AttentionRow& row = shared_.rows[row_ + r];
      const float center = static_cast<float>(row.position - base);
      float* const x = &at[r * kKeys / 4].x;
#pragma unroll 1
      for (unsigned c = 0; c < kKeysPerLane; ++c) {
        const int key = static_cast<int>(lane_ * kKeysPerLane + c);
        if (key < window.x || key >= window.y) continue;
        x[c] = Logit(p_, row, base + key, fabsf(center - static_cast<float>(key)), x[c]);
      }
    }
#pragma unroll
    for (unsigned r = 0; r < S::kRowsPerWarp; ++r) {
      const float4 x = at[r * kKeys / 4];
      s[r][0] = x.x, s[r][1] = x.y, s[r][2] = x.z, s[r][3] = x.w;
    }
  }

  // O += P V.
  __device__ void AddValues(std::int64_t base, unsigned keys, bool active) {
    if (p_.v_head_dim == 0) return;
    const std::int64_t at = At(p_.v, work_.b, work_.kv_head, s_.kv_start + base);
    for (unsigned k0 = 0; k0 < keys; k0 += kChunk) {
      const unsigned count = min(kChunk, keys - k0);
      __syncthreads();
      const bool finite = LoadValues(at + k0 * p_.v.row, count);
      const bool careful = __syncthreads_or(!finite) != 0;
      if (!active) continue;
      if (careful) {
        AddChunk<true>(k0, count);
      } else {
        AddChunk<false>(k0, count);
      }
    }
  }

  // kCareful: leaves out the keys that weigh nothing. Otherwise they add a zero: the same bits, but for the sign of a
  // zero, which Finish takes away.
  template <bool kCareful>
  __device__ void AddChunk(unsigned k0, unsigned count) {
    const float* const values = &shared_.tile[0].x + lane_ * S::kColsPerLane;
    const float4* const weights = shared_.p + row_ * (kKeys / 4) + k0 / 4;
    const unsigned fours = (count + 3) / 4;
#pragma unroll(kCareful ? 1 : 2)
    for (unsigned four = 0; four < fours; ++four) {
      float v[4][S::kColsPerLane];
#pragma unroll
      for (unsigned i = 0; i < 4; ++i) LoadColumns(values + (4 * four + i) * S::kCols, v[i]);
#pragma unroll
      for (unsigned r = 0; r < S::kRowsPerWarp; ++r) {
        const float4 all = weights[r * (kKeys / 4) + four];
        const float p[4] = {all.x, all.y, all.z, all.w};
#pragma unroll
        for (unsigned i = 0; i < 4; ++i) {
          if (kCareful && IsHidden(p[i])) continue;
#pragma unroll
          for (unsigned c = 0; c < S::kColsPerLane; ++c) o_[r][c] = fmaf(p[i], v[i][c], o_[r][c]);
        }
      }
    }
  }

  __device__ static void LoadColumns(const float* from, float (&x)[S::kColsPerLane]) {
    if constexpr (S::kColsPerLane == 4) {
      const float4 v = *reinterpret_cast<const float4*>(from);
      x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
    } else {
      const float2 v = *reinterpret_cast<const float2*>(from);
      x[0] = v.x, x[1] = v.y;
    }
  }

  // The rows go by way of shared memory, where a loop can find them; and lanes then write columns side by side.
  __device__ void Finish() {
    float* const o = &shared_.p[0].x + row_ * kKeys;
    __syncwarp();
#pragma unroll
    for (unsigned r = 0; r < S::kRowsPerWarp; ++r) {
      float sum = sum_[r];
#pragma unroll
      for (unsigned step = kWarp / 2; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
      if (lane_ == 0) shared_.state[row_ + r] = make_float2(largest_[r], sum);
#pragma unroll
      for (unsigned c = 0; c < S::kColsPerLane; ++c) o[r * kKeys + lane_ * S::kColsPerLane + c] = o_[r][c];
    }
    __syncwarp();
    const float value_factor = ValueFactor(p_, work_.b, work_.kv_head);
#pragma unroll 1
    for (unsigned r = 0; r < S::kRowsPerWarp; ++r) {
      const float2 state = shared_.state[row_ + r];
      if (work_.first_row + row_ + r >= work_.rows) break;
      if (plan_.split) {
        LeavePart(row_ + r, state, o + r * kKeys);
      } else {
        WriteRow(row_ + r, state, o + r * kKeys, value_factor);
      }
    }
  }

  __device__ void LeavePart(unsigned row, float2 state, const float* o) {
    const std::int64_t slot = plan_.group.Slot(work_.b, p_.kv_heads, work_.kv_head, work_.first_row + row, work_.split);
    if (lane_ == 0 && work_.first_col == 0) plan_.workspace.state[slot] = state;
    if (state.y == 0) return;
    float* const sums = plan_.workspace.sums + slot * p_.v_head_dim + work_.first_col;
#pragma unroll 1
    for (unsigned c = lane_; c < S::kCols && work_.first_col + c < p_.v_head_dim; c += kWarp) sums[c] = o[c];
  }

  __device__ void WriteRow(unsigned row, float2 state, const float* o, float value_factor) {
    const bool empty = state.y == 0;  // the largest logit alone makes it 1
    const std::int64_t head = Head(row), query = s_.q_start + Query(row);
    const float factor = empty ? 0.0f : OutputFactor(p_, head, state.x, state.y, value_factor);
    const std::int64_t at = At(p_.o, work_.b, head, query) + work_.first_col;
#pragma unroll 1
    for (unsigned c = lane_; c < S::kCols && work_.first_col + c < p_.v_head_dim; c += kWarp) {
      // + 0: the sign of a zero may tell which keys were skipped.
      StoreElement(p_.args.o, at + c, p_.o_type, empty ? 0.0f : o[c] * factor + 0.0f);
    }
    if (lane_ == 0 && work_.first_col == 0 && p_.args.lse != nullptr) {
      p_.args.lse[At(p_.lse, work_.b, head, query)] = empty ? -KERND_INFINITY : state.x + logf(state.y);
    }
  }

  const AttentionParams& p_;
  const Plan& plan_;
  typename S::Shared& shared_;
  const Work& work_;
  const AttentionSequence& s_;
  const unsigned thread_ = threadIdx.x, lane_ = thread_ % kWarp;
  const unsigned row_ = thread_ / kWarp * S::kRowsPerWarp;  // the warp's first
  float largest_[S::kRowsPerWarp], sum_[S::kRowsPerWarp];   // sum_: the lane's share
  float o_[S::kRowsPerWarp][S::kColsPerLane];
};

}  // namespace kernd::gpu::attention_simt
