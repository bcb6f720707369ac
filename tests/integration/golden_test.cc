// What others computed, put to a real daemon: the goldens of PyTorch on every kernel that runs them, and a layer of a
// real model over a real text.
#include <algorithm>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/reference/attention.h"
#include "kernels/reference/convert.h"
#include "kernels/reference/matmul.h"
#include "kernels/reference/tolerance.h"
#include "tests/support/golden.h"
#include "tests/support/problem_call.h"

namespace kernd::testing {
namespace {

const auto* const kDaemon = ::testing::AddGlobalTestEnvironment(new SharedDaemon);

constexpr AttentionLayout kLayouts[] = {AttentionLayout::kBHLD, AttentionLayout::kBLHD, AttentionLayout::kPacked};

class MatmulGolden : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, MatmulGolden, ::testing::ValuesIn(GoldenNames("matmul_")),
                         [](const auto& test) { return test.param; });

// Against what PyTorch computed; the reference gives only the magnitudes that the bounds need.
TEST_P(MatmulGolden, IsMet) {
  const Golden golden = ReadGolden(GetParam());
  const MatmulCase c = MatmulOf(golden);
  SCOPED_TRACE(c.ToString());
  const auto values = reference::MatmulValues(c.p, c.Args());
  ASSERT_TRUE(values.ok()) << values.status();
  const std::vector<double> expected = golden.Doubles("expected_d"), bounds = reference::MatmulBounds(c.p, *values);
  const Bits d = Ask(c);
  ASSERT_EQ(std::ssize(d), std::ssize(expected) * ElementBytes(c.OutputType()));
  ASSERT_EQ(bounds.size(), expected.size());
  const auto result = reference::Compare(c.OutputType(), d.data(), expected, bounds);
  EXPECT_TRUE(result.ok()) << result.ToString();
}

// Those for operands of this type, by their names.
std::vector<std::string> AttentionKernels(DataType type) {
  std::vector<std::string> names;
  for (const client::KernelInfo& kernel : SharedDaemon::kernels()) {
    if (kernel.name.starts_with("attention_" + std::string(Token(type)) + "_")) names.push_back(kernel.name);
  }
  return names;
}

class AttentionGolden : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, AttentionGolden, ::testing::ValuesIn(GoldenNames("attention_")),
                         [](const auto& test) { return test.param; });

// Against what PyTorch computed; the reference gives only the magnitudes that the bounds need. On every kernel that
// runs the problem: not all take every option.
TEST_P(AttentionGolden, IsMet) {
  const Golden golden = ReadGolden(GetParam());
  const AttentionCase c = AttentionOf(golden);
  SCOPED_TRACE(c.ToString());
  auto expected = reference::AttentionValues(c.p, c.Args());
  ASSERT_TRUE(expected.ok()) << expected.status();
  const std::vector<double> o_bounds = reference::OutputBounds(c.p, *expected);
  const std::vector<double> lse_bounds = reference::LseBounds(c.p, *expected);
  int ran = 0;
  for (const std::string& kernel : AttentionKernels(c.p.q.dtype)) {
    SCOPED_TRACE(kernel);
    if (!Runs(c, kernel)) continue;
    ++ran;
    const AttentionBits bits = Ask(c, kernel);
    ASSERT_EQ(std::ssize(bits.o), std::ssize(o_bounds) * ElementBytes(c.OutputType()));
    ASSERT_EQ(bits.lse.size(), lse_bounds.size() * sizeof(float));
    const auto o = reference::Compare(c.OutputType(), bits.o.data(), golden.Doubles("expected_o"), o_bounds);
    EXPECT_TRUE(o.ok()) << "O: " << o.ToString();
    const auto lse = reference::Compare(DataType::kF32, bits.lse.data(), golden.Doubles("expected_lse"), lse_bounds);
    EXPECT_TRUE(lse.ok()) << "LSE: " << lse.ToString();
  }
  EXPECT_GE(ran, 2) << "two kernels take every problem";
}

// One layer of a real model over a real text, in every layout.
TEST(AttentionMiniLm, IsMet) {
  const GoldenTensor q = ReadNpy("minilm/q.npy"), k = ReadNpy("minilm/k.npy"), v = ReadNpy("minilm/v.npy"),
                     o = ReadNpy("minilm/expected_o.npy");
  ASSERT_EQ(q.spec.shape, (Dims{1, 12, 180, 32}));
  const auto at = [](const GoldenTensor& tensor, std::int64_t head, std::int64_t row, std::int64_t channel) {
    return reference::Load(DataType::kF32, tensor.bytes.data(), (head * 180 + row) * 32 + channel);
  };
  for (const AttentionLayout layout : kLayouts) {
    AttentionCase c = MakeAttention({1, 12, 12, 180, 180, 32, 32}, 1, DataType::kF32, layout);
    const auto load = [&](const GoldenTensor& tensor) {
      return [&](const Dims& i) {
        if (layout == AttentionLayout::kBHLD) return at(tensor, i[1], i[2], i[3]);
        return layout == AttentionLayout::kBLHD ? at(tensor, i[2], i[1], i[3]) : at(tensor, i[1], i[0], i[2]);
      };
    };
    c.q.Fill(load(q));
    c.k.Fill(load(k));
    c.v.Fill(load(v));
    SCOPED_TRACE(c.ToString());
    const AttentionBits bits = AskAndCheck(c);
    ASSERT_EQ(std::ssize(bits.o), c.p.q.bytes());
    Operand expected(c.p.q, 0);
    expected.Fill(load(o));
    const std::vector<double> values = reference::LoadAll(DataType::kF32, expected.data(), c.p.q.elements());
    const std::vector<double> bounds(values.size(), 1e-5);
    const auto comparison = reference::Compare(DataType::kF32, bits.o.data(), values, bounds);
    EXPECT_TRUE(comparison.ok()) << comparison.ToString();
  }
}

// What no kernel is excused from: a golden of its own.
TEST(Goldens, EveryAttentionKernelRunsOne) {
  std::vector<AttentionCase> cases;
  for (const std::string& name : GoldenNames("attention_")) cases.push_back(AttentionOf(ReadGolden(name)));
  for (const DataType type : {DataType::kF32, DataType::kF16, DataType::kBF16, DataType::kF8E4M3, DataType::kF8E5M2}) {
    for (const std::string& kernel : AttentionKernels(type)) {
      EXPECT_TRUE(std::any_of(cases.begin(), cases.end(), [&](const AttentionCase& c) {
        return c.p.q.dtype == type && Runs(c, kernel);
      })) << kernel;
    }
  }
}

TEST(Goldens, AreAllThere) {
  EXPECT_GE(GoldenNames("attention_").size(), 55u);
  EXPECT_GE(GoldenNames("matmul_").size(), 45u);
}

}  // namespace
}  // namespace kernd::testing
