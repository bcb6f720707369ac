// What no tolerance covers, through the client library and a real daemon: what the bits of a result may depend on, and
// what a reply says of itself.
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/problem_call.h"

namespace kernd::testing {
namespace {

constexpr DataType kTypes[] = {DataType::kF32, DataType::kBF16,   DataType::kF16,   DataType::kF64,
                               DataType::kI8,  DataType::kF8E4M3, DataType::kF8E5M2};

// Anything that the problem allows, small.
MatmulCase RandomCase(std::uint64_t seed) {
  Random random(seed);
  const auto maybe = [&](int percent) { return Pick(random, 1, 100) <= percent; };
  const std::int64_t sizes[] = {0, 1, 2, 7, 16, 31, 33, 64, 65, 100, 128, 129};
  const auto size = [&] { return sizes[Pick(random, 0, 11)]; };
  const DataType type = kTypes[Pick(random, 0, 6)];
  const std::int64_t m = size(), n = size(), k = maybe(10) ? 700 : size();
  MatmulCase c;
  MatmulProblem& p = c.p;
  p.transpose_a = maybe(50);
  p.transpose_b = maybe(50);
  Dims batch;
  for (std::int64_t i = Pick(random, 0, 2); i > 0; --i) batch.push_back(Pick(random, 1, 3));
  const auto with_batch = [&](std::int64_t rows, std::int64_t cols, bool transpose) {
    Dims shape;
    if (maybe(80)) shape = batch;
    for (std::int64_t& d : shape) {
      if (maybe(25)) d = 1;
    }
    shape.push_back(transpose ? cols : rows);
    shape.push_back(transpose ? rows : cols);
    return shape;
  };
  SetNormal(p.a, c.a, type, with_batch(m, k, p.transpose_a), random);
  SetNormal(p.b, c.b, type, with_batch(k, n, p.transpose_b), random);
  if (maybe(40) && type != DataType::kF64) p.output_dtype = DataType::kF32;
  if (maybe(40)) p.alpha = 0.25;
  const double spread = c.OutputType() == DataType::kI32 ? 1000 : 1;
  if (maybe(40)) {
    p.beta = -0.5;
    MatmulProblem without = p;
    without.beta = 0;
    SetNormal(p.c.emplace(), c.c, c.OutputType(), Validate(without)->d.shape, random, spread);
  }
  if (maybe(40)) {
    SetNormal(p.bias.emplace(), c.bias, maybe(50) ? DataType::kF32 : c.OutputType(), {n}, random, spread);
  }
  p.activation = static_cast<Activation>(Pick(random, 0, 3));
  if (ElementBytes(type) == 1 && c.OutputType() != DataType::kI32 && maybe(50)) {
    const std::int64_t block_rows = Pick(random, 1, 130), block_k = Pick(random, 1, 130);
    p.a_scale = ScaleSpec{.kind = ScaleSpec::Kind::kBlock, .block_rows = block_rows, .block_k = block_k};
    SetNormal(p.a_scale->spec, c.a_scale, DataType::kF32,
              {(m + block_rows - 1) / block_rows, (k + block_k - 1) / block_k}, random);
    p.b_scale = ScaleSpec{.kind = ScaleSpec::Kind::kRow};
    SetNormal(p.b_scale->spec, c.b_scale, DataType::kF32, {n}, random);
  }
  if (maybe(20)) p.numerics = Numerics::kBatchInvariant;
  if (maybe(50) && type == DataType::kF32) p.numerics = Numerics::kTf32;
  return c;
}

TEST(MatmulContract, RandomProblemsMatchAndCostWhatPlanSaid) {
  CheckProblems(400, RandomCase);
}

TEST(MatmulContract, EveryKernelListedCanBeForced) {
  std::vector<std::string> forced;
  for (const client::KernelInfo& kernel : SharedDaemon::kernels()) {
    if (kernel.operation != "matmul") continue;
    for (const DataType type : kTypes) {
      if (Name(type) != client::Name(kernel.dtypes.at(0))) continue;
      for (const auto& [m, n, k] : {std::tuple{33, 47, 61}, {100, 200, 150}, {1, 257, 129}, {64, 64, 64}}) {
        MatmulCase c = MakeMatmul(type, m, n, k, 19);
        if (kernel.limits.find("numerics must be TF32") != std::string::npos) c.p.numerics = Numerics::kTf32;
        SCOPED_TRACE("seed 19 " + kernel.name + " " + c.ToString());
        AskAndCheck(c, kernel.name);
      }
      forced.push_back(kernel.name);
    }
  }
  for (const DataType type : kTypes) {
    EXPECT_THAT(forced,
                ::testing::Contains("matmul_" + std::string(Token(type)) + (OnGpu() ? "_sm75_simt" : "_cpu_packed")));
  }
}

// One kernel for every M and batch, and none that says that it cannot do it.
TEST(MatmulContract, BatchInvariantKernelIsChosenFromNKAndTypeOnly) {
  for (const DataType type : kTypes) {
    std::vector<std::string> chosen;
    for (const Dims& rows : {Dims{1}, Dims{64}, Dims{1000}, Dims{8, 1}, Dims{3, 70}}) {
      MatmulCase c = MakeMatmul(type, 1, 300, 200);
      c.p.numerics = Numerics::kBatchInvariant;
      c.p.a.shape = rows;
      c.p.a.shape.push_back(200);
      c.a = Operand(c.p.a, 0);
      const auto plan = SharedDaemon::client().Plan(c.ClientArgs());
      ASSERT_TRUE(plan.ok()) << plan.status();
      chosen.push_back(plan->kernel.name);
    }
    EXPECT_THAT(chosen, ::testing::Each(chosen[0]));
    for (const client::KernelInfo& kernel : SharedDaemon::kernels()) {
      if (kernel.name != chosen[0]) continue;
      EXPECT_THAT(kernel.limits, ::testing::Not(::testing::HasSubstr("not batch-invariant"))) << kernel.name;
    }
  }
}

// On request a row's bits depend on its row of A, on B and on the options: one row alone, some, all, or in a batch.
TEST(MatmulContract, BatchInvariantRowsDoNotDependOnTheirCompany) {
  for (const DataType type : kTypes) {
    for (const auto& [n, k] : {std::pair{47, 61}, {47, 700}, {300, 3000}}) {
      MatmulCase all = MakeMatmul(type, 64, n, k, 23);
      all.p.numerics = Numerics::kBatchInvariant;
      SCOPED_TRACE("seed 23 " + all.ToString());
      const Bits d = AskAndCheck(all);
      const std::int64_t row_bytes = std::ssize(d) / 64, a_bytes = k * ElementBytes(type);
      const auto part = [&](std::int64_t first, Dims shape) {
        MatmulCase c = all;
        c.p.a.shape = std::move(shape);
        c.a = Operand(c.p.a, 0);
        std::memcpy(c.a.data(), static_cast<const std::byte*>(all.a.data()) + first * a_bytes,
                    static_cast<std::size_t>(c.p.a.bytes()));
        return Ask(c);
      };
      for (std::int64_t row = 0; row < 64; row += 9)
        EXPECT_EQ(part(row, {1, k}), Slice(d, row * row_bytes, row_bytes)) << row;
      EXPECT_EQ(part(5, {33, k}), Slice(d, 5 * row_bytes, 33 * row_bytes));
      EXPECT_EQ(part(0, {64, 1, k}), d);
      EXPECT_EQ(part(0, {4, 16, k}), d);
    }
  }
}

TEST(MatmulContract, RepetitionDoesNotShow) {
  for (const DataType type : kTypes) {
    const MatmulCase c = MakeMatmul(type, 129, 255, 300, 29);
    SCOPED_TRACE("seed 29 " + c.ToString());
    const Bits first = AskAndCheck(c);
    for (int i = 0; i < 10; ++i) EXPECT_EQ(first, Ask(c));
  }
}

TEST(MatmulContract, ConcurrentCallersGetTheirOwnAnswers) {
  std::vector<MatmulCase> cases;
  for (std::uint64_t seed = 1000; seed < 1024; ++seed) cases.push_back(RandomCase(seed));
  for (const DataType type : kTypes) cases.push_back(MakeMatmul(type, 100, 200, 150, 31));
  std::vector<Bits> expected;
  for (const MatmulCase& c : cases) expected.push_back(AskAndCheck(c));
  ASSERT_FALSE(HasFailure());
  std::vector<int> wrong(8);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (std::size_t i = 0; i < 3 * cases.size(); ++i) {
        const std::size_t at = (5 * t + i) % cases.size();
        if (Ask(cases[at]) != expected[at]) ++wrong[t];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, ::testing::Each(0)) << "seeds 1000 and on";
}

}  // namespace
}  // namespace kernd::testing
