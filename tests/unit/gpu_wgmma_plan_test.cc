// How the matmul for SM 9.0 sees its operands: where bulk copies take them as they lie, and what is packed.
#include <cstdint>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/gpu/matmul_wgmma_plan.h"

namespace kernd {
namespace {

WgmmaPlan PlanOf(const MatmulProblem& p, int tile = 1) {
  DeviceInfo device;
  device.sm = 90;
  device.multiprocessors = 132;
  return WgmmaPlanOf(kWgmmaTile[tile], p, *Validate(p), device);
}

MatmulProblem Problem(Dims a, Dims b, bool transpose_a = false, bool transpose_b = false) {
  return {.a = {.dtype = DataType::kBF16, .shape = std::move(a)},
          .b = {.dtype = DataType::kBF16, .shape = std::move(b)},
          .transpose_a = transpose_a,
          .transpose_b = transpose_b};
}

// The item of the operand that item `index` of the batch has.
std::int64_t ItemOf(const WgmmaOperandPlan& o, std::int64_t index) {
  std::int64_t item = 0;
  for (int i = o.item_of.rank - 1; i >= 0; --i) {
    item += index % o.item_of.shape[i] * o.item_of.strides[i];
    index /= o.item_of.shape[i];
  }
  return item;
}

TEST(WgmmaPlan, WholeChunksStayWhereTheyAre) {
  for (const bool transpose_a : {false, true}) {
    for (const bool transpose_b : {false, true}) {
      const WgmmaPlan plan = PlanOf(Problem(transpose_a ? Dims{200, 1000} : Dims{1000, 200},
                                            transpose_b ? Dims{504, 200} : Dims{200, 504}, transpose_a, transpose_b));
      EXPECT_FALSE(plan.a.packed || plan.b.packed);
      EXPECT_EQ(plan.a.along_k, !transpose_a);
      EXPECT_EQ(plan.b.along_k, transpose_b);
      EXPECT_EQ(plan.a.line, transpose_a ? 1000 : 200);
      EXPECT_EQ(plan.a.lines, transpose_a ? 200 : 1000);
      EXPECT_EQ(plan.a.ld, plan.a.line);
      EXPECT_EQ(plan.a.items, 1);
      EXPECT_EQ(plan.workspace_bytes, 0);
    }
  }
}

TEST(WgmmaPlan, CrookedLinesArePackedInTheirDirection) {
  const WgmmaPlan plan = PlanOf(Problem({1000, 203}, {203, 1001}));
  EXPECT_TRUE(plan.a.packed && plan.a.along_k);
  EXPECT_EQ(plan.a.line, 203);
  EXPECT_EQ(plan.a.ld, 208);
  EXPECT_EQ(plan.a.bytes, 1000 * 208 * 2);
  EXPECT_TRUE(plan.b.packed && !plan.b.along_k);
  EXPECT_EQ(plan.b.line, 1001);
  EXPECT_EQ(plan.b.ld, 1008);
  EXPECT_EQ(plan.b.bytes, 203 * 1008 * 2);
  EXPECT_EQ(plan.b_at % kDeviceAlignment, 0);
  EXPECT_GE(plan.b_at, plan.a.bytes);
  EXPECT_GE(plan.workspace_bytes, plan.b_at + plan.b.bytes);
  EXPECT_FALSE(PlanOf(Problem({1, 203}, {203, 1000})).a.packed) << "a single line has no distance to the next";
}

TEST(WgmmaPlan, LinesThatOverlapOrRepeatArePacked) {
  for (const std::int64_t stride : {0, 8, 64}) {
    MatmulProblem p = Problem({50, 128}, {128, 64});
    p.a.strides = {stride, 1};
    EXPECT_TRUE(PlanOf(p).a.packed) << stride;
  }
}

// One dimension serves any batch whose strides have a common divisor of whole chunks.
TEST(WgmmaPlan, ItemsOfABatch) {
  MatmulProblem p = Problem({3, 1, 4, 16, 64}, {2, 1, 64, 16});
  const WgmmaPlan plan = PlanOf(p);
  EXPECT_EQ(plan.a.items, 12);
  EXPECT_EQ(plan.a.item_stride, 16 * 64);
  EXPECT_EQ(plan.b.items, 2);
  EXPECT_EQ(plan.b.item_stride, 64 * 16);
  for (std::int64_t i = 0; i < 24; ++i) {  // of [3, 2, 4]
    EXPECT_EQ(ItemOf(plan.a, i), i / 8 * 4 + i % 4) << i;
    EXPECT_EQ(ItemOf(plan.b, i), i / 4 % 2) << i;
  }
  p.a.strides = {24, 0, 8000, 64, 1};
  const WgmmaPlan apart = PlanOf(p);
  EXPECT_EQ(apart.a.item_stride, 8);
  EXPECT_EQ(apart.a.items, 1 + 2 * 3 + 3 * 1000);
  EXPECT_EQ(ItemOf(apart.a, 23), 2 * 3 + 3 * 1000);
  p.a.strides = {25, 0, 8000, 64, 1};
  EXPECT_TRUE(PlanOf(p).a.packed);
  EXPECT_EQ(PlanOf(p).a.items, 12) << "a copy of each";
  EXPECT_EQ(PlanOf(p).a.source.rank, 2) << "dimensions of one item have none";
  EXPECT_EQ(ItemOf(PlanOf(p).a, 23), 11);
}

TEST(WgmmaPlan, RepeatedItemsArePackedOnce) {
  MatmulProblem p = Problem({5, 16, 64}, {5, 64, 17});
  p.b.strides = {0, 17, 1};
  const WgmmaPlan plan = PlanOf(p);
  EXPECT_TRUE(plan.b.packed);
  EXPECT_EQ(plan.b.items, 1);
  EXPECT_EQ(plan.b.bytes, 64 * 24 * 2);
  EXPECT_EQ(ItemOf(plan.b, 4), 0);
}

TEST(WgmmaPlan, ItemsPastWhatACoordinateHoldsArePacked) {
  MatmulProblem p = Problem({2, 2, 16, 64}, {64, 64});
  p.a.strides = {std::int64_t{1} << 34, 8, 64, 1};
  EXPECT_TRUE(PlanOf(p).a.packed);
  p.a.strides = {std::int64_t{1} << 33, 8, 64, 1};
  EXPECT_FALSE(PlanOf(p).a.packed);
}

TEST(WgmmaPlan, SumsOfPartsOfKComeAfterCopies) {
  const WgmmaPlan plan = PlanOf(Problem({17, 4095}, {4095, 4096}));
  EXPECT_EQ(plan.splits.splits, 8) << "16 tiles on 132 multiprocessors";
  EXPECT_EQ(plan.splits.k_per_split % kWgmmaDepth, 0);
  EXPECT_TRUE(plan.sums.needed);
  EXPECT_EQ(plan.sums_at % kDeviceAlignment, 0);
  EXPECT_EQ(plan.workspace_bytes, plan.sums_at + 17 * 4096 * 8 * 4);
  EXPECT_FALSE(plan.b.packed) << "its lines are along N";
}

}  // namespace
}  // namespace kernd
