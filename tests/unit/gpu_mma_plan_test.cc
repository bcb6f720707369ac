// What is decided about the tensor-core matmul before there is a GPU, for devices of every kind: the fixed rule of
// tiles, stages, parts of K, and where sums go.
#include <cstdint>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/gpu/matmul_mma_pack.h"
#include "kernels/gpu/matmul_mma_plan.h"

namespace kernd {
namespace {

// Compute capability and the shared memory that a block may have.
DeviceInfo Device(int sm) {
  DeviceInfo device;
  device.sm = sm;
  device.multiprocessors = 100;
  device.clock_khz = 1'500'000;
  device.memory_bytes_per_second = 1'000'000'000'000;
  device.shared_memory_optin = (sm == 75 ? 64 : sm == 80 ? 163 : sm == 90 || sm == 100 ? 227 : 99) << 10;
  return device;
}

MatmulProblem Problem(std::int64_t m, std::int64_t n, std::int64_t k, DataType type = DataType::kF16) {
  return {.a = {.dtype = type, .shape = {m, k}}, .b = {.dtype = type, .shape = {k, n}}};
}

// The tile that the rule names.
std::string First(const MatmulProblem& p) {
  const MatmulGeometry g = *Validate(p);
  for (int i = 0; i < kMmaTiles; ++i) {
    if (PlaceInRule(i, p, g) == 0) return TileText(Tile{kMmaTile[i].m, kMmaTile[i].n, kMmaTile[i].k});
  }
  return "none";
}

TEST(MmaRule, FollowsTheSideOfTheResult) {
  for (const auto& [side, tile] : {std::pair{1, "32x32x32"},
                                   {511, "32x32x32"},
                                   {512, "64x64x32"},
                                   {1023, "64x64x32"},
                                   {1024, "128x128x32"},
                                   {2048, "128x128x32"},
                                   {2049, "128x256x64"},
                                   {8192, "128x256x64"}}) {
    EXPECT_EQ(First(Problem(side, side, 64)), tile) << side;
  }
  EXPECT_EQ(First(Problem(512, 8192, 64)), "128x128x32") << "as 2048 x 2048";
}

TEST(MmaRule, NoTileIsTwiceAsLargeAsTheResult) {
  EXPECT_EQ(First(Problem(1, 1 << 24, 64)), "32x32x32");
  EXPECT_EQ(First(Problem(33, 1 << 20, 64)), "64x64x32");
  EXPECT_EQ(First(Problem(65, 1 << 20, 64)), "128x256x64");
  EXPECT_EQ(First(Problem(1 << 20, 100, 64)), "128x128x32");
}

TEST(MmaRule, ABatchInvariantProblemGoesByN) {
  for (const std::int64_t n : {100, 700, 1500, 5000}) {
    MatmulProblem p = Problem(n, n, 64);
    const std::string tile = First(p);
    p.numerics = Numerics::kBatchInvariant;
    for (const std::int64_t m : {1, 100, 100'000}) {
      p.a.shape = {m, 64};
      EXPECT_EQ(First(p), tile) << m << " x " << n;
    }
    p.a.shape = {7, 3, 64};
    EXPECT_EQ(First(p), tile);
  }
}

// After the first come the next smaller ones, then larger ones.
TEST(MmaRule, EveryTileHasAPlace) {
  const std::vector<std::vector<int>> places = {{0, 1, 2, 3}, {1, 0, 2, 3}, {2, 1, 0, 3}, {3, 2, 1, 0}};
  const std::int64_t sides[] = {256, 768, 1536, 4096};
  for (int size = 0; size < 4; ++size) {
    const MatmulProblem p = Problem(sides[size], sides[size], 64);
    std::vector<int> got;
    for (int i = 0; i < kMmaTiles; ++i) got.push_back(PlaceInRule(i, p, *Validate(p)));
    EXPECT_EQ(got, places[size]) << sides[size];
  }
}

TEST(MmaStages, AreAsManyAsTheDeviceHasRoomFor) {
  constexpr MmaPath kF16 = MmaPath::kF16Sm80, kTf32 = MmaPath::kTf32Sm80, kI8 = MmaPath::kI8Sm80;
  const auto stages = [](MmaPath path, int sm) {
    std::vector<int> all;
    for (const MmaTile& tile : kMmaTile) all.push_back(StagesFor(path, tile, Device(sm)));
    return all;
  };
  using ::testing::ElementsAre;
  EXPECT_THAT(stages(MmaPath::kF16Sm75, 75), ElementsAre(2, 2, 2, 0)) << "128x256x64 needs 96 KiB";
  EXPECT_THAT(stages(MmaPath::kI8Sm75, 75), ElementsAre(2, 2, 2, 2));
  EXPECT_THAT(stages(kF16, 80), ElementsAre(4, 4, 4, 3));
  for (const int sm : {86, 89, 120}) {
    EXPECT_THAT(stages(kF16, sm), ElementsAre(4, 3, 3, 2)) << sm;
    EXPECT_THAT(stages(kTf32, sm), ElementsAre(3, 3, 3, 0)) << sm;
    EXPECT_THAT(stages(kI8, sm), ElementsAre(4, 4, 4, 4)) << sm;
  }
  EXPECT_THAT(stages(kTf32, 80), ElementsAre(3, 3, 2, 0));
  for (const int sm : {90, 100}) {
    EXPECT_THAT(stages(kF16, sm), ElementsAre(4, 4, 4, 4)) << sm;
    EXPECT_THAT(stages(kTf32, sm), ElementsAre(4, 3, 3, 2)) << sm;
  }
  for (const int sm : {75, 80, 86, 90}) {
    for (const MmaPath path : {MmaPath::kF16Sm75, kF16, MmaPath::kBF16Sm80, kTf32, MmaPath::kI8Sm75, kI8}) {
      for (const MmaTile& tile : kMmaTile) {
        const int count = StagesFor(path, tile, Device(sm));
        if (count == 0) continue;
        EXPECT_LE(static_cast<std::int64_t>(SharedBytes(path, tile, count)), Device(sm).shared_memory_optin);
      }
    }
  }
}

MmaSplits Splits(const MatmulProblem& p, int tile = 0) {
  return SplitsFor(kMmaTile[tile], p, *Validate(p), Device(90));
}

TEST(MmaSplits, CutALongKOfFewTiles) {
  EXPECT_EQ(Splits(Problem(32, 32, 2047)).splits, 1) << "too short";
  const MmaSplits eight = Splits(Problem(32, 32, 2056));
  EXPECT_EQ(eight.splits, 8);
  EXPECT_EQ(eight.k_per_split, 288) << "whole tiles";
  EXPECT_EQ(Splits(Problem(32, 32, 100'000)).splits, 16) << "at most";
  EXPECT_EQ(Splits(Problem(4096, 4096, 100'000)).splits, 1) << "the device is busy";
  MatmulProblem invariant = Problem(32, 32, 100'000);
  invariant.numerics = Numerics::kBatchInvariant;
  EXPECT_EQ(Splits(invariant).splits, 1);
  MatmulProblem nothing = Problem(32, 32, 100'000);
  nothing.alpha = 0;
  EXPECT_EQ(Splits(nothing).splits, 1);
}

TEST(MmaSplits, CoverKAndNoMore) {
  for (int tile = 0; tile < kMmaTiles; ++tile) {
    for (std::int64_t k = 1; k < 20'000; k += 97) {
      const MmaSplits s = Splits(Problem(40, 40, k), tile);
      EXPECT_GE(s.splits * s.k_per_split, k);
      EXPECT_LT((s.splits - 1) * s.k_per_split, k);
      EXPECT_TRUE(s.splits == 1 || s.k_per_split % kMmaTile[tile].k == 0) << k;
    }
  }
}

MmaSums Sums(const MatmulProblem& p, const MmaSplits& splits = {}) {
  return SumsFor(p, *Validate(p), splits);
}

TEST(MmaSums, GoToMemoryOnlyWhereTheyMust) {
  MatmulProblem p = Problem(30, 50, 64);
  EXPECT_FALSE(Sums(p).needed);
  EXPECT_EQ(Sums(p, {.splits = 3}).workspace_bytes, 18'176) << "3 x 30 x 50 F32, rounded up";
  p.alpha = 1e39;  // past F32
  EXPECT_EQ(Sums(p).workspace_bytes, 6'144);
  p.output_dtype = DataType::kF32;
  EXPECT_TRUE(Sums(p).needed && Sums(p).in_d);
  EXPECT_EQ(Sums(p).workspace_bytes, 0);

  MatmulProblem i8 = Problem(30, 50, 64, DataType::kI8);
  EXPECT_FALSE(Sums(i8).needed) << "exact";
  i8.alpha = 0.5;
  EXPECT_TRUE(Sums(i8).needed && Sums(i8).in_d) << "rounded from doubles";
  i8.alpha = 0;
  EXPECT_FALSE(Sums(i8).needed) << "there are none";

  const MatmulProblem vast{.a = {.dtype = DataType::kF16, .shape = {std::int64_t{1} << 31, 1}, .strides = {0, 1}},
                           .b = {.dtype = DataType::kF16, .shape = {1, std::int64_t{1} << 30}}};
  EXPECT_LT(Sums(vast, {.splits = 2}).workspace_bytes, 0);
}

// Of the tile 128x128x32 on SM 9.0.
MmaPlan Plan(const MatmulProblem& p, MmaPath path = MmaPath::kF16Sm80, int sm = 90) {
  return MmaPlanOf(path, kMmaTile[2], p, *Validate(p), Device(sm));
}

TEST(MmaPlan, CopiesCrookedOperandsOfWhatIsLarge) {
  const MmaPlan straight = Plan(Problem(4096, 4096, 4096));
  EXPECT_FALSE(straight.a.packed || straight.b.packed);
  EXPECT_EQ(straight.workspace_bytes, 0);

  const MmaPlan crooked = Plan(Problem(4096, 4097, 4095));
  EXPECT_TRUE(crooked.a.packed && crooked.a.along_k);
  EXPECT_TRUE(crooked.b.packed && !crooked.b.along_k) << "lines keep their direction";
  EXPECT_EQ(crooked.a.ld, 4096) << "a multiple of 16 bytes";
  EXPECT_EQ(crooked.b.ld, 4104);
  EXPECT_EQ(crooked.b.at, 4096 * 4096 * 2);
  EXPECT_EQ(crooked.sums_at, 4096 * 4096 * 2 + (4095 * 4104 * 2 + 255) / 256 * 256);
  EXPECT_EQ(crooked.workspace_bytes, crooked.sums_at);

  const MmaPlan one = Plan(Problem(4096, 4096, 4095));
  EXPECT_TRUE(one.a.packed) << "rows of 4095";
  EXPECT_FALSE(one.b.packed) << "rows of 4096";
  EXPECT_EQ(one.b.ld, 4096);

  EXPECT_FALSE(Plan(Problem(33, 35, 37)).a.packed) << "too small to pay";
  MatmulProblem nothing = Problem(4096, 4097, 4095);
  nothing.alpha = 0;
  EXPECT_EQ(Plan(nothing).workspace_bytes, 0) << "operands are not read";
  EXPECT_FALSE(Plan(Problem(4096, 4097, 4095), MmaPath::kF16Sm75, 75).a.packed) << "all goes through registers";
}

TEST(MmaPlan, TurnsOperandsAcrossKThatLdmatrixDoesNot) {
  const MmaPlan i8 = Plan(Problem(4096, 4096, 4096, DataType::kI8), MmaPath::kI8Sm80);
  EXPECT_FALSE(i8.a.packed);
  EXPECT_TRUE(i8.b.packed && i8.b.along_k);
  EXPECT_EQ(i8.workspace_bytes, 4096 * 4096);
}

TEST(MmaPlan, CopiesADistinctItemOnce) {
  MatmulProblem p{.a = {.dtype = DataType::kF16, .shape = {3, 5, 1000, 1001}},
                  .b = {.dtype = DataType::kF16, .shape = {3, 1, 1001, 2001}}};
  const MmaPlan plan = Plan(p);
  EXPECT_EQ(plan.a.items, 15);
  EXPECT_EQ(plan.a.batch_strides, (Dims{5 * 1000 * 1008, 1000 * 1008}));
  EXPECT_EQ(plan.b.items, 3);
  EXPECT_EQ(plan.b.batch_strides, (Dims{1001 * 2008, 0}));
  EXPECT_EQ(plan.b.item_shape, (Dims{3}));
  EXPECT_EQ(plan.b.item_strides, (Dims{1001 * 2001}));
  EXPECT_GE(plan.sums_at, 15 * 1000 * 1008 * 2 + 3 * 1001 * 2008 * 2);
}

}  // namespace
}  // namespace kernd
