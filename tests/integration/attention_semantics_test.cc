// What attention means, through the client library and a real daemon: every option of kernd/kernels/attention.h in
// every layout and dtype, against the fp64 reference. Sizes, types and magnitudes: attention_values_test.cc. What a row
// may depend on: attention_contract_test.cc.
#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <ostream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/reference/convert.h"
#include "kernels/reference/tolerance.h"
#include "tests/support/problem_call.h"

namespace kernd::testing {
namespace {

const auto* const kDaemon = ::testing::AddGlobalTestEnvironment(new SharedDaemon);

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr DataType kTypes[] = {DataType::kF32, DataType::kF16, DataType::kBF16, DataType::kF8E4M3, DataType::kF8E5M2};
constexpr AttentionLayout kLayouts[] = {AttentionLayout::kBHLD, AttentionLayout::kBLHD, AttentionLayout::kPacked};

struct Shape {
  std::int64_t batch, heads, q_rows, kv_rows;
};

Shape ShapeOf(const AttentionCase& c) {
  const Dims &q = c.p.q.shape, &k = c.p.k.shape;
  if (c.p.layout == AttentionLayout::kPacked) return {static_cast<std::int64_t>(c.p.q_offsets.size()) - 1, q[1], 0, 0};
  return c.p.layout == AttentionLayout::kBHLD ? Shape{q[0], q[1], q[2], k[2]} : Shape{q[0], q[2], q[1], k[1]};
}

// Bit t of `broadcast`: dimension t (batch, heads, rows) is 1.
Dims Broadcast(const AttentionCase& c, int broadcast) {
  const Shape n = ShapeOf(c);
  return {broadcast & 1 ? 1 : n.batch, broadcast & 2 ? 1 : n.heads, broadcast & 4 ? 1 : n.q_rows, n.kv_rows};
}

// Half of the keys; every third row of the first head of the mask sees none.
void SetMask(AttentionCase& c, Random& random, int broadcast) {
  c.p.mask = TensorSpec{.dtype = DataType::kBool, .shape = Broadcast(c, broadcast)};
  c.mask = Operand(*c.p.mask, 0);
  c.mask.Fill([&](const Dims& at) { return at[1] == 0 && at[2] % 3 == 2 ? 0.0 : static_cast<double>(random() % 2); });
}

void SetBias(AttentionCase& c, Random& random, int broadcast, DataType type, bool with_infinity = false) {
  c.p.bias.emplace();
  SetNormal(*c.p.bias, c.bias, type, Broadcast(c, broadcast), random, 2);
  if (!with_infinity) return;
  std::normal_distribution<double> normal;
  c.bias.Fill([&](const Dims& at) { return random() % 4 == 0 || at[2] % 5 == 1 ? -kInfinity : normal(random); });
}

// One way to fill in a plain problem.
struct Option {
  std::string name;
  std::function<void(AttentionCase&, Random&)> set;
  enum { kAll, kNotPacked } layouts = kAll;
  friend void PrintTo(const Option& option, std::ostream* os) { *os << option.name; }
};

constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
constexpr MaskAlignment kTopLeft = MaskAlignment::kTopLeft, kBottomRight = MaskAlignment::kBottomRight;
const Option kOptions[] = {
    {"plain", [](auto&, auto&) {}},
    {"scale", [](auto& c, auto&) { c.p.scale = 0.37; }},
    {"scale_zero", [](auto& c, auto&) { c.p.scale = 0; }},
    {"scale_negative", [](auto& c, auto&) { c.p.scale = -0.25; }},
    {"softcap", [](auto& c, auto&) { c.p.softcap = 1.5; }},
    {"softcap_and_scale",
     [](auto& c, auto&) {
       c.p.softcap = 15;
       c.p.scale = 3;
     }},
    {"causal_top_left", [](auto& c, auto&) { SetWindow(c, kTopLeft, true, {}, {}); }},
    {"causal_bottom_right", [](auto& c, auto&) { SetWindow(c, kBottomRight, true, {}, {}); }},
    {"causal_window_top_left", [](auto& c, auto&) { SetWindow(c, kTopLeft, true, 7, {}); }},
    {"causal_window_bottom_right", [](auto& c, auto&) { SetWindow(c, kBottomRight, true, 7, {}); }},
    {"causal_window_right_zero", [](auto& c, auto&) { SetWindow(c, kBottomRight, true, {}, 0); }},
    {"window_left", [](auto& c, auto&) { SetWindow(c, kTopLeft, false, 5, {}); }},
    {"window_right", [](auto& c, auto&) { SetWindow(c, kBottomRight, false, {}, 3); }},
    {"window_both_top_left", [](auto& c, auto&) { SetWindow(c, kTopLeft, false, 4, 9); }},
    {"window_both_bottom_right", [](auto& c, auto&) { SetWindow(c, kBottomRight, false, 4, 9); }},
    {"window_zero", [](auto& c, auto&) { SetWindow(c, kBottomRight, false, 0, 0); }},
    {"window_beyond", [](auto& c, auto&) { SetWindow(c, kTopLeft, false, 1000, 1000); }},
    {"window_huge", [](auto& c, auto&) { SetWindow(c, kBottomRight, false, kHuge, kHuge); }},
    {"slopes_top_left",
     [](auto& c, auto& random) {
       c.p.alignment = kTopLeft;
       c.p.alibi_slopes = Draw(random, ShapeOf(c).heads, 0, 0.5);
     }},
    {"slopes_bottom_right_of_both_signs",
     [](auto& c, auto& random) {
       c.p.alignment = kBottomRight;
       c.p.alibi_slopes = Draw(random, ShapeOf(c).heads, -0.1, 0.3);
     }},
    {"sinks", [](auto& c, auto& random) { c.p.sinks = Draw(random, ShapeOf(c).heads, -4, 4); }},
    {"sinks_large_and_none",
     [](auto& c, auto&) {
       c.p.sinks.assign(static_cast<std::size_t>(ShapeOf(c).heads), 200.0f);
       c.p.sinks[0] = kMinusInfinity;
     }},
    {"sinks_and_empty_rows",
     [](auto& c, auto& random) {
       SetWindow(c, kBottomRight, true, 2, {});
       c.p.sinks = Draw(random, ShapeOf(c).heads, -4, 4);
     }},
    {"mask_rows_all_false", [](auto& c, auto& random) { SetMask(c, random, 0); }, Option::kNotPacked},
    {"bias_f32", [](auto& c, auto& random) { SetBias(c, random, 0, DataType::kF32); }, Option::kNotPacked},
    {"bias_of_operand_type", [](auto& c, auto& random) { SetBias(c, random, 0, c.p.q.dtype); }, Option::kNotPacked},
    {"bias_minus_infinity", [](auto& c, auto& random) { SetBias(c, random, 0, DataType::kF32, true); },
     Option::kNotPacked},
    {"lengths",
     [](auto& c, auto&) {
       c.p.q_lengths = {c.p.q.shape[c.p.layout == AttentionLayout::kBHLD ? 2 : 1], 5};
       c.p.kv_lengths = {17, ShapeOf(c).kv_rows};
     },
     Option::kNotPacked},
    {"lengths_zero",
     [](auto& c, auto&) {
       c.p.q_lengths = {0, 5};
       c.p.kv_lengths = {9, 0};
     },
     Option::kNotPacked},
    {"lengths_causal_bottom_right",
     [](auto& c, auto&) {
       SetWindow(c, kBottomRight, true, 20, {});
       c.p.q_lengths = {20, 31};
       c.p.kv_lengths = {50, 11};
     },
     Option::kNotPacked},
    {"lengths_slopes_bottom_right",
     [](auto& c, auto& random) {
       c.p.alignment = kBottomRight;
       c.p.alibi_slopes = Draw(random, ShapeOf(c).heads, 0, 0.5);
       c.p.kv_lengths = {50, 11};
     },
     Option::kNotPacked},
    {"everything",
     [](auto& c, auto& random) {
       SetWindow(c, kBottomRight, true, 19, {});
       c.p.scale = 0.2;
       c.p.softcap = 4;
       c.p.alibi_slopes = Draw(random, ShapeOf(c).heads, 0, 0.5);
       c.p.sinks = Draw(random, ShapeOf(c).heads, -2, 2);
       if (c.p.layout == AttentionLayout::kPacked) return;
       SetMask(c, random, 4);
       SetBias(c, random, 1, DataType::kF32, true);
       c.p.q_lengths = {30, 33};
       c.p.kv_lengths = {41, 64};
     }},
};

class AttentionOption : public ::testing::TestWithParam<Option> {};
INSTANTIATE_TEST_SUITE_P(All, AttentionOption, ::testing::ValuesIn(kOptions),
                         [](const auto& test) { return test.param.name; });

// More keys than queries, fewer, and as many; one head to a key/value head, two, and all.
TEST_P(AttentionOption, MeetsTheReferenceInEveryLayoutAndType) {
  std::uint64_t seed = 100;
  for (const AttentionLayout layout : kLayouts) {
    if (layout == AttentionLayout::kPacked && GetParam().layouts == Option::kNotPacked) continue;
    for (const DataType type : kTypes) {
      for (const std::int64_t kv_rows : {65, 33, 23}) {
        for (const std::int64_t kv_heads : {4, 2, 1}) {
          AttentionCase c =
              MakeAttention({.kv_heads = kv_heads, .kv_rows = kv_rows, .d = 24, .dv = 16}, ++seed, type, layout);
          Random random(seed);
          GetParam().set(c, random);
          for (std::int64_t& length : c.p.kv_lengths) length = std::min(length, kv_rows);
          SCOPED_TRACE("seed " + std::to_string(seed) + " " + c.ToString());
          AskAndCheck(c);
          if (HasFailure()) return;
        }
      }
    }
  }
}

TEST(AttentionBroadcast, EveryMaskAndBias) {
  for (const AttentionLayout layout : {AttentionLayout::kBHLD, AttentionLayout::kBLHD}) {
    for (int broadcast = 0; broadcast < 8; ++broadcast) {
      for (const DataType type : kTypes) {
        for (int kind = 0; kind < 3; ++kind) {
          const auto seed = static_cast<std::uint64_t>(broadcast * 3 + kind);
          AttentionCase c = MakeAttention({3, 4, 2, 13, 29, 8, 8}, seed, type, layout);
          Random random(seed);
          if (kind == 0) SetMask(c, random, broadcast);
          if (kind == 1) SetBias(c, random, broadcast, DataType::kF32);
          if (kind == 2) SetBias(c, random, broadcast, type);
          SCOPED_TRACE("seed " + std::to_string(seed) + " " + c.ToString());
          AskAndCheck(c);
          if (HasFailure()) return;
        }
      }
    }
  }
}

// Any byte but zero is true.
TEST(AttentionBroadcast, MaskBytesOtherThanOne) {
  AttentionCase c = MakeAttention({});
  Random random(9);
  SetMask(c, random, 0);
  const AttentionBits ones = AskAndCheck(c);
  auto* bytes = static_cast<unsigned char*>(c.mask.data());
  for (std::int64_t i = 0; i < c.p.mask->bytes(); ++i) bytes[i] = bytes[i] ? static_cast<unsigned char>(i | 0x80) : 0;
  EXPECT_TRUE(ones == Ask(c));
}

TEST(AttentionPresence, AbsentScaleIsOneOverTheRootOfD) {
  AttentionCase c = MakeAttention({.d = 16});
  const AttentionBits absent = AskAndCheck(c);
  c.p.scale = 0.25;
  EXPECT_TRUE(absent == Ask(c));
  c.p.scale = 0;
  EXPECT_FALSE(absent == Ask(c));
}

TEST(AttentionRefusals, NameTheField) {
  const auto expect = [](const AttentionCase& c, absl::StatusCode code, const std::string& field) {
    const auto reply = SharedDaemon::client().Attention(c.ClientArgs());
    EXPECT_EQ(reply.status().code(), code) << reply.status();
    EXPECT_EQ(client::DetailsOf(reply.status()).field, field) << reply.status();
  };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument, kUnsupported = absl::StatusCode::kUnimplemented;
  const AttentionCase plain = MakeAttention({}), packed = MakeAttention({}, 1, DataType::kF32, kLayouts[2]);
  AttentionCase c = plain;
  c.p.causal = true;
  expect(c, kInvalid, "attention.alignment");
  c = plain;
  c.p.scale = kInfinity;
  expect(c, kInvalid, "attention.scale");
  c = plain;
  c.p.softcap = 0;
  expect(c, kInvalid, "attention.softcap");
  c = plain;
  c.p.window_left = -1;
  expect(c, kInvalid, "attention.window_left");
  c = plain;
  c.p.kv_lengths = {66, 1};
  expect(c, kInvalid, "attention.kv_lengths[0]");
  c = plain;
  c.p.k_scale = {1};
  expect(c, kInvalid, "attention.k_scale");
  c = plain;
  c.p.output_dtype = DataType::kF16;
  expect(c, kUnsupported, "attention.output_dtype");
  c = packed;
  c.p.kv_offsets.back() -= 1;
  expect(c, kInvalid, "attention.kv_offsets[2]");
  c = packed;
  c.p.mask = TensorSpec{.dtype = DataType::kBool, .shape = {1, 1, 1, 130}};
  c.mask = Operand(*c.p.mask, 0);
  expect(c, kUnsupported, "attention.mask");
}

}  // namespace
}  // namespace kernd::testing