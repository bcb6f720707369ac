// Every size of a matmul and every broadcast of its batch, through the client library and a real daemon, against the
// fp64 reference.
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/problem_call.h"

namespace kernd::testing {
namespace {

constexpr DataType kTypes[] = {DataType::kF32, DataType::kBF16,   DataType::kF16,   DataType::kF64,
                               DataType::kI8,  DataType::kF8E4M3, DataType::kF8E5M2};
constexpr Activation kActivations[] = {Activation::kNone, Activation::kRelu, Activation::kGelu, Activation::kSilu};

TEST(MatmulSizes, EdgesInEveryType) {
  const std::int64_t sizes[] = {0, 1, 7, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 257};
  std::uint64_t seed = 0;
  for (const DataType type : kTypes) {
    for (int i = 0; i < 14; ++i) {  // each size for each of M, N and K, in two other companies
      for (const auto& [n, k] : {std::pair{5, 9}, {11, 3}}) {
        MatmulCase c = MakeMatmul(type, sizes[i], sizes[(i + n) % 14], sizes[(i + k) % 14], ++seed);
        Random random(seed);
        Transpose(c, seed & 1, seed & 2, random);
        SCOPED_TRACE("seed " + std::to_string(seed) + " " + c.ToString());
        AskAndCheck(c);
        if (HasFailure()) return;
      }
    }
  }
}

TEST(MatmulSizes, TransposesOfOddSizes) {
  const std::int64_t sizes[][3] = {{33, 47, 61},  {100, 200, 150}, {17, 19, 23}, {101, 103, 107}, {211, 227, 223},
                                   {1, 300, 500}, {300, 1, 500},   {1, 1, 4096}, {3, 4, 1}};
  std::uint64_t seed = 200;
  for (const DataType type : kTypes) {
    for (const auto& [m, n, k] : sizes) {
      for (int transposes = 0; transposes < 4; ++transposes) {
        MatmulCase c = MakeMatmul(type, m, n, k, ++seed);
        Random random(seed);
        Transpose(c, transposes & 1, transposes & 2, random);
        SCOPED_TRACE("seed " + std::to_string(seed) + " " + c.ToString());
        AskAndCheck(c);
        if (HasFailure()) return;
      }
    }
  }
}

TEST(MatmulSizes, ZeroMNOrBatchGivesAnEmptyResult) {
  for (const DataType type : kTypes) {
    for (const auto& [a, b, d] : {std::tuple<Dims, Dims, Dims>{{0, 5}, {5, 7}, {0, 7}},
                                  {{3, 5}, {5, 0}, {3, 0}},
                                  {{0, 3, 5}, {5, 7}, {0, 3, 7}},
                                  {{3, 5}, {2, 0, 5, 7}, {2, 0, 3, 7}},
                                  {{0, 0}, {0, 0}, {0, 0}}}) {
      MatmulCase c;
      Random random(1);
      SetNormal(c.p.a, c.a, type, a, random);
      SetNormal(c.p.b, c.b, type, b, random);
      SCOPED_TRACE(c.ToString());
      const auto reply = SharedDaemon::client().Matmul(c.ClientArgs());
      ASSERT_TRUE(reply.ok()) << reply.status();
      EXPECT_EQ(reply->d.shape(), std::vector<std::int64_t>(d.begin(), d.end()));
      EXPECT_EQ(reply->d.bytes().size(), 0u);
    }
  }
}

// Nothing to sum: act(beta * C + bias), and zeros without them.
TEST(MatmulSizes, ZeroKIsTheEpilogueAlone) {
  for (const DataType type : kTypes) {
    for (const Activation activation : kActivations) {
      for (int parts = 0; parts < 4; ++parts) {
        MatmulCase c = MakeMatmul(type, 9, 21, 0);
        Random random(3);
        c.p.activation = activation;
        if (parts & 1) SetC(c, 0.5, {9, 21}, random);
        if (parts & 2) SetBias(c, c.OutputType(), 21, random);
        SCOPED_TRACE("seed 3 " + c.ToString());
        const Bits d = AskAndCheck(c);
        if (parts == 0) {
          EXPECT_THAT(d, ::testing::Each(std::byte{0}));
        }
      }
    }
  }
}

// numpy's rules: dimensions align at the right, a missing one or a 1 repeats; C broadcasts to the result's.
TEST(MatmulBatch, EveryKindOfBroadcast) {
  const std::tuple<Dims, Dims, Dims> batches[] = {
      {{}, {}, {}},
      {{4}, {4}, {4}},
      {{4}, {}, {}},
      {{}, {4}, {1}},
      {{1}, {4}, {4}},
      {{4}, {1}, {1}},
      {{1}, {1}, {1}},
      {{2, 3}, {2, 3}, {2, 1}},
      {{2, 1}, {1, 3}, {1, 3}},
      {{2, 1}, {3}, {3}},
      {{3}, {2, 1}, {2, 3}},
      {{1, 3}, {2, 3}, {}},
      {{2, 3}, {}, {1, 1}},
      {{}, {2, 3}, {2, 3}},
      {{2, 3, 2}, {2, 1, 2}, {3, 1}},
      {{2, 1, 2}, {3, 1}, {2, 3, 2}},
      {{1, 1, 1}, {2, 3, 2}, {1, 3, 1}},
      {{0}, {1}, {0}},
      {{2, 0}, {1}, {}},
      {{1, 3}, {0, 1}, {0, 3}},
  };
  std::uint64_t seed = 600;
  for (const DataType type : kTypes) {
    for (const auto& [a, b, d] : batches) {
      for (int transposes = 0; transposes < 4; ++transposes) {
        ++seed;
        Random random(seed);
        const auto with = [](Dims batch, std::int64_t rows, std::int64_t cols, bool transpose) {
          batch.push_back(transpose ? cols : rows);
          batch.push_back(transpose ? rows : cols);
          return batch;
        };
        MatmulCase c;
        c.p.transpose_a = transposes & 1;
        c.p.transpose_b = transposes & 2;
        const std::int64_t m = seed % 3 == 0 ? 1 : 5;  // rows of a batch may be taken together
        SetNormal(c.p.a, c.a, type, with(a, m, 33, c.p.transpose_a), random);
        SetNormal(c.p.b, c.b, type, with(b, 33, 19, c.p.transpose_b), random);
        if (seed % 2) SetC(c, 0.5, with(d, m, 19, false), random);
        SCOPED_TRACE("seed " + std::to_string(seed) + " " + c.ToString());
        AskAndCheck(c);
        if (HasFailure()) return;
      }
    }
  }
}

}  // namespace
}  // namespace kernd::testing
