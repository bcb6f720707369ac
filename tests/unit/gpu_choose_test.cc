// What is decided about GPU kernels before there is a GPU: which variant runs, how small arrays are packed, what
// becomes of plans, and how a matmul is put to cuBLASLt.
#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernd/kernels/error.h"
#include "kernd/kernels/gpu.h"
#include "kernels/gpu/matmul_lt_recipe.h"
#include "kernels/gpu/plan_cache.h"

namespace kernd {
namespace {

using ::testing::HasSubstr;

const DeviceInfo kDevice = [] {
  DeviceInfo device;
  device.sm = 90;
  device.multiprocessors = 132;
  device.clock_khz = 1'980'000;
  device.memory_bytes_per_second = 4'800'000'000'000;
  return device;
}();

TensorSpec Spec(DataType type, Dims shape, Dims strides = {}) {
  return {.dtype = type, .shape = std::move(shape), .strides = std::move(strides)};
}

MatmulProblem Plain(DataType type, std::int64_t m, std::int64_t n, std::int64_t k) {
  return {.a = Spec(type, {m, k}), .b = Spec(type, {k, n})};
}

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

// Which attention a problem gets: each where it was measured to be the quickest, and what the others cannot do.
TEST(GpuChoose, AttentionOnTensorCores) {
  struct Wanted {
    const char* name;
    AttentionProblem problem;
    int sm = 90;
  };
  const auto problem = [](DataType type, std::int64_t batch, Dims heads, Dims lengths, std::int64_t d) {
    return AttentionProblem{.q = Spec(type, {batch, heads[0], lengths[0], d}),
                            .k = Spec(type, {batch, heads[1], lengths[1], d}),
                            .v = Spec(type, {batch, heads[1], lengths[1], d})};
  };
  const AttentionProblem prefill = problem(DataType::kF16, 4, {16, 16}, {4096, 4096}, 128),
                         decode = problem(DataType::kBF16, 4, {32, 8}, {1, 8192}, 128);
  AttentionProblem causal = prefill, odd = problem(DataType::kF16, 4, {16, 16}, {4096, 4096}, 100), biased = prefill;
  causal.causal = true;
  causal.alignment = MaskAlignment::kTopLeft;
  biased.bias = Spec(DataType::kF16, {1, 16, 4096, 4096});
  for (const Wanted& wanted : {Wanted{"attention_f16_sm90_wgmma", prefill},
                               {"attention_f16_sm90_wgmma", causal},
                               {"attention_f16_sm80_mma", prefill, 80},
                               {"attention_f16_sm80_mma", prefill, 100},
                               {"attention_f16_sm75_mma", prefill, 75},
                               {"attention_f16_sm80_mma", biased},
                               {"attention_bf16_sm80_mma", decode},
                               {"attention_bf16_sm75_simt", decode, 75},
                               {"attention_f16_sm75_simt", odd},
                               {"attention_f32_sm75_simt", problem(DataType::kF32, 1, {8, 8}, {128, 128}, 64)}}) {
    SCOPED_TRACE(std::string(wanted.name) + " on SM " + std::to_string(wanted.sm));
    DeviceInfo device = kDevice;
    device.sm = wanted.sm;
    device.shared_memory_optin = wanted.sm == 75 ? 64 << 10 : wanted.sm == 80 ? 163 << 10 : 227 << 10;
    const auto g = Validate(wanted.problem);
    ASSERT_TRUE(g.ok()) << g.status();
    const auto choice = Choose(AttentionVariants(), wanted.problem, *g, {}, device);
    ASSERT_TRUE(choice.ok()) << choice.status();
    EXPECT_EQ(choice->variant->info.name, wanted.name);
  }
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

TEST(PlanCache, KeepsTheLastUsedAndNoMore) {
  PlanCache<int, int> cache(3);
  int made = 0;
  const auto get = [&](int key) { return **cache.Get(key, [&] { return ++made, absl::StatusOr<int>(key * 10); }); };
  for (const int key : {1, 2, 3, 1}) EXPECT_EQ(get(key), key * 10);
  EXPECT_EQ(made, 3);
  get(4);  // in place of 2, the one that nobody asked for since
  get(1), get(3), get(4);
  EXPECT_EQ(made, 4);
  get(2);
  EXPECT_EQ(made, 5);
  for (int key = 100; key < 1000; ++key) get(key);
  EXPECT_EQ(cache.size(), 3);
}

TEST(PlanCache, AValueOutlivesItsPlace) {
  PlanCache<int, std::string> cache(1);
  const auto held = *cache.Get(1, [] { return absl::StatusOr<std::string>("one"); });
  ASSERT_TRUE(cache.Get(2, [] { return absl::StatusOr<std::string>("two"); }).ok());
  EXPECT_EQ(*held, "one");
}

TEST(PlanCache, ErrorsAreNotKept) {
  PlanCache<int, int> cache(2);
  EXPECT_EQ(cache.Get(1, [] { return absl::StatusOr<int>(absl::ResourceExhaustedError("")); }).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(cache.size(), 0);
  EXPECT_EQ(**cache.Get(1, [] { return absl::StatusOr<int>(7); }), 7);
}

// Whoever makes a plan waits until all threads have asked, so that without single flight each would make its own.
TEST(PlanCache, OneThreadMakesWhatManyWant) {
  PlanCache<int, int> cache(8);
  constexpr int kThreads = 8;
  std::atomic<int> made = 0, asking = 0, wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      ++asking;
      const auto value = cache.Get(5, [&]() -> absl::StatusOr<int> {
        while (asking < kThreads) std::this_thread::yield();
        return ++made;
      });
      if (!value.ok() || **value != 1) ++wrong;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(made, 1);
  EXPECT_EQ(wrong, 0);
}

LtRecipe RecipeOf(const MatmulProblem& p, bool fuse_bias = true) {
  const auto g = Validate(p);
  EXPECT_TRUE(g.ok()) << g.status();
  return LtRecipeOf(p, *g, kDevice, fuse_bias);
}

TEST(LtRecipe, PlainProblemsGoStraightIn) {
  const LtRecipe r = RecipeOf(Plain(DataType::kBF16, 64, 128, 256));
  ASSERT_EQ(r.refusal, "");
  EXPECT_FALSE(r.a.packed || r.b.packed || r.finish);
  EXPECT_TRUE(r.applied && r.sums_in_d);
  EXPECT_EQ(r.call.m, 128);  // columns first
  EXPECT_EQ(r.call.n, 64);
  EXPECT_EQ(r.call.k, 256);
  EXPECT_EQ(r.call.ldx, 128);
  EXPECT_EQ(r.call.ldy, 256);
  EXPECT_FALSE(r.call.x_transposed || r.call.y_transposed);
  EXPECT_EQ(r.call.x_align, kDeviceAlignment);
  EXPECT_EQ(r.starts.size(), 1);
}

TEST(LtRecipe, TheSameProblemHasTheSameKey) {
  const LtCall one = RecipeOf(Plain(DataType::kF16, 64, 128, 256)).call;
  EXPECT_EQ(one, RecipeOf(Plain(DataType::kF16, 64, 128, 256)).call);
  EXPECT_EQ(absl::Hash<LtCall>()(one), absl::Hash<LtCall>()(RecipeOf(Plain(DataType::kF16, 64, 128, 256)).call));
  MatmulProblem other = Plain(DataType::kF16, 64, 128, 256);
  other.transpose_b = true;
  other.b = Spec(DataType::kF16, {128, 256});
  EXPECT_FALSE(one == RecipeOf(other).call);
}

TEST(LtRecipe, CrookedRowsArePackedWhenThatPays) {
  const LtRecipe large = RecipeOf(Plain(DataType::kBF16, 4096, 4097, 4095));
  ASSERT_EQ(large.refusal, "");
  EXPECT_TRUE(large.a.packed && large.b.packed && large.finish && !large.sums_in_d);
  EXPECT_EQ(large.call.k, 4096);
  EXPECT_EQ(large.call.ldd, 4112);
  EXPECT_EQ(large.sums_bytes, std::int64_t{4096} * 4112 * 2) << "rounded once, and only moved after";
  // K in whole chunks only if both are packed, B too though it is aligned; where K lies across both, it may be crooked.
  const LtRecipe crooked_k = RecipeOf(Plain(DataType::kBF16, 300, 7000, 500));
  EXPECT_TRUE(crooked_k.a.packed && crooked_k.b.packed && !crooked_k.finish);
  EXPECT_EQ(crooked_k.call.k, 512);
  MatmulProblem across = Plain(DataType::kBF16, 304, 7000, 500);
  across.transpose_a = true, across.a = Spec(DataType::kBF16, {500, 304});
  EXPECT_FALSE(RecipeOf(across).a.packed || RecipeOf(across).b.packed);
  const LtRecipe small = RecipeOf(Plain(DataType::kBF16, 17, 19, 15));
  EXPECT_FALSE(small.a.packed || small.b.packed);
}

TEST(LtRecipe, EightBitOperandsRunAlongK) {
  for (const DataType type : {DataType::kI8, DataType::kF8E4M3}) {
    MatmulProblem p = Plain(type, 32, 48, 64);
    const LtRecipe crossed = RecipeOf(p);
    EXPECT_TRUE(!crossed.a.packed && crossed.b.packed) << Name(type);
    p.transpose_b = true;
    p.b = Spec(type, {48, 64});
    const LtRecipe along = RecipeOf(p);
    EXPECT_FALSE(along.a.packed || along.b.packed || along.finish) << Name(type);
    EXPECT_TRUE(along.call.x_transposed && !along.call.y_transposed) << Name(type);
  }
}

TEST(LtRecipe, WhatTheLibraryDoesNotRoundExactlyIsDoneAfter) {
  MatmulProblem p = Plain(DataType::kF16, 64, 128, 256);
  p.activation = Activation::kGelu;
  LtRecipe r = RecipeOf(p);
  EXPECT_TRUE(!r.applied && r.finish && !r.sums_in_d);
  EXPECT_EQ(r.call.d_type, DataType::kF32);
  p.activation = Activation::kRelu;  // commutes with rounding
  r = RecipeOf(p);
  EXPECT_TRUE(r.applied && r.finish && r.sums_in_d);
  p.activation = Activation::kNone;
  for (const DataType bias : {DataType::kF16, DataType::kF32}) {
    p.bias = Spec(bias, {128});
    r = RecipeOf(p);
    EXPECT_TRUE(!r.applied && !r.call.adds_bias) << "it may round to F16 before it adds";
  }
  p.output_dtype = DataType::kF32;
  EXPECT_TRUE(RecipeOf(p).call.adds_bias);
  EXPECT_FALSE(RecipeOf(p, /*fuse_bias=*/false).call.adds_bias);
  p.output_dtype = DataType::kInvalid;
  p.bias.reset();
  MatmulProblem i8 = Plain(DataType::kI8, 64, 128, 256);
  EXPECT_TRUE(RecipeOf(i8).applied);
  i8.output_dtype = DataType::kF32;
  r = RecipeOf(i8);
  EXPECT_TRUE(!r.applied && r.sums_in_d) << "of the same size: in place";
  EXPECT_EQ(r.call.d_type, DataType::kI32);
}

TEST(LtRecipe, BatchesBecomeOneMatrixOrOneLoop) {
  // The same B for every item: rows of one tall matrix.
  const LtRecipe tall = RecipeOf({.a = Spec(DataType::kF16, {3, 5, 7, 64}), .b = Spec(DataType::kF16, {64, 32})});
  EXPECT_EQ(tall.call.n, 105);
  EXPECT_EQ(tall.call.batch, 1);
  const LtRecipe loop = RecipeOf({.a = Spec(DataType::kF16, {3, 5, 7, 64}), .b = Spec(DataType::kF16, {3, 5, 64, 32})});
  EXPECT_EQ(loop.call.batch, 15);
  EXPECT_EQ(loop.call.d_stride, 7 * 32);
  // A repeats along the second dimension, B along the first: one call for each of the three.
  const LtRecipe mixed = RecipeOf({.a = Spec(DataType::kF16, {3, 1, 7, 64}), .b = Spec(DataType::kF16, {5, 64, 32})});
  EXPECT_EQ(mixed.call.batch, 5);
  ASSERT_EQ(mixed.starts.size(), 3);
  EXPECT_EQ(mixed.starts[2].a, 2 * 7 * 64);
  EXPECT_EQ(mixed.starts[2].b, 0);
  EXPECT_EQ(mixed.starts[2].d, 2 * 5 * 7 * 32);
}

TEST(LtRecipe, Refusals) {
  MatmulProblem p = Plain(DataType::kF32, 64, 64, 64);
  p.numerics = Numerics::kBatchInvariant;
  EXPECT_THAT(RecipeOf(p).refusal, HasSubstr("BATCH_INVARIANT"));
  EXPECT_THAT(RecipeOf({.a = Spec(DataType::kF32, {4, 64}, {2, 1}), .b = Spec(DataType::kF32, {64, 8})}).refusal,
              HasSubstr("overlap"));
  EXPECT_THAT(RecipeOf(Plain(DataType::kF16, 65'536, 32'768, 8)).refusal, HasSubstr("2^31"));
  EXPECT_THAT(RecipeOf({.a = Spec(DataType::kF32, {70'000, 2, 8}), .b = Spec(DataType::kF32, {70'000, 8, 8})}).refusal,
              HasSubstr("70000"));
  EXPECT_EQ(RecipeOf(Plain(DataType::kF16, 8, 8, 0)).refusal, "") << "K = 0 needs no library";
}

#ifdef KERND_WITH_GPU_TABLE
// <op>_<dtype>_<smNN|cpu|lt>_<method>[_<M>x<N>x<K>]
template <typename Variant>
void ExpectNames(absl::Span<const Variant> rows, const std::string& op, std::vector<std::string>& all) {
  for (const Variant& row : rows) {
    const std::string tile = row.info.tile ? "_" + TileText(*row.info.tile) : "";
    EXPECT_THAT(row.info.name, ::testing::MatchesRegex(op + "_[a-z0-9]+_(sm[0-9]+|lt)_[a-z0-9]+" + tile));
    ASSERT_EQ(row.info.dtypes.size(), 1) << row.info.name;
    const std::string type = "_" + std::string(Token(row.info.dtypes[0])) + "_";
    EXPECT_THAT(row.info.name, ::testing::AnyOf(HasSubstr(type), HasSubstr(type == "_f32_" ? "_tf32_" : type)));
    EXPECT_FALSE(row.info.method.empty()) << row.info.name;
    EXPECT_THAT(all, ::testing::Not(::testing::Contains(row.info.name)));
    all.push_back(row.info.name);
  }
}
#endif

TEST(GpuTable, NamesFollowTheGrammarAndAreUnique) {
#ifdef KERND_WITH_GPU_TABLE
  std::vector<std::string> all;
  ExpectNames(AttentionVariants(), "attention", all);
  ExpectNames(MatmulVariants(), "matmul", all);
  EXPECT_GE(all.size(), 14);
#else
  GTEST_SKIP() << "built without CUDA: there is no table";
#endif
}

// Devices from T4 to RTX 50, as far as tiles depend on them: the method gets the tile of the fixed rule, or the next
// smaller one that fits, and a tile that does not fit is refused with those that do.
TEST(GpuTable, TilesGoByTheDevicesSharedMemory) {
#ifdef KERND_WITH_GPU_TABLE
  struct Expected {
    int sm, shared_kib;
    std::string f16, tf32;  // of 4096 x 4096
  };
  const MatmulProblem f16 = Plain(DataType::kF16, 4096, 4096, 64);
  MatmulProblem tf32 = Plain(DataType::kF32, 4096, 4096, 64);
  tf32.numerics = Numerics::kTf32;
  for (const Expected& e : std::vector<Expected>{{75, 64, "128x128x32", ""},
                                                 {80, 163, "128x256x64", "128x128x32"},
                                                 {86, 99, "128x256x64", "128x128x32"},
                                                 {89, 99, "128x256x64", "128x128x32"},
                                                 {90, 227, "128x256x64", "128x256x64"},
                                                 {100, 227, "128x256x64", "128x256x64"},
                                                 {120, 99, "128x256x64", "128x128x32"}}) {
    DeviceInfo device = kDevice;
    device.sm = e.sm;
    device.shared_memory_optin = std::int64_t{e.shared_kib} << 10;
    const auto choose = [&](const MatmulProblem& p, const KernelRequest& request) {
      return Choose(MatmulVariants(), p, *Validate(p), request, device);
    };
    const std::string path = e.sm == 75 ? "matmul_f16_sm75_mma" : "matmul_f16_sm80_mma";
    const auto half = choose(f16, {.name = path});
    ASSERT_TRUE(half.ok()) << e.sm << ": " << half.status();
    EXPECT_EQ(half->variant->info.name, path + "_" + e.f16) << e.sm;
    const auto by_tile = choose(f16, {.tile = Tile{64, 64, 32}});
    ASSERT_TRUE(by_tile.ok()) << e.sm << ": " << by_tile.status();
    EXPECT_EQ(by_tile->variant->info.name, path + "_64x64x32") << "the newer path comes first";
    const auto single = choose(tf32, {.name = "matmul_tf32_sm80_mma"});
    EXPECT_EQ(single.ok() ? TileText(*single->variant->info.tile) : "", e.tf32) << e.sm << ": " << single.status();
    if (e.tf32 == "128x128x32") {
      const auto large = choose(tf32, {.tile = Tile{128, 256, 64}});
      EXPECT_THAT(std::string(large.status().message()), HasSubstr("needs 196608 bytes of shared memory"));
      EXPECT_THAT(std::string(large.status().message()),
                  HasSubstr("tiles that would do: 32x32x32, 64x64x32, 128x128x32"));
    }
    // Unasked, cuBLASLt gets a problem of this size, where it is there.
    const std::string own = e.sm == 90 ? "matmul_f16_sm90_wgmma_128x256x64" : path + "_" + e.f16;
    EXPECT_THAT(choose(f16, {})->variant->info.name, ::testing::AnyOf(HasSubstr("_lt_"), own)) << e.sm;
  }
#else
  GTEST_SKIP() << "built without CUDA: there is no table";
#endif
}

// Tensor cores, Hopper's own where they take the type, in a tile that neither M nor the batch nor how operands lie
// decides; without them where there are none.
TEST(GpuTable, BatchInvariantProblemsGetTensorCores) {
#ifdef KERND_WITH_GPU_TABLE
  DeviceInfo device = kDevice;
  for (const int sm : {75, 80, 90}) {
    device.sm = sm;
    device.shared_memory_optin = std::int64_t{sm == 75 ? 64 : sm == 80 ? 163 : 227} << 10;
    const std::string half = sm == 75 ? "matmul_f16_sm75_mma_" : "matmul_f16_sm80_mma_";
    const std::string i8 = sm == 75 ? "matmul_i8_sm75_mma_" : "matmul_i8_sm80_mma_";
    struct Wanted {
      std::int64_t n;
      const char *tile, *wgmma;
    };
    for (const auto& [n, tile, wgmma] : {Wanted{1, "32x32x32", "128x128x64"},
                                         {700, "64x64x32", "128x128x64"},
                                         {1401, "128x128x32", "128x128x64"},
                                         {4096, "128x256x64", "128x256x64"}}) {
      if (sm == 75 && n == 4096) continue;  // the largest tile needs more shared memory in F16
      for (const std::int64_t m : {1, 3, 40, 1000, 100'000}) {
        for (const std::int64_t ld : {64, 65}) {
          const auto chosen = [&](DataType type) {
            MatmulProblem p{.a = Spec(type, {m, 64}, {ld, 1}), .b = Spec(type, {64, n})};
            p.numerics = Numerics::kBatchInvariant;
            return Choose(MatmulVariants(), p, *Validate(p), {}, device)->variant->info.name;
          };
          EXPECT_EQ(chosen(DataType::kF16), sm == 90 ? std::string("matmul_f16_sm90_wgmma_") + wgmma : half + tile)
              << sm << ": " << m << " x " << n;
          EXPECT_EQ(chosen(DataType::kI8), i8 + tile) << sm << ": " << m << " x " << n;
          EXPECT_EQ(chosen(DataType::kF32), "matmul_f32_sm75_simt");
        }
      }
    }
  }
#else
  GTEST_SKIP() << "built without CUDA: there is no table";
#endif
}

#ifdef KERND_WITH_GPU_TABLE
// What the models of the rows say: whether cuBLASLt is there or not, or as if it were not.
std::string QuickestOf(const MatmulProblem& p, const DeviceInfo& device, bool with_lt = true) {
  const MatmulGeometry g = *Validate(p);
  std::string name;
  double least = 0;
  for (const MatmulVariant& row : MatmulVariants()) {
    if (row.info.dtypes[0] != p.a.dtype || row.min_sm > device.sm) continue;
    const bool lt = row.info.name.ends_with("_lt_heuristic");
    if (lt ? !with_lt : !row.why_not(p, g, device).empty()) continue;
    const double time = row.estimate(p, g, device);
    if (!name.empty() && time >= least) continue;
    name = row.info.name;
    least = time;
  }
  return name;
}
#endif

// As an H200 had it, B [K, N] and [N, K]: aligned problems are the library's, whose passes after them cost more than an
// own epilogue, and so do its passes before where only wgmma takes B as it lies.
TEST(GpuTable, TheQuickestOnHopper) {
#ifdef KERND_WITH_GPU_TABLE
  DeviceInfo device = kDevice;
  device.shared_memory_optin = 227 << 10;
  const std::string lt = "lt_heuristic", skinny = "sm80_skinny", high = "sm90_wgmma_128x128x64",
                    wide = "sm90_wgmma_128x256x64";
  struct Expected {
    std::int64_t m, n, k;
    std::string of_all, own;  // own: without cuBLASLt; empty: was not compared
    bool b_along_k = false;
  };
  for (const Expected& e : std::vector<Expected>{{512, 512, 512, lt, ""},
                                                 {1000, 1000, 1000, lt, high},
                                                 {1000, 1000, 1000, lt, high, true},
                                                 {1024, 1024, 1024, lt, high},
                                                 {2048, 2048, 2048, lt, wide},
                                                 {4096, 4096, 4096, lt, wide},
                                                 {8192, 8192, 8192, lt, wide},
                                                 {8192, 8192, 8192, lt, wide, true},
                                                 {256, 8192, 8192, lt, high, true},
                                                 {4096, 4097, 4095, lt, wide},
                                                 {300, 7000, 500, wide, wide},
                                                 {300, 7000, 500, lt, wide, true},
                                                 {1, 4096, 4096, lt, skinny},
                                                 {8, 4096, 4096, lt, skinny},
                                                 {16, 4096, 4096, lt, skinny},
                                                 {17, 4096, 4096, lt, skinny},
                                                 {17, 4096, 4096, lt, skinny, true}}) {
    for (const DataType type : {DataType::kF16, DataType::kBF16}) {
      MatmulProblem p = Plain(type, e.m, e.n, e.k);
      if (e.b_along_k) p.transpose_b = true, p.b = Spec(type, {e.n, e.k});
      const std::string prefix = "matmul_" + std::string(Token(type)) + "_";
      SCOPED_TRACE(prefix + std::to_string(e.m) + "x" + std::to_string(e.n) + "x" + std::to_string(e.k));
      EXPECT_EQ(QuickestOf(p, device), prefix + e.of_all);
      if (!e.own.empty()) {
        EXPECT_EQ(QuickestOf(p, device, /*with_lt=*/false), prefix + e.own);
      }
      p.activation = Activation::kGelu;
      if (e.m == e.n && e.m >= 4096) {
        EXPECT_EQ(QuickestOf(p, device), prefix + wide);
      }
    }
  }
  device.sm = 80;
  EXPECT_EQ(QuickestOf(Plain(DataType::kBF16, 4096, 4096, 4096), device), "matmul_bf16_lt_heuristic");
#else
  GTEST_SKIP() << "built without CUDA: there is no table";
#endif
}

// With or without a device and cuBLASLt: every type has a row, and what the library cannot do now is said in words.
TEST(GpuTable, EveryTypeIsPlanned) {
#ifdef KERND_WITH_GPU_TABLE
  for (const DataType type : {DataType::kF16, DataType::kBF16, DataType::kF32, DataType::kF64, DataType::kI8,
                              DataType::kF8E4M3, DataType::kF8E5M2}) {
    MatmulProblem p = Plain(type, 64, 64, 64);
    const auto choice = Choose(MatmulVariants(), p, *Validate(p), {}, kDevice);
    ASSERT_TRUE(choice.ok()) << choice.status();
    EXPECT_GE(choice->variant->workspace_bytes(p, *Validate(p), kDevice), 0);
    p.numerics = Numerics::kBatchInvariant;
    const auto invariant = Choose(MatmulVariants(), p, *Validate(p), {}, kDevice);
    ASSERT_TRUE(invariant.ok()) << invariant.status();
    const bool half = type == DataType::kF16 || type == DataType::kBF16;
    EXPECT_THAT(invariant->variant->info.name, HasSubstr(half ? "skinny" : "simt")) << "no shared memory for others";
    const std::string lt = "matmul_" + std::string(Token(type)) + "_lt_heuristic";
    const auto refused = Choose(MatmulVariants(), p, *Validate(p), {.name = lt}, kDevice);
    EXPECT_THAT(std::string(refused.status().message()), HasSubstr("BATCH_INVARIANT"));
  }
#else
  GTEST_SKIP() << "built without CUDA: there is no table";
#endif
}

}  // namespace
}  // namespace kernd
