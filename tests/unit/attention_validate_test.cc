// Every rule of kernd/kernels/attention.h: what is refused, with which code and naming which field, and
// what is said of what is accepted.
#include <cmath>
#include <cstdint>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernd/kernels/attention.h"
#include "tests/support/refusal.h"

namespace kernd {
namespace {

using ::kernd::testing::ExpectRefused;
using ::kernd::testing::kCaseName;
using ::kernd::testing::kInvalid;
using ::kernd::testing::kUnsupported;
using ::kernd::testing::Refusal;
using ::testing::ElementsAre;

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TensorSpec F32(Dims shape) {
  return {.dtype = DataType::kF32, .shape = std::move(shape)};
}

AttentionProblem GoodAttention() {
  return {.q = F32({2, 4, 5, 8}), .k = F32({2, 2, 7, 8}), .v = F32({2, 2, 7, 6}), .want_lse = true};
}

AttentionProblem GoodPacked() {
  return {.layout = AttentionLayout::kPacked,
          .q = F32({9, 4, 8}),
          .k = F32({11, 2, 8}),
          .v = F32({11, 2, 6}),
          .q_offsets = {0, 3, 3, 9},
          .kv_offsets = {0, 4, 11, 11},
          .want_lse = true};
}

AttentionProblem GoodFloat8() {
  AttentionProblem p = GoodAttention();
  p.q.dtype = p.k.dtype = p.v.dtype = DataType::kF8E4M3;
  return p;
}

using A = AttentionProblem;

class AttentionRefusal : public ::testing::TestWithParam<Refusal<A>> {};
class PackedRefusal : public ::testing::TestWithParam<Refusal<A>> {};
class Float8Refusal : public ::testing::TestWithParam<Refusal<A>> {};

void ExpectAttentionRefused(AttentionProblem problem, const Refusal<A>& refusal) {
  ASSERT_TRUE(Validate(problem).ok()) << Validate(problem).status();
  refusal.breaks(problem);
  ExpectRefused(Validate(problem).status(), refusal.code, refusal.field);
}

TEST_P(AttentionRefusal, NamesTheField) {
  ExpectAttentionRefused(GoodAttention(), GetParam());
}
TEST_P(PackedRefusal, NamesTheField) {
  ExpectAttentionRefused(GoodPacked(), GetParam());
}
TEST_P(Float8Refusal, NamesTheField) {
  ExpectAttentionRefused(GoodFloat8(), GetParam());
}

INSTANTIATE_TEST_SUITE_P(
    Rules, AttentionRefusal,
    ::testing::ValuesIn(std::vector<Refusal<A>>{
        {"q_unset", kInvalid, "attention.q.dtype", [](A& p) { p.q = {}; }},
        {"k_strides", kInvalid, "attention.k.strides",
         [](A& p) {
           p.k.strides = {112, 56, 8, 2};
         }},
        {"v_negative", kInvalid, "attention.v.shape", [](A& p) { p.v.shape[0] = -2; }},
        {"q_rank", kInvalid, "attention.q.shape",
         [](A& p) {
           p.q.shape = {4, 5, 8};
         }},
        {"k_rank", kInvalid, "attention.k.shape",
         [](A& p) {
           p.k.shape = {2, 7, 8};
         }},
        {"v_rank", kInvalid, "attention.v.shape",
         [](A& p) {
           p.v.shape = {2, 2, 7, 6, 1};
         }},
        {"f64", kUnsupported, "attention.q.dtype", [](A& p) { p.q.dtype = p.k.dtype = p.v.dtype = DataType::kF64; }},
        {"k_dtype", kInvalid, "attention.k.dtype", [](A& p) { p.k.dtype = DataType::kF16; }},
        {"v_dtype", kInvalid, "attention.v.dtype", [](A& p) { p.v.dtype = DataType::kBF16; }},
        {"output_dtype", kUnsupported, "attention.output_dtype", [](A& p) { p.output_dtype = DataType::kF16; }},
        {"head_dim", kInvalid, "attention.k.shape", [](A& p) { p.k.shape[3] = 6; }},
        {"k_batch", kInvalid, "attention.k.shape", [](A& p) { p.k.shape[0] = 1; }},
        {"v_batch", kInvalid, "attention.v.shape", [](A& p) { p.v.shape[0] = 1; }},
        {"v_heads", kInvalid, "attention.v.shape", [](A& p) { p.v.shape[1] = 4; }},
        {"v_length", kInvalid, "attention.v.shape", [](A& p) { p.v.shape[2] = 5; }},
        {"heads_no_multiple", kInvalid, "attention.k.shape", [](A& p) { p.k.shape[1] = p.v.shape[1] = 3; }},
        {"no_kv_heads", kInvalid, "attention.k.shape", [](A& p) { p.k.shape[1] = p.v.shape[1] = 0; }},
        {"head_dim_zero_without_scale", kInvalid, "attention.q.shape", [](A& p) { p.q.shape[3] = p.k.shape[3] = 0; }},
        {"result_too_large", kInvalid, "attention.o.shape",
         [](A& p) {
           p.q.shape[2] = std::int64_t{1} << 50, p.q.shape[3] = p.k.shape[3] = 0, p.scale = 1.0;
           p.k.shape[2] = p.v.shape[2] = 0, p.v.shape[3] = std::int64_t{1} << 20;
         }},
        {"lse_too_large", kInvalid, "attention.lse.shape",
         [](A& p) {
           p.q.shape[2] = std::int64_t{1} << 60, p.q.shape[3] = p.k.shape[3] = p.v.shape[3] = 0, p.scale = 1.0;
         }},
        {"scale_nan", kInvalid, "attention.scale", [](A& p) { p.scale = kNan; }},
        {"scale_infinite", kInvalid, "attention.scale", [](A& p) { p.scale = kInfinity; }},
        {"softcap_zero", kInvalid, "attention.softcap", [](A& p) { p.softcap = 0; }},
        {"softcap_negative", kInvalid, "attention.softcap", [](A& p) { p.softcap = -1; }},
        {"softcap_nan", kInvalid, "attention.softcap", [](A& p) { p.softcap = kNan; }},
        {"softcap_infinite", kInvalid, "attention.softcap", [](A& p) { p.softcap = kInfinity; }},
        {"window_left_negative", kInvalid, "attention.window_left", [](A& p) { p.window_left = -1; }},
        {"window_right_negative", kInvalid, "attention.window_right", [](A& p) { p.window_right = -1; }},
        {"causal_window_right", kInvalid, "attention.window_right", [](A& p) { p.causal = true, p.window_right = 1; }},
        {"alignment_causal", kInvalid, "attention.alignment", [](A& p) { p.causal = true; }},
        {"alignment_window", kInvalid, "attention.alignment", [](A& p) { p.window_left = 3; }},
        {"alignment_slopes", kInvalid, "attention.alignment", [](A& p) { p.alibi_slopes = {1, 1, 1, 1}; }},
        {"alignment_lengths", kInvalid, "attention.alignment",
         [](A& p) { p.causal = true, p.q_lengths = {5, 5}, p.kv_lengths = {5, 4}; }},
        {"q_lengths_count", kInvalid, "attention.q_lengths", [](A& p) { p.q_lengths = {5}; }},
        {"q_lengths_negative", kInvalid, "attention.q_lengths[1]", [](A& p) { p.q_lengths = {5, -1}; }},
        {"q_lengths_beyond", kInvalid, "attention.q_lengths[0]", [](A& p) { p.q_lengths = {6, 5}; }},
        {"kv_lengths_count", kInvalid, "attention.kv_lengths", [](A& p) { p.kv_lengths = {7, 7, 7}; }},
        {"kv_lengths_beyond", kInvalid, "attention.kv_lengths[1]", [](A& p) { p.kv_lengths = {0, 8}; }},
        {"q_offsets", kInvalid, "attention.q_offsets", [](A& p) { p.q_offsets = {0, 5}; }},
        {"kv_offsets", kInvalid, "attention.kv_offsets", [](A& p) { p.kv_offsets = {0, 7}; }},
        {"too_many_sequences", kUnsupported, "attention.q.shape",
         [](A& p) { p.q.shape = p.k.shape = p.v.shape = {kMaxSequences + 1, 1, 0, 8}; }},
        {"too_many_scores", kUnsupported, "attention.k.shape",
         [](A& p) {
           p.q.shape = p.k.shape = p.v.shape = {2, 1, std::int64_t{1} << 27, 0};
           p.scale = 1;
         }},
        {"slopes_count", kInvalid, "attention.alibi_slopes",
         [](A& p) { p.alibi_slopes = {1, 1}, p.alignment = MaskAlignment::kTopLeft; }},
        {"slopes_infinite", kInvalid, "attention.alibi_slopes[2]",
         [](A& p) { p.alibi_slopes = {1, 1, -kInfinity, 1}, p.alignment = MaskAlignment::kTopLeft; }},
        {"sinks_count", kInvalid, "attention.sinks", [](A& p) { p.sinks = {1, 1}; }},
        {"sinks_infinite", kInvalid, "attention.sinks[0]", [](A& p) { p.sinks = {kInfinity, 1, 1, 1}; }},
        {"sinks_nan", kInvalid, "attention.sinks[3]", [](A& p) { p.sinks = {-kInfinity, 1, 1, kNan}; }},
        {"q_scale_of_f32", kInvalid, "attention.q_scale", [](A& p) { p.q_scale = {1}; }},
        {"mask_dtype", kInvalid, "attention.mask.dtype", [](A& p) { p.mask = F32({2, 4, 5, 7}); }},
        {"mask_strides", kInvalid, "attention.mask.strides",
         [](A& p) { p.mask = TensorSpec{.dtype = DataType::kBool, .shape = {1, 1, 5, 7}, .strides = {1}}; }},
        {"mask_rank", kInvalid, "attention.mask.shape",
         [](A& p) { p.mask = TensorSpec{.dtype = DataType::kBool, .shape = {5, 7}}; }},
        {"mask_keys", kInvalid, "attention.mask.shape",
         [](A& p) { p.mask = TensorSpec{.dtype = DataType::kBool, .shape = {2, 4, 5, 1}}; }},
        {"mask_heads", kInvalid, "attention.mask.shape",
         [](A& p) { p.mask = TensorSpec{.dtype = DataType::kBool, .shape = {2, 2, 5, 7}}; }},
        {"bias_dtype", kInvalid, "attention.bias.dtype",
         [](A& p) { p.bias = TensorSpec{.dtype = DataType::kF16, .shape = {2, 4, 5, 7}}; }},
        {"bias_rows", kInvalid, "attention.bias.shape", [](A& p) { p.bias = F32({2, 4, 4, 7}); }},
    }),
    kCaseName);

INSTANTIATE_TEST_SUITE_P(Rules, PackedRefusal,
                         ::testing::ValuesIn(std::vector<Refusal<A>>{
                             {"rank", kInvalid, "attention.q.shape",
                              [](A& p) {
                                p.q.shape = {1, 9, 4, 8};
                              }},
                             {"q_lengths", kInvalid, "attention.q_lengths",
                              [](A& p) {
                                p.q_lengths = {3, 0, 6};
                              }},
                             {"kv_lengths", kInvalid, "attention.kv_lengths",
                              [](A& p) {
                                p.kv_lengths = {4, 7, 0};
                              }},
                             {"q_offsets_absent", kInvalid, "attention.q_offsets", [](A& p) { p.q_offsets.clear(); }},
                             {"kv_offsets_absent", kInvalid, "attention.kv_offsets",
                              [](A& p) { p.kv_offsets.clear(); }},
                             {"offsets_start", kInvalid, "attention.q_offsets[0]", [](A& p) { p.q_offsets[0] = 1; }},
                             {"offsets_fall", kInvalid, "attention.q_offsets[2]", [](A& p) { p.q_offsets[2] = 2; }},
                             {"offsets_end", kInvalid, "attention.kv_offsets[3]", [](A& p) { p.kv_offsets[3] = 12; }},
                             {"offsets_counts", kInvalid, "attention.kv_offsets",
                              [](A& p) {
                                p.kv_offsets = {0, 11};
                              }},
                             {"alignment", kInvalid, "attention.alignment", [](A& p) { p.causal = true; }},
                             {"too_many_sequences", kUnsupported, "attention.q.shape",
                              [](A& p) {
                                p.q_offsets.insert(p.q_offsets.begin(), kMaxSequences, 0);
                                p.kv_offsets.insert(p.kv_offsets.begin(), kMaxSequences, 0);
                              }},
                             {"mask", kUnsupported, "attention.mask",
                              [](A& p) {
                                p.mask = TensorSpec{.dtype = DataType::kBool, .shape = {1, 1, 1, 11}};
                              }},
                             {"bias", kUnsupported, "attention.bias",
                              [](A& p) {
                                p.bias = F32({1, 1, 1, 11});
                              }},
                         }),
                         kCaseName);

INSTANTIATE_TEST_SUITE_P(Rules, Float8Refusal,
                         ::testing::ValuesIn(std::vector<Refusal<A>>{
                             {"output_f8", kUnsupported, "attention.output_dtype",
                              [](A& p) { p.output_dtype = DataType::kF8E4M3; }},
                             {"mixed_f8", kInvalid, "attention.v.dtype", [](A& p) { p.v.dtype = DataType::kF8E5M2; }},
                             {"q_scale_count", kInvalid, "attention.q_scale",
                              [](A& p) {
                                p.q_scale = {1, 1, 1};
                              }},
                             {"k_scale_nan", kInvalid, "attention.k_scale[1]",
                              [](A& p) {
                                p.k_scale = {1, kNan};
                              }},
                             {"v_scale_infinite", kInvalid, "attention.v_scale[3]",
                              [](A& p) {
                                p.v_scale = {1, 1, 1, kInfinity};
                              }},
                         }),
                         kCaseName);

TEST(AttentionValidate, LaysOutBhld) {
  AttentionProblem p = GoodAttention();
  p.k.strides = {400, 100, 10, 1};
  const absl::StatusOr<AttentionGeometry> g = Validate(p);
  ASSERT_TRUE(g.ok()) << g.status();
  EXPECT_EQ(g->batch, 2);
  EXPECT_EQ(g->q_heads, 4);
  EXPECT_EQ(g->kv_heads, 2);
  EXPECT_EQ(g->heads_per_kv, 2);
  EXPECT_EQ(g->head_dim, 8);
  EXPECT_EQ(g->v_head_dim, 6);
  EXPECT_DOUBLE_EQ(g->scale, 1 / std::sqrt(8.0));
  EXPECT_EQ(g->o_spec, F32({2, 4, 5, 6}));
  EXPECT_EQ(g->lse_spec, F32({2, 4, 5}));
  const auto strides = [](const HeadStrides& s) { return std::vector<std::int64_t>{s.batch, s.head, s.row}; };
  EXPECT_THAT(strides(g->q), ElementsAre(160, 40, 8));
  EXPECT_THAT(strides(g->k), ElementsAre(400, 100, 10));
  EXPECT_THAT(strides(g->v), ElementsAre(84, 42, 6));
  EXPECT_THAT(strides(g->o), ElementsAre(120, 30, 6));
  EXPECT_THAT(strides(g->lse), ElementsAre(20, 5, 1));
  EXPECT_EQ(g->max_q_rows, 5);
  EXPECT_EQ(g->max_kv_length, 7);
  EXPECT_FALSE(g->positional);
}

TEST(AttentionValidate, LaysOutBlhdAndPacked) {
  AttentionProblem p = GoodAttention();
  p.layout = AttentionLayout::kBLHD;
  p.q.shape = {2, 5, 4, 8}, p.k.shape = {2, 7, 2, 8}, p.v.shape = {2, 7, 2, 6};
  const absl::StatusOr<AttentionGeometry> g = Validate(p);
  ASSERT_TRUE(g.ok()) << g.status();
  EXPECT_EQ(g->o_spec, F32({2, 5, 4, 6}));
  EXPECT_EQ(g->lse_spec, F32({2, 4, 5}));
  EXPECT_EQ((std::vector<std::int64_t>{g->q.batch, g->q.head, g->q.row}), (std::vector<std::int64_t>{160, 8, 32}));

  const absl::StatusOr<AttentionGeometry> packed = Validate(GoodPacked());
  ASSERT_TRUE(packed.ok()) << packed.status();
  EXPECT_EQ(packed->batch, 3);
  EXPECT_EQ(packed->o_spec, F32({9, 4, 6}));
  EXPECT_EQ(packed->lse_spec, F32({4, 9}));
  EXPECT_EQ((std::vector<std::int64_t>{packed->q.batch, packed->q.head, packed->q.row}),
            (std::vector<std::int64_t>{0, 8, 32}));
  EXPECT_EQ(packed->sequences[2].q_start, 3);
  EXPECT_EQ(packed->sequences[2].q_rows, 6);
  EXPECT_EQ(packed->sequences[1].kv_start, 4);
  EXPECT_EQ(packed->sequences[1].kv_length, 7);
  EXPECT_EQ(packed->max_q_rows, 6);
}

TEST(AttentionValidate, PlacesTheDiagonalOfEachSequence) {
  AttentionProblem p = GoodAttention();
  p.causal = true;
  p.window_left = 2;
  p.q_lengths = {5, 4};
  p.kv_lengths = {3, 7};
  p.alignment = MaskAlignment::kBottomRight;
  const absl::StatusOr<AttentionGeometry> g = Validate(p);
  ASSERT_TRUE(g.ok()) << g.status();
  EXPECT_EQ(g->sequences[0].diagonal, -2);
  EXPECT_EQ(g->sequences[1].diagonal, 3);
  EXPECT_EQ(g->sequences[1].q_rows, 5);
  EXPECT_EQ(g->sequences[1].q_length, 4);
  EXPECT_TRUE(g->positional);
  EXPECT_EQ(g->window_left, 2);
  EXPECT_EQ(g->window_right, 0) << "causal";
  p.alignment = MaskAlignment::kTopLeft;
  EXPECT_EQ(Validate(p)->sequences[1].diagonal, 0);
  p.alignment = MaskAlignment::kUnset;
  p.q_lengths = p.kv_lengths = {5, 3};
  EXPECT_TRUE(Validate(p).ok()) << "equal lengths need no alignment";
}

TEST(AttentionValidate, BroadcastsMaskAndBias) {
  AttentionProblem p = GoodAttention();
  p.mask = TensorSpec{.dtype = DataType::kBool, .shape = {2, 1, 1, 7}};
  p.bias = TensorSpec{.dtype = DataType::kF32, .shape = {1, 4, 5, 7}, .strides = {0, 50, 10, 1}};
  const absl::StatusOr<AttentionGeometry> g = Validate(p);
  ASSERT_TRUE(g.ok()) << g.status();
  const auto strides = [](const BroadcastStrides& s) {
    return std::vector<std::int64_t>{s.batch, s.head, s.row, s.col};
  };
  EXPECT_THAT(strides(g->mask), ElementsAre(7, 0, 0, 1));
  EXPECT_THAT(strides(g->bias), ElementsAre(0, 50, 10, 1));
}

TEST(AttentionValidate, FindsOperandScales) {
  AttentionProblem p = GoodFloat8();
  p.q_scale = {2};
  p.k_scale = {3, 4};
  p.v_scale = {5, 6, 7, 8};
  const absl::StatusOr<AttentionGeometry> g = Validate(p);
  ASSERT_TRUE(g.ok()) << g.status();
  EXPECT_EQ(g->output_dtype, DataType::kBF16);
  EXPECT_EQ(g->OperandScale({}, 1, 1), 1);
  EXPECT_EQ(g->OperandScale(p.q_scale, 1, 1), 2);
  EXPECT_EQ(g->OperandScale(p.k_scale, 1, 0), 3);
  EXPECT_EQ(g->OperandScale(p.v_scale, 1, 0), 7);
}

TEST(AttentionValidate, TakesZeroSizesAndEdges) {
  for (const auto& [q, k, v] : {std::tuple{Dims{0, 4, 5, 8}, Dims{0, 2, 7, 8}, Dims{0, 2, 7, 6}},
                                {Dims{2, 0, 5, 8}, Dims{2, 0, 7, 8}, Dims{2, 0, 7, 6}},
                                {Dims{2, 0, 5, 8}, Dims{2, 3, 7, 8}, Dims{2, 3, 7, 6}},
                                {Dims{2, 4, 0, 8}, Dims{2, 2, 7, 8}, Dims{2, 2, 7, 6}},
                                {Dims{2, 4, 5, 8}, Dims{2, 2, 0, 8}, Dims{2, 2, 0, 6}},
                                {Dims{2, 4, 5, 8}, Dims{2, 2, 7, 8}, Dims{2, 2, 7, 0}}}) {
    const AttentionProblem p{.q = F32(q), .k = F32(k), .v = F32(v)};
    EXPECT_TRUE(Validate(p).ok()) << ToString(q) << Validate(p).status();
  }
  AttentionProblem p = GoodAttention();
  p.scale = 0;
  p.window_left = p.window_right = kMax;
  p.alignment = MaskAlignment::kBottomRight;
  p.sinks = {-kInfinity, 0, 0, 0};
  p.alibi_slopes = {0, -1, 1e30f, 0};
  p.output_dtype = DataType::kF32;
  EXPECT_TRUE(Validate(p).ok()) << Validate(p).status();
  p = GoodAttention();
  p.causal = true;
  p.window_right = 0;
  p.alignment = MaskAlignment::kTopLeft;
  EXPECT_TRUE(Validate(p).ok()) << "causal with the same right window";
  EXPECT_FALSE(
      Validate(AttentionProblem{.q = F32({1, 1, 1, 8}), .k = F32({1, 1, 1, 8}), .v = F32({1, 1, 1, 8})})->lse_spec);
}

TEST(AttentionValidate, NaiveBytesAddUpAndSaturate) {
  AttentionProblem p = GoodAttention();
  p.kv_lengths = {3, 7};
  absl::StatusOr<AttentionGeometry> g = Validate(p);
  ASSERT_TRUE(g.ok()) << g.status();
  const std::int64_t operands = 4 * (2 * 4 * 5 * 8 + 2 * 2 * 7 * 8 + 2 * 2 * 7 * 6);
  const std::int64_t results = 4 * (2 * 4 * 5 * 6 + 2 * 4 * 5);
  EXPECT_EQ(NaiveBytes(p, *g), operands + results + 4 * 4 * 5 * (3 + 7));

  const std::int64_t huge = std::int64_t{1} << 59;  // each operand fits, and their sum does not
  p = {.q = F32({1, 1, 1, huge}), .k = F32({1, 1, 1, huge}), .v = F32({1, 1, 1, huge})};
  g = Validate(p);
  ASSERT_TRUE(g.ok()) << g.status();
  EXPECT_EQ(NaiveBytes(p, *g), kMax);
}

}  // namespace
}  // namespace kernd
