// Blocked online softmax (Milakov and Gimelshein 2018; Dao et al. 2022) for one tile of rows; compiled once per
// instruction set.
//
//   for each block of 128 keys, from key 0 on:      K is packed transposed, V as it is, both as F32
//     for each kRows rows of the tile:              their logits, 128 x kRows floats, never leave the first-level cache
//       logits = factor * Q K^T; softcap, bias, slopes; invisible keys are selected to minus infinity
//       m, the row's maximum, moves; l and O shrink by exp(m_before - m); P = exp(logits - m); l += P; O += P V
//   O *= v_factor / l
//
// A row's bits depend on its own keys and the options alone: blocks start at multiples of 128 from key 0, every sum
// runs over keys in turn, and whatever a row does not see adds nothing (P is exactly 0, the factor exactly 1), so that
// skipping it, or computing it because another row of the block sees it, is the same.
#include "server/cpu/attention_tile.h"

#include "server/cpu/pack.h"
#include "server/cpu/simd.h"

namespace kernd::cpu::KERND_ISA {
namespace {

constexpr Index kBlock = 128;         // keys
constexpr Index kPanel = 2 * kWidth;  // keys, or channels of V, that a micro-kernel holds
constexpr float kInfinity = __builtin_inff();

constexpr Index RoundUp(Index n, Index to) {
  return (n + to - 1) / to * to;
}

// Keys [begin, end).
struct Range {
  Index begin, end;
};

// The scratch of a tile; each array starts on a cache line.
struct Scratch {
  float* q;       // [rows / kRows][head_dim][kRows]
  float* o;       // [rows][v_cols]
  float* k;       // [kBlock / kPanel][head_dim][kPanel]
  float* v;       // [v_cols / kPanel][kBlock][kPanel]
  float* logits;  // [kRows][kBlock]; P afterwards
  float* m;       // [rows] running maximum
  float* l;       // [rows][kWidth] running denominator, by lane
  Range* seen;    // [rows] keys that the window and the lengths leave
  Index bytes;

  Scratch(void* base, Index rows, Index head_dim, Index v_head_dim) {
    char* const start = static_cast<char*>(base);
    Index at = 0;
    const auto take = [&](auto*& array, Index count) {
      array = reinterpret_cast<__typeof__(+array)>(start + at);
      at += RoundUp(count * static_cast<Index>(sizeof *array), 64);
    };
    const Index padded = RoundUp(rows, kRows), v_cols = RoundUp(v_head_dim, kPanel);
    take(q, padded * head_dim);
    take(o, padded * v_cols);
    take(k, kBlock * head_dim);
    take(v, kBlock * v_cols);
    take(logits, kRows * kBlock);
    take(m, padded);
    take(l, padded * kWidth);
    take(seen, padded);
    bytes = at;
  }
};

Index ScratchBytes(Index rows, Index head_dim, Index v_head_dim) {
  return Scratch(nullptr, rows, head_dim, v_head_dim).bytes;
}

// out[r][0..kPanel) = factor * sum over i of a[i][r] * b[i][0..kPanel) for R rows. `a` has kRows a step, `out` kBlock a
// row.
template <int R>
void LogitPanel(const float* __restrict a, const float* __restrict b, Index n, float factor, float* __restrict out) {
  F32 acc[R][2] = {};
  for (Index i = 0; i < n; ++i, a += kRows, b += kPanel) {
    const F32 b0 = LoadVector<F32>(b), b1 = LoadVector<F32>(b + kWidth);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const F32 x = Splat(a[r]);
      acc[r][0] = Fma(x, b0, acc[r][0]);
      acc[r][1] = Fma(x, b1, acc[r][1]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    StoreVector(out + r * kBlock, acc[r][0] * factor);
    StoreVector(out + r * kBlock + kWidth, acc[r][1] * factor);
  }
}

// o[r][0..kPanel) = o[r] * shrink[r] + sum over keys j of p[r][j] * v[j][0..kPanel) for R rows.
template <int R>
void ValuePanel(const float* __restrict p, const float* __restrict v, Range keys, const float* shrink,
                float* __restrict o, Index o_stride) {
  F32 acc[R][2];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    acc[r][0] = LoadVector<F32>(o + r * o_stride) * shrink[r];
    acc[r][1] = LoadVector<F32>(o + r * o_stride + kWidth) * shrink[r];
  }
  for (Index j = keys.begin; j < keys.end; ++j) {
    const F32 v0 = LoadVector<F32>(v + j * kPanel), v1 = LoadVector<F32>(v + j * kPanel + kWidth);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const F32 x = Splat(p[r * kBlock + j]);
      acc[r][0] = Fma(x, v0, acc[r][0]);
      acc[r][1] = Fma(x, v1, acc[r][1]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    StoreVector(o + r * o_stride, acc[r][0]);
    StoreVector(o + r * o_stride + kWidth, acc[r][1]);
  }
}

// The micro-kernels for 1 to kRows rows: the smallest that has enough. Rows beyond those wanted are padding.
struct RowKernels {
  decltype(&LogitPanel<1>) logits;
  decltype(&ValuePanel<1>) values;
};
const RowKernels& RowKernelsFor(Index rows) {
  static constexpr RowKernels kOne = {LogitPanel<1>, ValuePanel<1>}, kTwo = {LogitPanel<2>, ValuePanel<2>},
                              kFour = {LogitPanel<4>, ValuePanel<4>}, kAll = {LogitPanel<kRows>, ValuePanel<kRows>};
  return rows == 1 ? kOne : rows == 2 ? kTwo : rows <= 4 ? kFour : kAll;
}

// One key/value head's rows and what is known of the block of keys at hand.
class Tile {
 public:
  Tile(const AttentionJob& job, const AttentionTile& tile, Index rows, const Scratch& scratch)
      : job_(job), tile_(tile), rows_(rows), s_(scratch), v_cols_(RoundUp(job.v_head_dim, kPanel)) {}

  void Run() {
    Range all = {tile_.kv_length, 0};
    Start(all);
    for (Index key = all.begin / kBlock * kBlock; key < all.end; key += kBlock) {
      if (job_.stop != nullptr && job_.stop->load(std::memory_order_relaxed)) return;
      PackBlock(key);
      for (Index r = 0; r < rows_; r += kRows) AddBlock(key, r);
    }
    for (Index r = 0; r < rows_; ++r) Finish(r);
  }

 private:
  Index Query(Index r) const { return (tile_.row_begin + r) / job_.group; }
  Index Head(Index r) const { return (tile_.row_begin + r) % job_.group; }

  static const char* At(const void* base, Index elements, DataType type) {
    return static_cast<const char*>(base) + elements * ElementBytes(type);
  }

  // Packs Q, empties the state, and finds the keys that rows may see: `all` becomes their union.
  void Start(Range& all) {
    for (Index r0 = 0; r0 < rows_; r0 += kRows) {
      const Index count = Min<Index>(kRows, rows_ - r0);
      PackRows<kRows>(
          job_.type, count, job_.head_dim,
          [&](Index r, Index d) {
            return At(tile_.q, Query(r0 + r) * job_.q_row + Head(r0 + r) * job_.q_head + d, job_.type);
          },
          s_.q + r0 * job_.head_dim);
    }
    const Index padded = RoundUp(rows_, kRows);
    __builtin_memset(s_.o, 0, static_cast<std::size_t>(padded * v_cols_) * 4);
    __builtin_memset(s_.l, 0, static_cast<std::size_t>(padded * kWidth) * 4);
    for (Index r = 0; r < padded; ++r) {
      s_.m[r] = -kInfinity;
      s_.seen[r] = {0, 0};
      if (r >= rows_) continue;
      const Index center = Query(r) + tile_.diagonal;
      s_.seen[r] = {Max<Index>(0, center - job_.window_left), Min(tile_.kv_length, center + job_.window_right + 1)};
      if (s_.seen[r].begin >= s_.seen[r].end) {
        s_.seen[r] = {0, 0};
        continue;
      }
      all = {Min(all.begin, s_.seen[r].begin), Max(all.end, s_.seen[r].end)};
    }
  }

  void PackBlock(Index key) {
    const Index keys = Min(kBlock, tile_.kv_length - key);
    for (Index j = 0; j < keys; j += kPanel) {
      PackRows<kPanel>(
          job_.type, Min(kPanel, keys - j), job_.head_dim,
          [&](Index r, Index d) { return At(tile_.k, (key + j + r) * job_.k_row + d, job_.type); },
          s_.k + j * job_.head_dim);
    }
    F32 bad = {};  // becomes NaN where a value is not finite: 0 * x is 0 or NaN
    for (Index j = 0; j < keys; ++j) {
      const char* row = At(tile_.v, (key + j) * job_.v_row, job_.type);
      for (Index c = 0; c < v_cols_; c += kPanel) {
        float* to = s_.v + c * kBlock + j * kPanel;
        const Index n = Min(kPanel, job_.v_head_dim - c);
        LoadRow(job_.type, row + c * ElementBytes(job_.type), n, to);
        for (Index i = n; i < kPanel; ++i) to[i] = 0;
        bad += 0.0f * LoadVector<F32>(to) + 0.0f * LoadVector<F32>(to + kWidth);
      }
    }
    v_finite_ = true;
    for (int i = 0; i < kWidth; ++i) v_finite_ = v_finite_ && bad[i] == 0;
  }

  // Rows [r0, r0 + kRows) take in the block of keys that starts at `key`.
  void AddBlock(Index key, Index r0) {
    const Index rows = Min<Index>(kRows, rows_ - r0);
    Range some = {kBlock, 0}, every = {0, kBlock};  // keys of the block that some row sees, and that every row sees
    for (Index r = r0; r < r0 + rows; ++r) {
      const Range seen = {Max<Index>(0, s_.seen[r].begin - key), Min(kBlock, s_.seen[r].end - key)};
      if (seen.begin < seen.end) some = {Min(some.begin, seen.begin), Max(some.end, seen.end)};
      every = {Max(every.begin, seen.begin), Min(every.end, seen.end)};
    }
    if (some.begin >= some.end) return;
    const Range span = {some.begin / kPanel * kPanel, RoundUp(some.end, kPanel)};  // whole panels
    const RowKernels& kernels = RowKernelsFor(rows);
    for (Index j = span.begin; j < span.end; j += kPanel) {
      kernels.logits(s_.q + r0 * job_.head_dim, s_.k + j * job_.head_dim, job_.head_dim, tile_.logit_factor,
                     s_.logits + j);
    }
    if (job_.softcap > 0 || tile_.bias || tile_.slopes) {
      for (Index r = 0; r < rows; ++r) Adjust(key, r0 + r, some, span, s_.logits + r * kBlock);
    }
    const bool select = tile_.mask != nullptr || every.begin > span.begin || every.end < span.end;
    if (select) {
      for (Index r = 0; r < rows; ++r) Select(key, r0 + r, some, span, s_.logits + r * kBlock);
    }
    float shrink[RoundUp(kRows, kWidth)] = {};
    Softmax(r0, rows, span, !v_finite_, shrink);
    if (!v_finite_) return AddValuesCarefully(r0, rows, some, shrink);
    for (Index c = 0; c < v_cols_; c += kPanel) {
      kernels.values(s_.logits, s_.v + c * kBlock, some, shrink, s_.o + r0 * v_cols_ + c, v_cols_);
    }
  }

  // Softcap, bias and slopes, in this order.
  void Adjust(Index key, Index r, Range some, Range span, float* logits) const {
    alignas(64) float bias[kBlock];
    if (tile_.bias) {
      for (Index j = span.begin; j < span.end; ++j) bias[j] = 0;
      const Index at = Head(r) * job_.bias_head + Query(r) * job_.bias_row + key + some.begin;
      LoadRow(job_.bias_type, At(tile_.bias, at, job_.bias_type), some.end - some.begin, bias + some.begin);
    }
    const float cap = job_.softcap, inverse = 1.0f / cap;
    const float center = static_cast<float>(Query(r) + tile_.diagonal - key);
    const float slope = tile_.slopes ? tile_.slopes[Head(r)] : 0;
    F32 lane;
    for (int i = 0; i < kWidth; ++i) lane[i] = static_cast<float>(i);
    for (Index j = span.begin; j < span.end; j += kWidth) {
      F32 x = LoadVector<F32>(logits + j);
      if (cap > 0) x = cap * Tanh(x * inverse);
      if (tile_.bias) {
        const F32 b = LoadVector<F32>(bias + j);
        x = b == -kInfinity ? b : x + b;  // hides a key that is NaN, too
      }
      if (tile_.slopes) {
        const F32 distance = center - (lane + static_cast<float>(j));
        x -= slope * (distance < 0.0f ? -distance : distance);
      }
      StoreVector(logits + j, x);
    }
  }

  // Minus infinity wherever row r may not look.
  void Select(Index key, Index r, Range some, Range span, float* logits) const {
    const Range seen = {Max<Index>(0, s_.seen[r].begin - key), Min(kBlock, s_.seen[r].end - key)};
    I32 lane;
    for (int i = 0; i < kWidth; ++i) lane[i] = i;
    for (Index j = span.begin; j < span.end; j += kWidth) {
      const I32 at = lane + static_cast<std::int32_t>(j);
      const I32 visible =
          (at >= static_cast<std::int32_t>(seen.begin)) & (at < static_cast<std::int32_t>(Max<Index>(0, seen.end)));
      StoreVector(logits + j, visible ? LoadVector<F32>(logits + j) : Splat(-kInfinity));
    }
    if (tile_.mask == nullptr) return;
    const char* mask = At(tile_.mask, Head(r) * job_.mask_head + Query(r) * job_.mask_row + key, DataType::kBool);
    for (Index j = some.begin; j < some.end; ++j) logits[j] = mask[j] != 0 ? logits[j] : -kInfinity;
  }

  // Logits become P; m and l move on; shrink[r] is what O must be multiplied with first. `mark`: P of a logit of minus
  // infinity becomes -0, which no other has.
  void Softmax(Index r0, Index rows, Range span, bool mark, float* shrink) const {
    float m[RoundUp(kRows, kWidth)] = {};  // new maximum; 0 where nothing is visible yet
    for (Index r = 0; r < rows; ++r) {
      const float* x = s_.logits + r * kBlock;
      F32 most = LoadVector<F32>(x + span.begin);
      for (Index j = span.begin + kWidth; j < span.end; j += kWidth) most = VectorMax(most, LoadVector<F32>(x + j));
      const float before = s_.m[r0 + r], here = HorizontalMax(most);
      const float now = before > here ? before : here;
      s_.m[r0 + r] = now;
      m[r] = now == -kInfinity ? 0 : now;
      shrink[r] = before - m[r];
    }
    for (Index r = 0; r < RoundUp(rows, kWidth); r += kWidth) StoreVector(shrink + r, Exp(LoadVector<F32>(shrink + r)));
    for (Index r = 0; r < rows; ++r) {
      float* x = s_.logits + r * kBlock;
      F32 sum = {};
      for (Index j = span.begin; j < span.end; j += kWidth) {
        const F32 logit = LoadVector<F32>(x + j);
        F32 p = Exp(logit - m[r]);
        sum += p;
        if (mark) p = logit == -kInfinity ? Splat(-0.0f) : p;
        StoreVector(x + j, p);
      }
      float* l = s_.l + (r0 + r) * kWidth;
      StoreVector(l, LoadVector<F32>(l) * shrink[r] + sum);
    }
  }

  // O += P V in the same order, leaving out the keys that weigh nothing, whose values may be NaN. Rare, hence plain.
  void AddValuesCarefully(Index r0, Index rows, Range some, const float* shrink) const {
    for (Index r = 0; r < rows; ++r) {
      for (Index c = 0; c < v_cols_; c += kWidth) {
        float* o = s_.o + (r0 + r) * v_cols_ + c;
        const float* v = s_.v + c / kPanel * kPanel * kBlock + c % kPanel;
        F32 acc = LoadVector<F32>(o) * shrink[r];
        for (Index j = some.begin; j < some.end; ++j) {
          const float p = s_.logits[r * kBlock + j];
          if (ToBits(p) != 0x80000000) acc = Fma(Splat(p), LoadVector<F32>(v + j * kPanel), acc);
        }
        StoreVector(o, acc);
      }
    }
  }

  void Finish(Index r) const {
    double l = 0;
    for (int i = 0; i < kWidth; ++i) l += s_.l[r * kWidth + i];
    const double m = s_.m[r];
    const bool empty = l == 0;  // the largest logit alone makes it 1
    double factor = empty ? 0.0 : tile_.v_factor / l;
    if (tile_.sinks && !empty) {
      const double sink = tile_.sinks[Head(r)];
      const double most = sink > m ? sink : m, ours = __builtin_exp(m - most);
      factor = tile_.v_factor * ours / (l * ours + __builtin_exp(sink - most));
    }
    float* o = s_.o + r * v_cols_;
    const float f = static_cast<float>(factor);
    for (Index c = 0; c < v_cols_; c += kWidth) {
      // + 0: the sign of a zero may tell which keys were skipped.
      StoreVector(o + c, empty ? F32{} : LoadVector<F32>(o + c) * f + 0.0f);
    }
    StoreRow(job_.o_type, o, job_.v_head_dim, const_cast<char*>(OutputRow(r)));
    if (tile_.lse) Lse(r) = empty ? -kInfinity : static_cast<float>(m + __builtin_log(l));
  }

 public:
  const char* OutputRow(Index r) const {
    return At(tile_.o, Query(r) * job_.o_row + Head(r) * job_.o_head, job_.o_type);
  }
  float& Lse(Index r) const { return tile_.lse[Head(r) * job_.lse_head + Query(r)]; }

 private:
  const AttentionJob& job_;
  const AttentionTile& tile_;
  const Index rows_;  // that are computed
  const Scratch s_;
  const Index v_cols_;  // V's channels, whole panels
  bool v_finite_ = true;
};

void Run(const AttentionJob& job, const AttentionTile& tile, void* scratch) {
  const Index computed = Max<Index>(0, Min(tile.row_end, tile.q_length * job.group) - tile.row_begin);
  Tile rows(job, tile, computed, Scratch(scratch, computed, job.head_dim, job.v_head_dim));
  if (computed > 0) rows.Run();
  for (Index r = computed; r < tile.row_end - tile.row_begin; ++r) {
    __builtin_memset(const_cast<char*>(rows.OutputRow(r)), 0,
                     static_cast<std::size_t>(job.v_head_dim * ElementBytes(job.o_type)));
    if (tile.lse) rows.Lse(r) = -kInfinity;
  }
}

}  // namespace

extern const AttentionKernel kAttentionKernel = {kRows, ScratchBytes, Run};

}  // namespace kernd::cpu::KERND_ISA
