// Which of a table's rows runs, and how small arrays are packed; on made-up rows.
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernd/kernels/error.h"
#include "kernd/kernels/gpu.h"
#include "tests/unit/gpu_choose_case.h"

namespace kernd {
namespace {

using ::testing::HasSubstr;

MatmulVariant FakeRow(const char* name, DataType dtype, int min_sm, std::optional<Tile> tile,
                      double (*estimate)(const MatmulProblem&, const MatmulGeometry&, const DeviceInfo&)) {
  return {.info = {.name = name, .dtypes = {dtype}, .tile = tile},
          .min_sm = min_sm,
          .why_not =
              [](const MatmulProblem& p, const MatmulGeometry& g, const DeviceInfo&) {
                if (p.numerics == Numerics::kBatchInvariant) return std::string("is not batch-invariant");
                return std::string(g.m > 1000 ? "M is past 1000" : "");
              },
          .estimate = estimate};
}

double Slow(const MatmulProblem&, const MatmulGeometry&, const DeviceInfo&) {
  return 9;
}
double Quick(const MatmulProblem&, const MatmulGeometry&, const DeviceInfo&) {
  return 2;
}
double QuickWhenSmall(const MatmulProblem&, const MatmulGeometry& g, const DeviceInfo&) {
  return g.m < 10 ? 1 : 5;
}

const std::vector<MatmulVariant>& FakeTable() {
  static const std::vector<MatmulVariant> table = {
      FakeRow("slow", DataType::kF32, 75, Tile{128, 128, 32}, Slow),
      FakeRow("quick", DataType::kF32, 75, Tile{64, 64, 32}, Quick),
      FakeRow("tie", DataType::kF32, 75, std::nullopt, Quick),
      FakeRow("small", DataType::kF32, 75, Tile{64, 64, 32}, QuickWhenSmall),
      FakeRow("future", DataType::kF32, 100, Tile{256, 256, 32}, QuickWhenSmall),
      FakeRow("half", DataType::kF16, 75, std::nullopt, Quick)};
  return table;
}

absl::StatusOr<Choice<MatmulVariant>> ChooseFake(const MatmulProblem& p, const KernelRequest& request = {}) {
  return Choose(FakeTable(), p, *Validate(p), request, kDevice);
}

TEST(GpuChoose, TheQuickestAndTheFirstOfEquals) {
  const auto large = ChooseFake(Plain(DataType::kF32, 64, 64, 64));
  ASSERT_TRUE(large.ok()) << large.status();
  EXPECT_EQ(large->variant->info.name, "quick");
  EXPECT_EQ(large->reason, ChoiceReason::kModel);
  EXPECT_EQ(ChooseFake(Plain(DataType::kF32, 4, 64, 64))->variant->info.name, "small");
  EXPECT_EQ(ChooseFake(Plain(DataType::kF16, 4, 64, 64))->variant->info.name, "half");
}

TEST(GpuChoose, ForcedByNameAndByTile) {
  const MatmulProblem p = Plain(DataType::kF32, 64, 64, 64);
  const auto slow = ChooseFake(p, {.name = "slow"});
  ASSERT_TRUE(slow.ok()) << slow.status();
  EXPECT_EQ(slow->variant->info.name, "slow");
  EXPECT_EQ(slow->reason, ChoiceReason::kForced);
  EXPECT_EQ(ChooseFake(p, {.tile = Tile{128, 128, 32}})->variant->info.name, "slow");
  // Of several with the tile, again the quickest.
  EXPECT_EQ(ChooseFake(p, {.tile = Tile{64, 64, 32}})->variant->info.name, "quick");
  EXPECT_EQ(ChooseFake(Plain(DataType::kF32, 4, 4, 4), {.tile = Tile{64, 64, 32}})->variant->info.name, "small");
}

std::vector<MatmulVariant> TiledTable() {
  std::vector<MatmulVariant> table = {FakeRow("plain", DataType::kF32, 75, std::nullopt, Slow),
                                      FakeRow("mma_64x64x32", DataType::kF32, 75, Tile{64, 64, 32}, Quick),
                                      FakeRow("mma_32x32x32", DataType::kF32, 75, Tile{32, 32, 32}, QuickWhenSmall)};
  for (MatmulVariant& row : table) row.info.by_request = row.info.tile.has_value();
  return table;
}

TEST(GpuChoose, ANameWithoutItsTileIsTheMethod) {
  const std::vector<MatmulVariant> table = TiledTable();
  const auto choose = [&](std::int64_t m, const KernelRequest& request) {
    const MatmulProblem p = Plain(DataType::kF32, m, 64, 64);
    const auto choice = Choose(table, p, *Validate(p), request, kDevice);
    return choice.ok() ? choice->variant->info.name : std::string(choice.status().message());
  };
  EXPECT_EQ(choose(64, {.name = "mma"}), "mma_64x64x32");
  EXPECT_EQ(choose(4, {.name = "mma"}), "mma_32x32x32");
  EXPECT_EQ(choose(4, {.name = "mma_64x64x32"}), "mma_64x64x32");
  EXPECT_EQ(choose(4, {.name = "mma", .tile = Tile{64, 64, 32}}), "mma_64x64x32");
  EXPECT_THAT(choose(4, {.name = "mm"}), HasSubstr("no such kernel"));
  EXPECT_THAT(choose(4, {.name = "mma_64x64"}), HasSubstr("no such kernel"));
}

TEST(GpuChoose, WhatRunsByRequestIsNotChosenOtherwise) {
  const std::vector<MatmulVariant> table = TiledTable();
  const MatmulProblem p = Plain(DataType::kF32, 4, 64, 64);
  EXPECT_EQ(Choose(table, p, *Validate(p), {}, kDevice)->variant->info.name, "plain");
  EXPECT_EQ(Choose(table, p, *Validate(p), {.tile = Tile{32, 32, 32}}, kDevice)->variant->info.name, "mma_32x32x32");
  // Not even where nothing else runs.
  const auto none = Choose(absl::MakeSpan(table).subspan(1), p, *Validate(p), {}, kDevice);
  EXPECT_EQ(none.status().code(), absl::StatusCode::kUnimplemented) << none.status();
}

TEST(GpuChoose, SaysWhyNot) {
  const auto expect = [](const absl::Status& status, absl::StatusCode code, const std::string& field,
                         const std::vector<std::string>& parts) {
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_EQ(DetailOf(status).field, field);
    for (const std::string& part : parts) EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  };
  const MatmulProblem p = Plain(DataType::kF32, 64, 64, 64), tall = Plain(DataType::kF32, 1001, 64, 64);
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument, kUnimplemented = absl::StatusCode::kUnimplemented;
  expect(ChooseFake(p, {.name = "magic"}).status(), kInvalid, "matmul.kernel.name", {"magic", "no such kernel"});
  expect(ChooseFake(p, {.name = "future"}).status(), kInvalid, "matmul.kernel.name", {"needs sm_100", "sm_90"});
  expect(ChooseFake(p, {.name = "half"}).status(), kInvalid, "matmul.kernel.name", {"does not take F32"});
  expect(ChooseFake(tall, {.name = "slow"}).status(), kInvalid, "matmul.kernel.name", {"M is past 1000"});
  const std::string others = "tiles that would do: 128x128x32, 64x64x32";
  expect(ChooseFake(p, {.tile = Tile{1, 2, 3}}).status(), kInvalid, "matmul.kernel.tile",
         {"1x2x3", "no kernel has this tile", others});
  for (const Tile& tile : {Tile{64, 64, 0}, Tile{0, 64, 32}, Tile{64, -1, 32}, Tile{}}) {
    expect(ChooseFake(p, {.tile = tile}).status(), kInvalid, "matmul.kernel.tile",
           {TileText(tile), "three sizes, all positive", others});
  }
  expect(ChooseFake(p, {.tile = Tile{256, 256, 32}}).status(), kInvalid, "matmul.kernel.tile",
         {"future needs sm_100 and this is sm_90", others});
  expect(ChooseFake(tall, {.tile = Tile{64, 64, 32}}).status(), kInvalid, "matmul.kernel.tile",
         {"quick M is past 1000", "small M is past 1000", "no tile would do"});
  expect(ChooseFake(tall).status(), kUnimplemented, "matmul.dtype", {"slow M is past 1000", "quick M is past 1000"});
  expect(ChooseFake(Plain(DataType::kF64, 4, 4, 4)).status(), kUnimplemented, "matmul.dtype", {"F64"});
}

TEST(GpuTables, RoundTrip) {
  AttentionProblem p{.q = Spec(DataType::kF8E4M3, {3, 4, 5, 16}),
                     .k = Spec(DataType::kF8E4M3, {3, 2, 7, 16}),
                     .v = Spec(DataType::kF8E4M3, {3, 2, 7, 16})};
  p.alignment = MaskAlignment::kTopLeft;
  p.alibi_slopes = {1, 2, 3, 4};
  p.sinks = {5, 6, 7, 8};
  p.kv_lengths = {1, 0, 7};
  p.k_scale = {0.5f};
  p.v_scale = {1, 2, 3, 4, 5, 6};
  const auto g = Validate(p);
  ASSERT_TRUE(g.ok()) << g.status();
  const AttentionTableLayout layout(p, *g);
  ASSERT_EQ(layout.bytes() % kDeviceAlignment, 0);
  std::vector<std::byte> buffer(static_cast<std::size_t>(layout.bytes()) + kDeviceAlignment, std::byte{0xff});
  // As on the device: aligned.
  std::byte* base = buffer.data();
  while (reinterpret_cast<std::uintptr_t>(base) % kDeviceAlignment != 0) ++base;
  layout.Write(p, *g, base);
  const AttentionTables tables = layout.At(base);
  for (int b = 0; b < 3; ++b) EXPECT_EQ(tables.sequences[b].kv_length, p.kv_lengths[b]) << b;
  for (int h = 0; h < 4; ++h) {
    EXPECT_EQ(tables.alibi_slopes[h], p.alibi_slopes[h]);
    EXPECT_EQ(tables.sinks[h], p.sinks[h]);
  }
  EXPECT_EQ(tables.q_scale, nullptr);
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(tables.k_scale[i], 0.5f) << "one scale for all is expanded";
    EXPECT_EQ(tables.v_scale[i], p.v_scale[i]);
  }
}

}  // namespace
}  // namespace kernd
