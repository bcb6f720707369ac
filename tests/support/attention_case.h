// Attention problems with operands in host memory, for the kernels of every device, and what their results are held
// against: the fp64 reference.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernd/kernels/args.h"
#include "kernd/kernels/attention.h"
#include "kernels/reference/attention.h"
#include "kernels/reference/tolerance.h"
#include "tests/support/operand.h"

namespace kernd::testing::attention {

// A problem with its operands.
struct Case {
  AttentionProblem p;
  Operand q, k, v, mask, bias;

  AttentionArgs Args() const {
    return {.q = q.data(),
            .k = k.data(),
            .v = v.data(),
            .mask = p.mask ? mask.data() : nullptr,
            .bias = p.bias ? bias.data() : nullptr};
  }
};

inline void ExpectMatches(const Case& c, const std::vector<std::byte>& o_bytes, const std::vector<std::byte>& lse_bytes,
                          const reference::AttentionResult& expected) {
  const DataType type = c.p.output_dtype == DataType::kInvalid ? DefaultAttentionOutput(c.p.q.dtype) : c.p.output_dtype;
  const auto o = reference::Compare(type, o_bytes.data(), expected.o.value, reference::OutputBounds(c.p, expected));
  EXPECT_TRUE(o.ok()) << "O: " << o.ToString();
  if (!c.p.want_lse) return;
  const auto lse =
      reference::Compare(DataType::kF32, lse_bytes.data(), expected.lse.value, reference::LseBounds(c.p, expected));
  EXPECT_TRUE(lse.ok()) << "LSE: " << lse.ToString();
}

// Sizes of a plain problem.
struct Sizes {
  std::int64_t batch = 1, q_heads = 1, kv_heads = 1, q_rows = 1, kv_rows = 1, d = 16, dv = 16;
};

// `gap`: what strides and places are multiples of, in elements, where there are gaps.
inline void SetTensors(Case& c, DataType type, AttentionLayout layout, const Sizes& n, Random& random, bool gaps,
                       std::int64_t gap = 1) {
  const auto shape = [&](std::int64_t heads, std::int64_t rows, std::int64_t channels) {
    if (layout == AttentionLayout::kPacked) return Dims{rows, heads, channels};
    return layout == AttentionLayout::kBHLD ? Dims{n.batch, heads, rows, channels}
                                            : Dims{n.batch, rows, heads, channels};
  };
  const auto make = [&](TensorSpec& spec, Operand& operand, Dims dims) {
    spec = SpecOf(type, std::move(dims), gaps ? &random : nullptr, gap);
    operand = Operand(spec, gaps ? ElementBytes(type) * gap * Pick(random, 0, 3) : 0);
    operand.FillNormal(random);
  };
  c.p.layout = layout;
  make(c.p.q, c.q, shape(n.q_heads, n.q_rows, n.d));
  make(c.p.k, c.k, shape(n.kv_heads, n.kv_rows, n.d));
  make(c.p.v, c.v, shape(n.kv_heads, n.kv_rows, n.dv));
  c.p.want_lse = true;
}

inline Case PlainCase(const Sizes& n, std::uint64_t seed = 1, DataType type = DataType::kF32) {
  Random random(seed);
  Case c;
  SetTensors(c, type, AttentionLayout::kBHLD, n, random, false);
  return c;
}

inline std::string Describe(const Case& c) {
  return std::string(Name(c.p.layout)) + " q " + c.p.q.ToString() + " k " + c.p.k.ToString() + " v " + c.p.v.ToString();
}

// What RandomCase draws from.
struct Choices {
  std::vector<DataType> types = {DataType::kF32, DataType::kF32,    DataType::kBF16,
                                 DataType::kF16, DataType::kF8E4M3, DataType::kF8E5M2};
  std::vector<std::int64_t> channels = {1, 3, 8, 15, 16, 17, 32, 40, 64, 65, 80, 96, 128};
  std::int64_t gap = 1;  // as in SetTensors
};

// What tensor-core kernels take.
inline Choices TensorCoreChoices() {
  return {.types = {DataType::kF16, DataType::kBF16},
          .channels = {8, 16, 24, 32, 40, 64, 72, 80, 96, 112, 128, 136, 192, 200, 256},
          .gap = 8};
}

// Anything that the problem allows, small. long_keys: few queries and up to thousands of keys.
inline Case RandomCase(std::uint64_t seed, bool long_keys = false, const Choices& choices = {}) {
  Random random(seed);
  const auto maybe = [&](int percent) { return Pick(random, 1, 100) <= percent; };
  const std::int64_t lengths[] = {0, 1, 2, 7, 16, 17, 31, 33, 64, 100, 127, 128, 129, 200, 260};
  const auto any_of = [&](const auto& list) { return list[Pick(random, 0, static_cast<int>(list.size()) - 1)]; };
  const DataType type = any_of(choices.types);
  const AttentionLayout layout = static_cast<AttentionLayout>(Pick(random, 0, 2));
  const bool packed = layout == AttentionLayout::kPacked;
  Sizes n{.batch = Pick(random, 1, 3),
          .kv_heads = Pick(random, 1, 3),
          .q_rows = lengths[Pick(random, 0, long_keys ? 6 : 14)],
          .kv_rows = long_keys ? Pick(random, 200, 4000) : lengths[Pick(random, 0, 14)],
          .d = any_of(choices.channels),
          .dv = any_of(choices.channels)};
  n.q_heads = n.kv_heads * Pick(random, 1, 4);
  Case c;
  AttentionProblem& p = c.p;
  SetTensors(c, type, layout, n, random, maybe(50), choices.gap);
  const auto draw = [&](std::size_t count, double low, double high) {
    std::vector<float> values(count);
    for (float& x : values) x = static_cast<float>(std::uniform_real_distribution<double>(low, high)(random));
    return values;
  };
  if (packed) {
    const auto offsets = [&](std::int64_t total) {
      std::vector<std::int64_t> cuts = {0};
      for (std::int64_t i = 1; i < n.batch; ++i) cuts.push_back(Pick(random, cuts.back(), total));
      cuts.push_back(total);
      return cuts;
    };
    p.q_offsets = offsets(n.q_rows);
    p.kv_offsets = offsets(n.kv_rows);
  } else {
    if (maybe(30)) {
      for (std::int64_t b = 0; b < n.batch; ++b) p.q_lengths.push_back(Pick(random, 0, n.q_rows));
    }
    if (maybe(30)) {
      for (std::int64_t b = 0; b < n.batch; ++b) p.kv_lengths.push_back(Pick(random, 0, n.kv_rows));
    }
    const auto broadcast = [&](DataType dtype) {
      return SpecOf(dtype, {maybe(50) ? n.batch : 1, maybe(50) ? n.q_heads : 1, maybe(50) ? n.q_rows : 1, n.kv_rows},
                    maybe(50) ? &random : nullptr);
    };
    if (maybe(25)) {
      p.mask = broadcast(DataType::kBool);
      c.mask = Operand(*p.mask, Pick(random, 0, 3));
      const int visible = static_cast<int>(Pick(random, 0, 100));
      c.mask.Fill([&](const Dims&) { return maybe(visible) ? 1.0 : 0.0; });
    }
    if (maybe(25)) {
      p.bias = broadcast(maybe(50) ? DataType::kF32 : type);
      c.bias = Operand(*p.bias, 0);
      c.bias.Fill([&](const Dims&) {
        return maybe(10) && p.bias->dtype != DataType::kF8E4M3 ? -std::numeric_limits<double>::infinity()
                                                               : std::normal_distribution<double>()(random);
      });
    }
  }
  p.alignment = maybe(50) ? MaskAlignment::kTopLeft : MaskAlignment::kBottomRight;
  p.causal = maybe(35);
  if (maybe(25)) p.window_left = maybe(10) ? std::numeric_limits<std::int64_t>::max() : Pick(random, 0, 150);
  if (maybe(25) && !p.causal)
    p.window_right = maybe(10) ? std::numeric_limits<std::int64_t>::max() : Pick(random, 0, 150);
  if (maybe(25)) p.softcap = std::uniform_real_distribution<double>(0.5, 30)(random);
  if (maybe(25)) p.alibi_slopes = draw(static_cast<std::size_t>(n.q_heads), 0, 0.5);
  if (maybe(25)) {
    p.sinks = draw(static_cast<std::size_t>(n.q_heads), -5, 5);
    if (maybe(20)) p.sinks[0] = -std::numeric_limits<float>::infinity();
  }
  const double scales[] = {0, -0.25, 1, 0.1};
  if (maybe(30)) p.scale = scales[Pick(random, 0, 3)];
  if (IsFloat8(type)) {
    const std::size_t counts[] = {0, 1, static_cast<std::size_t>(n.kv_heads),
                                  static_cast<std::size_t>(n.batch * n.kv_heads)};
    p.q_scale = draw(counts[Pick(random, 0, 3)], 0.5, 2);
    p.k_scale = draw(counts[Pick(random, 0, 3)], 0.5, 2);
    p.v_scale = draw(counts[Pick(random, 0, 3)], 0.5, 2);
    const DataType outputs[] = {DataType::kInvalid, DataType::kF16, DataType::kBF16, DataType::kF32};
    p.output_dtype = outputs[Pick(random, 0, 3)];
  } else if (maybe(30)) {
    p.output_dtype = DataType::kF32;
  }
  p.want_lse = maybe(70);
  return c;
}
}  // namespace kernd::testing::attention
