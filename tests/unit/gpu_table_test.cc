// The rows that this build has: their names, and which of them a problem gets on which device. Only with CUDA.
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernd/kernels/gpu.h"
#include "tests/unit/gpu_choose_case.h"

namespace kernd {
namespace {

using ::testing::HasSubstr;

// Which attention a problem gets: each where it was measured to be the quickest, and what the others cannot do.
TEST(GpuTable, AttentionOnTensorCores) {
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

TEST(GpuTable, NamesFollowTheGrammarAndAreUnique) {
  std::vector<std::string> all;
  ExpectNames(AttentionVariants(), "attention", all);
  ExpectNames(MatmulVariants(), "matmul", all);
  EXPECT_GE(all.size(), 14);
}

// Devices from T4 to RTX 50, as far as tiles depend on them: the method gets the tile of the fixed rule, or the next
// smaller one that fits, and a tile that does not fit is refused with those that do.
TEST(GpuTable, TilesGoByTheDevicesSharedMemory) {
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
}

// Tensor cores, Hopper's own where they take the type, in a tile that neither M nor the batch nor how operands lie
// decides; without them where there are none.
TEST(GpuTable, BatchInvariantProblemsGetTensorCores) {
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
}

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

// As an H200 had it, B [K, N] and [N, K]: aligned problems are the library's, whose passes after them cost more than an
// own epilogue, and so do its passes before where only wgmma takes B as it lies.
TEST(GpuTable, TheQuickestOnHopper) {
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
}

// With or without a device and cuBLASLt: every type has a row, and what the library cannot do now is said in words.
TEST(GpuTable, EveryTypeIsPlanned) {
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
}

}  // namespace
}  // namespace kernd
