// The promises of kernd/kernels/matmul.h that no tolerance covers, of the CPU's variants: what bits may depend on,
// which operands are never read, calls at once, and which variant runs.
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernd/kernels/error.h"
#include "server/cpu/onednn.h"
#include "tests/unit/cpu_matmul_case.h"

namespace kernd::cpu {
namespace {

// NaN in C with beta = 0, and in A and B with alpha = 0 or K = 0, must not be seen; pointers may then be null.
TEST(CpuMatmulContract, OperandsThatDoNotCountAreNotRead) {
  for (const DataType type : kTypes) {
    for (const std::int64_t k : {0, 20}) {
      Case c = PlainCase(type, 5, 9, k);
      const DataType output = DefaultMatmulOutput(type);
      c.p.alpha = 0;
      c.p.beta = 0.5;
      c.p.c = SpecOf(output, {5, 9});
      c.c = Operand(*c.p.c, 0);
      c.c.Fill([](const Dims& at) { return static_cast<double>(at[0] * 2); });
      const MatmulGeometry g = *Validate(c.p);
      for (const Isa isa : AvailableIsas()) {
        const auto choice = ChooseMatmul(c.p, g, {}, 2, isa);
        ASSERT_TRUE(choice.ok());
        Guarded workspace(choice->workspace_bytes, std::byte{0xff}), d(g.d.bytes(), std::byte{0xff});
        ASSERT_TRUE(RunMatmul(*choice, c.p, g, {.c = c.c.data(), .d = d.data()}, workspace.data()).ok());
        for (std::int64_t i = 0; i < 45; ++i)
          EXPECT_EQ(reference::Load(output, d.data(), i), static_cast<double>(i / 9));
      }
    }
  }
}
TEST(CpuMatmulContract, BatchInvariantRowsDoNotDependOnTheirCompany) {
  for (const DataType type : kTypes) {
    Case c = PlainCase(type, 300, 70, 600, 23);
    c.p.numerics = Numerics::kBatchInvariant;
    for (const Isa isa : AvailableIsas()) {
      const auto all = Compute(c, {.isa = isa, .threads = 2});
      const std::int64_t row_bytes = static_cast<std::int64_t>(all.size()) / 300;
      for (const std::int64_t rows : {1, 5, 33, 290}) {
        Case part = c;
        part.p.a.shape[0] = rows;
        const auto some = Compute(part, {.isa = isa});
        EXPECT_EQ(std::memcmp(some.data(), all.data(), static_cast<std::size_t>(rows * row_bytes)), 0)
            << Name(type) << " " << rows;
      }
    }
    EXPECT_EQ(ChooseMatmul(c.p, *Validate(c.p), {}, 1)->onednn, type == DataType::kI8 && onednn::IsNative(type))
        << Name(type);
  }
}
// Many threads, each with its own problem or the same one, making and running primitives at once.
TEST(CpuMatmulContract, ConcurrentCalls) {
  std::vector<Case> cases;
  for (int i = 0; i < 6; ++i)
    cases.push_back(PlainCase(i % 2 ? DataType::kF32 : DataType::kBF16, 30 + i, 65, 90, 29 + i));
  std::vector<std::vector<std::byte>> expected;
  for (const Case& c : cases) expected.push_back(Compute(c, {}));
  std::vector<std::thread> threads;
  std::vector<int> wrong(8);
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 60; ++i) {
        const std::size_t at = static_cast<std::size_t>(t + i) % cases.size();
        if (Compute(cases[at], {.threads = 1}) != expected[at]) ++wrong[static_cast<std::size_t>(t)];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, ::testing::Each(0));
}

// More shapes than the cache of primitives keeps.
TEST(CpuMatmulContract, PrimitivesThatWereEvictedAreMadeAgain) {
  for (int round = 0; round < 2; ++round) {
    for (std::int64_t m = 1; m <= 300; ++m) {
      const auto gemm = onednn::GetGemm({.m = m, .n = 3, .k = 2, .lda = 2, .ldb = 3});
      ASSERT_TRUE(gemm.ok()) << gemm.status();
      if (m % 100 != 1) continue;
      std::vector<float> a(static_cast<std::size_t>(2 * m), 2), b(6, 3), d(static_cast<std::size_t>(3 * m));
      Guarded scratch((*gemm)->scratch_bytes(), std::byte{0});
      ASSERT_TRUE((*gemm)->Run(a.data(), b.data(), d.data(), scratch.data()).ok());
      EXPECT_THAT(d, ::testing::Each(12.0f));
    }
  }
}

TEST(CpuMatmulChoice, NamesAndReasons) {
  const MatmulProblem p = PlainCase(DataType::kF32, 64, 64, 64).p;
  const MatmulProblem tiny = PlainCase(DataType::kF32, 8, 8, 8).p;
  const MatmulGeometry g = *Validate(p);
  EXPECT_EQ(ChooseMatmul(p, g, {}, 2)->name, "matmul_f32_cpu_onednn");
  EXPECT_EQ(ChooseMatmul(tiny, *Validate(tiny), {}, 2)->name, "matmul_f32_cpu_packed");
  EXPECT_EQ(ChooseMatmul(p, g, {}, 2)->reason, ChoiceReason::kRule);
  const auto forced = ChooseMatmul(p, g, {.name = "matmul_f32_cpu_packed"}, 2);
  EXPECT_EQ(forced->name, "matmul_f32_cpu_packed");
  EXPECT_EQ(forced->reason, ChoiceReason::kForced);
  const auto expect_refused = [](const MatmulProblem& problem, const KernelRequest& request, const std::string& field,
                                 const std::string& part) {
    const absl::Status status = ChooseMatmul(problem, *Validate(problem), request, 2).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_EQ(DetailOf(status).field, field);
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(part));
  };
  expect_refused(p, {.name = "matmul_f32_cpu_magic"}, "matmul.kernel.name", "no such kernel");
  expect_refused(p, {.name = "matmul_f16_cpu_packed"}, "matmul.kernel.name", "cannot run operands of F32");
  expect_refused(p, {.tile = Tile{64, 64, 32}}, "matmul.kernel.tile", "[64,64,32]");
  MatmulProblem invariant = p;
  invariant.numerics = Numerics::kBatchInvariant;
  expect_refused(invariant, {.name = "matmul_f32_cpu_onednn"}, "matmul.kernel.name", "BATCH_INVARIANT");
  EXPECT_EQ(ChooseMatmul(invariant, g, {}, 2)->name, "matmul_f32_cpu_packed");
  MatmulProblem overlapping = p;
  overlapping.a.strides = {3, 1};
  expect_refused(overlapping, {.name = "matmul_f32_cpu_onednn"}, "matmul.kernel.name", "overlap");
  for (const VariantInfo& variant : MatmulVariants()) {
    MatmulProblem own = p;
    own.a.dtype = own.b.dtype = variant.dtypes[0];
    EXPECT_TRUE(ChooseMatmul(own, *Validate(own), {.name = variant.name}, 1).ok()) << variant.name;
  }
}

}  // namespace
}  // namespace kernd::cpu
