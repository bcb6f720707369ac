// Long steps in slices: whatever is cut, each part of the result comes from exactly one slice, aligned, and with the
// whole's bits.
#include "server/gpu/slices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "kernels/reference/matmul.h"
#include "kernels/reference/random.h"
#include "tests/support/fake_gpu.h"
#include "tests/support/fake_kernels.h"

namespace kernd::gpu {
namespace {

using testing::FakeGpu;
using testing::FakeKernels;

TensorSpec F32(Dims shape, Dims strides = {}) {
  return {.dtype = DataType::kF32, .shape = std::move(shape), .strides = std::move(strides)};
}

// Aligned memory, as a block of the device is.
class Buffer {
 public:
  explicit Buffer(std::int64_t floats, float start)
      : data_(static_cast<std::size_t>(floats) + 64), first_(data_.data()) {
    while (reinterpret_cast<std::uintptr_t>(first_) % kDeviceAlignment != 0) ++first_;
    for (std::int64_t i = 0; i < floats; ++i) first_[i] = start + 0.25f * static_cast<float>(i % 29);
    floats_ = floats;
  }
  float* data() { return first_; }
  std::vector<float> values() const { return {first_, first_ + floats_}; }

 private:
  std::vector<float> data_;
  float* first_;
  std::int64_t floats_ = 0;
};

std::int64_t Span(const TensorSpec& spec) {
  std::int64_t last = 0;
  const Dims strides = spec.EffectiveStrides();
  for (int i = 0; i < spec.rank(); ++i) last += (spec.shape[i] - 1) * strides[i];
  return last + 1;
}

class SlicesTest : public ::testing::Test {
 protected:
  FakeGpu gpu_;
  KernelTables kernels_ = FakeKernels(gpu_);
  std::vector<std::byte> workspace_ = std::vector<std::byte>(kDeviceAlignment);

  // Runs whole and slices of at most `rows` rows; gives the number of slices. Each result must be the same.
  std::size_t Compare(const MatmulProblem& p, double rows) {
    const auto g = Validate(p);
    EXPECT_TRUE(g.ok()) << g.status();
    const MatmulVariant& variant = kernels_.matmul[0];
    Buffer a(Span(p.a), 1), b(Span(p.b), -2), c(p.c ? Span(*p.c) : 1, 3), bias(g->n, 0.5f);
    Buffer d(g->d.elements(), 0), expected(g->d.elements(), 0);
    std::fill_n(d.data(), g->d.elements(), -7.0f);
    const MatmulArgs args = {.a = a.data(),
                             .b = b.data(),
                             .c = p.c ? c.data() : nullptr,
                             .bias = p.bias ? bias.data() : nullptr,
                             .d = d.data()};
    MatmulArgs whole = args;
    whole.d = expected.data();
    EXPECT_TRUE(reference::Matmul(p, whole).ok());
    const std::vector<MatmulSlice> slices = SlicesOf(p, *g, variant, gpu_.info, rows * gpu_.microseconds_a_row);
    std::int64_t next = 0;
    for (const MatmulSlice& slice : slices) {
      EXPECT_EQ(slice.d, next) << "in the order of the result, without gaps";
      next += slice.geometry.d.bytes();
      const MatmulArgs part = slice.Of(args);
      for (const void* pointer : {part.a, part.b, part.c, const_cast<const void*>(part.d)}) {
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(pointer) % kDeviceAlignment, 0u);
      }
      EXPECT_TRUE(reference::Matmul(slice.problem, part).ok());
    }
    if (!slices.empty()) {
      EXPECT_EQ(next, g->d.bytes());
      EXPECT_EQ(d.values(), expected.values());
    }
    return slices.size();
  }

  std::size_t Compare(const AttentionProblem& p, double rows) {
    const auto g = Validate(p);
    EXPECT_TRUE(g.ok()) << g.status();
    const AttentionVariant& variant = kernels_.attention[0];
    Buffer q(Span(p.q), 1), k(Span(p.k), -2), v(Span(p.v), 3), bias(p.bias ? Span(*p.bias) : 1, 0.5f);
    std::vector<char> mask(p.mask ? static_cast<std::size_t>(p.mask->elements()) : 0);
    for (std::size_t i = 0; i < mask.size(); ++i) mask[i] = i % 3 != 0;
    const std::int64_t lse_floats = g->lse_spec ? g->lse_spec->elements() : 1;
    const AttentionTableLayout layout(p, *g);
    Buffer tables(layout.bytes() / 4, 0);
    layout.Write(p, *g, reinterpret_cast<std::byte*>(tables.data()));
    const AttentionTables on_device = layout.At(reinterpret_cast<const std::byte*>(tables.data()));
    const auto run = [&](const std::vector<AttentionSlice>& slices) {
      Buffer o(g->o_spec.elements(), 0), lse(lse_floats, 0);
      std::fill_n(o.data(), g->o_spec.elements(), -7.0f);
      std::fill_n(lse.data(), lse_floats, -7.0f);
      const AttentionArgs args = {.q = q.data(),
                                  .k = k.data(),
                                  .v = v.data(),
                                  .mask = p.mask ? mask.data() : nullptr,
                                  .bias = p.bias ? bias.data() : nullptr,
                                  .o = o.data(),
                                  .lse = p.want_lse ? lse.data() : nullptr};
      const auto stream = gpu_.CreateStream();
      const auto launch = [&](const AttentionGeometry& part, const AttentionArgs& at, const AttentionTables& its) {
        for (const void* pointer : {at.q, at.k, at.v, const_cast<const void*>(at.o)}) {
          EXPECT_EQ(reinterpret_cast<std::uintptr_t>(pointer) % kDeviceAlignment, 0u);
        }
        EXPECT_TRUE(variant.launch(p, part, gpu_.info, at, its, workspace_.data(), *stream).ok());
      };
      if (slices.empty()) launch(*g, args, on_device);
      for (const AttentionSlice& slice : slices) launch(slice.geometry, slice.Of(args), slice.Of(on_device));
      gpu_.Destroy(*stream);
      std::vector<float> out = o.values();
      const std::vector<float> more = lse.values();
      out.insert(out.end(), more.begin(), more.end());
      return out;
    };
    const std::vector<AttentionSlice> slices = SlicesOf(p, *g, variant, gpu_.info, rows * gpu_.microseconds_a_row);
    for (const AttentionSlice& slice : slices) {
      EXPECT_GT(slice.geometry.batch, 0);
      EXPECT_EQ(slice.geometry.q_heads, slice.geometry.kv_heads * g->heads_per_kv);
    }
    EXPECT_EQ(run(slices), run({}));
    return slices.size();
  }
};

TEST_F(SlicesTest, ShortProblemsAreWhole) {
  EXPECT_EQ(Compare({.a = F32({512, 3}), .b = F32({3, 5})}, 512), 0u);
  EXPECT_EQ(Compare({.a = F32({0, 3}), .b = F32({3, 5})}, 0), 0u);
  EXPECT_EQ(Compare({.q = F32({2, 4, 8, 8}), .k = F32({2, 4, 8, 8}), .v = F32({2, 4, 8, 8})}, 64), 0u);
}

TEST_F(SlicesTest, MatmulByRows) {
  EXPECT_EQ(Compare({.a = F32({1000, 3}), .b = F32({3, 5})}, 300), 4u);
  MatmulProblem p{.a = F32({7, 1000}), .b = F32({5, 7}), .c = F32({1000, 5}), .bias = F32({5})};
  p.transpose_a = p.transpose_b = true;
  p.beta = 0.5;
  p.activation = Activation::kRelu;
  EXPECT_EQ(Compare(p, 300), 4u);
  p.a.strides = {1003, 1};
  p.c->strides = {6, 1};
  EXPECT_EQ(Compare(p, 1), 4u) << "256 rows are not cut";
}

TEST_F(SlicesTest, MatmulByBatch) {
  // 7 x 5 floats are 140 bytes: every 64th item is aligned.
  EXPECT_EQ(Compare({.a = F32({300, 7, 3}), .b = F32({3, 5})}, 500), 5u);
  EXPECT_EQ(Compare({.a = F32({3, 100, 8, 8}), .b = F32({100, 8, 8})}, 100), 36u)
      << "the second dimension once the first is one";
  EXPECT_EQ(Compare({.a = F32({1, 4, 1, 64, 8}), .b = F32({6, 1, 5, 8, 64})}, 200), 48u);
  EXPECT_EQ(Compare({.a = F32({3, 512, 8}), .b = F32({3, 8, 8})}, 256), 6u) << "rows of one item";
}

TEST_F(SlicesTest, AttentionByBatchAndHeads) {
  AttentionProblem p{.q = F32({6, 4, 16, 16}), .k = F32({6, 2, 24, 16}), .v = F32({6, 2, 24, 16})};
  p.want_lse = true;
  EXPECT_EQ(Compare(p, 200), 2u);
  EXPECT_EQ(Compare(p, 64), 6u);
  EXPECT_EQ(Compare(p, 1), 12u) << "a group of heads is not cut: its size shows in the bits";
  p.layout = AttentionLayout::kBLHD;
  p.q = F32({6, 16, 4, 16});
  p.k = p.v = F32({6, 24, 4, 16});
  p.causal = true;
  p.alignment = MaskAlignment::kBottomRight;
  EXPECT_EQ(Compare(p, 1), 6u) << "heads of 64 bytes: four to a slice that is aligned";
  p.q = p.k = p.v = F32({1, 16, 4, 64});
  EXPECT_EQ(Compare(p, 1), 4u);
}

TEST_F(SlicesTest, AttentionWithEverything) {
  AttentionProblem p{.q = F32({3, 4, 5, 64}), .k = F32({3, 2, 9, 64}), .v = F32({3, 2, 9, 64})};
  p.mask = TensorSpec{.dtype = DataType::kBool, .shape = {3, 1, 5, 9}};
  p.bias = F32({1, 4, 5, 9});
  p.causal = true;
  p.window_left = 3;
  p.alignment = MaskAlignment::kBottomRight;
  p.q_lengths = {5, 3, 0};
  p.kv_lengths = {9, 4, 7};
  p.alibi_slopes = {0.5f, 0.25f, 0.125f, 1};
  p.sinks = {0.1f, -0.5f, 2, 0};
  p.softcap = 30;
  p.want_lse = true;
  EXPECT_EQ(Compare(p, 1), 6u);
}

TEST_F(SlicesTest, PackedAttention) {
  AttentionProblem p{.q = F32({20, 4, 64}), .k = F32({33, 2, 64}), .v = F32({33, 2, 64})};
  p.layout = AttentionLayout::kPacked;
  p.q_offsets = {0, 3, 3, 11, 20};
  p.kv_offsets = {0, 7, 9, 9, 33};
  p.causal = true;
  p.alignment = MaskAlignment::kTopLeft;
  p.want_lse = true;
  EXPECT_EQ(Compare(p, 1), 7u) << "two of each sequence, but one of that without rows";
}

TEST_F(SlicesTest, ThereAreNotTooMany) {
  const MatmulProblem p{.a = F32({400'000, 1}), .b = F32({1, 1})};
  const auto g = Validate(p);
  const std::size_t slices = SlicesOf(p, *g, kernels_.matmul[0], gpu_.info, 1e-9).size();
  EXPECT_GT(slices, kMaxSlices / 2u);
  EXPECT_LE(slices, 2u * kMaxSlices);
}

TEST_F(SlicesTest, APartThatTheVariantDoesNotRunLeavesTheProblemWhole) {
  MatmulVariant variant = kernels_.matmul[0];
  variant.why_not = [](const MatmulProblem&, const MatmulGeometry& g, const DeviceInfo&) -> std::string {
    return g.m == 488 ? "not 488" : "";
  };
  const MatmulProblem p{.a = F32({1000, 3}), .b = F32({3, 5})};
  EXPECT_TRUE(SlicesOf(p, *Validate(p), variant, gpu_.info, 1e-9).empty());
}

}  // namespace
}  // namespace kernd::gpu
