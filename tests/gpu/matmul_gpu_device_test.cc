// What only a device has: calls at once, sizes past 2^31, and the rows that are chosen for it.
#include <cuda_runtime_api.h>

#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/gpu/matmul_gpu_run.h"

namespace kernd::testing::matmul {
namespace {

// One handle and one map of plans, many threads and streams: the bits of a quiet run.
TEST_F(MatmulGpu, ConcurrentCalls) {
  std::vector<Case> cases;
  for (int i = 0; i < 12; ++i) {
    cases.push_back(PlainCase(kTypes[i % 7], 30 + 5 * i, i % 2 ? 64 : 65, i % 3 ? 96 : 90, 29 + i));
  }
  std::vector<DeviceCase> operands(cases.begin(), cases.end());
  std::vector<const MatmulVariant*> rows;
  std::vector<std::vector<std::byte>> expected;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    rows.push_back(&Row(cases[i].p.a.dtype, i % 4 == 3 ? "simt" : "lt_heuristic"));
    expected.push_back(Compute(*rows[i], cases[i], operands[i]));
  }
  constexpr int kThreads = 8, kRounds = 20;
  std::vector<int> wrong(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      cudaStream_t stream = nullptr;
      if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess) {
        wrong[t] = -1;
        return;
      }
      for (int i = 0; i < kRounds; ++i) {
        const std::size_t at = static_cast<std::size_t>(t + i) % cases.size();
        if (Compute(*rows[at], cases[at], operands[at], stream) != expected[at]) ++wrong[t];
      }
      (void)cudaStreamDestroy(stream);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, ::testing::Each(0));
}

TEST_F(MatmulGpu, ChoosesTheLibraryUnlessPackingCostsMore) {
  for (const DataType type : kTypes) {
    const MatmulProblem large{.a = SpecOf(type, {2048, 2048}), .b = SpecOf(type, {2048, 2048})};
    const auto choice = Choose(MatmulVariants(), large, *Validate(large), {}, device_);
    ASSERT_TRUE(choice.ok()) << choice.status();
    EXPECT_EQ(choice->variant->info.name, Row(type, "lt_heuristic").info.name);
  }
  const MatmulProblem tiny{.a = SpecOf(DataType::kI8, {8, 13}), .b = SpecOf(DataType::kI8, {13, 9})};
  const auto choice = Choose(MatmulVariants(), tiny, *Validate(tiny), {}, device_);
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->variant->info.name, Row(DataType::kI8, "simt").info.name);
}

// What is chosen for a batch-invariant problem depends on neither M nor the batch, and has tensor cores where there
// are.
TEST_F(MatmulGpu, BatchInvariantChoice) {
  for (const DataType type : kTypes) {
    const bool half = type == DataType::kF16 || (type == DataType::kBF16 && device_.sm >= 80);
    const char* const method = half && device_.sm == 90        ? "wgmma_128x128x64"
                               : half || type == DataType::kI8 ? "mma_128x128x32"
                                                               : "simt";
    for (const Dims& sizes : {Dims{1, 1}, Dims{1, 1500}, Dims{3, 33}}) {
      MatmulProblem p{.a = SpecOf(type, {sizes[0], sizes[1], 200}), .b = SpecOf(type, {200, 1400})};
      p.numerics = Numerics::kBatchInvariant;
      const auto choice = Choose(MatmulVariants(), p, *Validate(p), {}, device_);
      ASSERT_TRUE(choice.ok()) << choice.status();
      EXPECT_TRUE(choice->variant->info.name.ends_with(method)) << choice->variant->info.name;
    }
  }
}

bool HasMemory(std::int64_t bytes) {
  std::size_t free = 0, total = 0;
  return cudaMemGetInfo(&free, &total) == cudaSuccess && static_cast<std::int64_t>(free) > bytes;
}

// Rows of a product whose result spans more than 2^31 elements, against the same rows on their own.
TEST_F(MatmulGpu, ResultsPast2To31) {
  constexpr std::int64_t kM = 65'600, kN = 32'776, kK = 8;
  if (!HasMemory(kM * kN * 2 + (std::int64_t{1} << 30))) GTEST_SKIP() << "needs 5.3 GB of device memory";
  const Case c = PlainCase(DataType::kF16, kM, kN, kK, 31);
  const MatmulGeometry g = *Validate(c.p);
  const MatmulVariant& row = Row(DataType::kF16, "simt");
  EXPECT_NE(Row(DataType::kF16, "lt_heuristic").why_not(c.p, g, device_), "");
  const DeviceCase operands(c);
  DeviceBuffer d(g.d.bytes());
  ASSERT_EQ(d.bytes(), kM * kN * 2);
  ASSERT_TRUE(row.launch(c.p, g, device_, operands.Args(d.data()), nullptr, {}).ok());
  ExpectDeviceFine("simt");
  d.ExpectGuardsIntact("D");
  for (const std::int64_t at : {std::int64_t{0}, std::int64_t{65'519}, std::int64_t{65'523}, kM - 1}) {
    Case one = PlainCase(DataType::kF16, 1, kN, kK, 31);
    std::memcpy(one.a.data(), static_cast<const char*>(c.a.data()) + at * kK * 2, kK * 2);
    std::memcpy(one.b.data(), c.b.data(), kK * kN * 2);
    const auto expected = reference::MatmulValues(one.p, one.Args());
    std::vector<std::byte> values(kN * 2);
    ASSERT_EQ(cudaMemcpy(values.data(), static_cast<char*>(d.data()) + at * kN * 2, values.size(), cudaMemcpyDefault),
              cudaSuccess);
    SCOPED_TRACE("row " + std::to_string(at));
    ExpectMatches(one, values, *expected);
  }
}

// An operand that spans more than 2^31 elements, all of them 1 but for its last row.
TEST_F(MatmulGpu, OperandsPast2To31) {
  constexpr std::int64_t kM = 32'800, kN = 4, kK = 65'536;
  if (!HasMemory(kM * kK + (std::int64_t{1} << 30))) GTEST_SKIP() << "needs 3.3 GB of device memory";
  const Case last = PlainCase(DataType::kI8, 1, kN, kK, 37);
  MatmulProblem p{.a = SpecOf(DataType::kI8, {kM, kK}), .b = last.p.b};
  const MatmulGeometry g = *Validate(p);
  DeviceBuffer a(kM * kK, std::byte{1});
  a.Upload((kM - 1) * kK, last.a.data(), kK);
  const DeviceBuffer b(last.b);
  DeviceBuffer d(g.d.bytes());
  const MatmulVariant& row = Row(DataType::kI8, "simt");
  ASSERT_TRUE(row.launch(p, g, device_, {.a = a.data(), .b = b.data(), .d = d.data()}, nullptr, {}).ok());
  ExpectDeviceFine("simt");
  std::vector<std::int32_t> values(kM * kN);
  std::memcpy(values.data(), d.Download().data(), values.size() * 4);
  const auto expected = reference::MatmulValues(last.p, last.Args());
  for (std::int64_t j = 0; j < kN; ++j) {
    std::int32_t column = 0;
    for (std::int64_t k = 0; k < kK; ++k) column += static_cast<const std::int8_t*>(last.b.data())[k * kN + j];
    EXPECT_EQ(values[j], column);
    EXPECT_EQ(values[(kM - 2) * kN + j], column);
    EXPECT_EQ(values[(kM - 1) * kN + j], expected->value[j]);
  }
}

}  // namespace
}  // namespace kernd::testing::matmul
