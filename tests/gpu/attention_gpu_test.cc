// Every attention variant of the build that runs on the device, against the fp64 reference. What a row may depend on,
// bit for bit: attention_gpu_contract_test.cc.
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/gpu/attention_gpu_case.h"

namespace kernd::gpu {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

class AttentionGpu : public DeviceTest {
 protected:
  // Runs the case on every variant that takes its dtype, against the reference.
  void Check(const Case& c) {
    SCOPED_TRACE(Describe(c));
    const auto expected = reference::AttentionValues(c.p, c.Args());
    ASSERT_TRUE(expected.ok()) << expected.status();
    const OnDevice operands(c);
    for (const AttentionVariant& variant : AttentionVariants()) {
      if (!Takes(variant, c.p)) continue;
      SCOPED_TRACE(variant.info.name);
      const Result result = Compute(variant, c, operands);
      ExpectMatches(c, result.o, result.lse, *expected);
      EXPECT_TRUE(result == Compute(variant, c, operands)) << "two runs differ";
    }
  }
};

// The parameter picks the seeds: one block at a time is quick enough for the sanitizers.
class AttentionGpuRandom : public AttentionGpu, public ::testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(Blocks, AttentionGpuRandom, ::testing::Range(0, 12));

TEST_P(AttentionGpuRandom, Problems) {
  for (int i = 0; i < 30 && !HasFailure(); ++i) {
    const std::uint64_t seed = static_cast<std::uint64_t>(GetParam()) * 30 + static_cast<std::uint64_t>(i) + 1;
    SCOPED_TRACE("seed " + std::to_string(seed));
    Check(RandomCase(seed));
  }
}

TEST_P(AttentionGpuRandom, LongKeys) {
  for (int i = 0; i < 12 && !HasFailure(); ++i) {
    const std::uint64_t seed = static_cast<std::uint64_t>(GetParam()) * 12 + static_cast<std::uint64_t>(i) + 10001;
    SCOPED_TRACE("seed " + std::to_string(seed));
    Check(RandomCase(seed, true));
  }
}

// The same with what tensor cores take, so that they take all of it.
TEST_P(AttentionGpuRandom, TensorCoreProblems) {
  for (int i = 0; i < 30 && !HasFailure(); ++i) {
    const std::uint64_t seed = static_cast<std::uint64_t>(GetParam()) * 30 + static_cast<std::uint64_t>(i) + 20001;
    SCOPED_TRACE("seed " + std::to_string(seed));
    Check(RandomCase(seed, i % 3 == 2, TensorCoreChoices()));
  }
}

// Without what kernels for SM 9.0 do not take.
TEST_P(AttentionGpuRandom, PositionalProblems) {
  for (int i = 0; i < 30 && !HasFailure(); ++i) {
    const std::uint64_t seed = static_cast<std::uint64_t>(GetParam()) * 30 + static_cast<std::uint64_t>(i) + 40001;
    SCOPED_TRACE("seed " + std::to_string(seed));
    Case c = RandomCase(seed, false, TensorCoreChoices());
    c.p.mask.reset();
    c.p.bias.reset();
    c.p.alibi_slopes.clear();
    Check(c);
  }
}

TEST_F(AttentionGpu, Lengths) {
  const std::int64_t lengths[] = {0, 1, 3, 4, 5, 16, 17, 63, 64, 65, 127, 128, 129, 257};
  for (const std::int64_t q_rows : lengths) {
    for (const std::int64_t kv_rows : lengths) {
      for (const MaskAlignment alignment :
           {MaskAlignment::kUnset, MaskAlignment::kTopLeft, MaskAlignment::kBottomRight}) {
        Case c = PlainCase({.q_rows = q_rows, .kv_rows = kv_rows, .d = 8, .dv = 8});
        c.p.alignment = alignment;
        c.p.causal = alignment != MaskAlignment::kUnset;
        SCOPED_TRACE(Name(alignment));
        Check(c);
      }
    }
  }
}

// Around the tiles' channels and columns, and the pairs that models have.
TEST_F(AttentionGpu, HeadDims) {
  std::vector<std::pair<std::int64_t, std::int64_t>> dims = {{192, 128}, {576, 512}, {1, 300}, {300, 1}, {64, 65}};
  for (const std::int64_t d :
       {0, 1, 2, 7, 8, 9, 31, 32, 33, 63, 64, 65, 80, 96, 100, 127, 128, 129, 192, 255, 256, 300, 512}) {
    dims.emplace_back(d, d);
  }
  for (const DataType type : {DataType::kF32, DataType::kF16, DataType::kBF16, DataType::kF8E4M3}) {
    for (const auto& [d, dv] : dims) {
      for (const std::int64_t q_rows : {3, 70}) {
        Case c = PlainCase({.q_heads = 2, .kv_heads = 2, .q_rows = q_rows, .kv_rows = 300, .d = d, .dv = dv}, 3, type);
        c.p.scale = 0.1;
        Check(c);
      }
    }
  }
}

// Magnitudes at which naive formulas overflow, saturate or lose the answer.
TEST_F(AttentionGpu, ExtremeLogits) {
  for (const std::int64_t q_rows : {2, 20, 70}) {
    for (const double scale : {50.0, -50.0, 1e4, 1e30}) {
      Case c = PlainCase({.q_rows = q_rows, .kv_rows = 440, .d = 4, .dv = 4}, 5);
      c.p.scale = scale;
      for (const double cap : {0.0, 20.0, 1e-60, 1e60}) {
        if (cap > 0) c.p.softcap = cap;
        SCOPED_TRACE(std::to_string(scale) + " capped at " + std::to_string(cap));
        Check(c);
      }
    }
  }
}

TEST_F(AttentionGpu, SinkFarAboveOrBelowTheLogits) {
  for (const std::int64_t q_rows : {1, 70}) {
    for (const float sink : {-1000.0f, -100.0f, 0.0f, 100.0f, 1000.0f}) {
      Case c = PlainCase({.q_rows = q_rows, .kv_rows = 440});
      c.p.sinks = {sink};
      SCOPED_TRACE(sink);
      Check(c);
    }
  }
}

// Rows of every kind that see no key, each of them zero and minus infinity to the bit; prefill, and cut along the keys.
TEST_F(AttentionGpu, EmptyRows) {
  for (const std::int64_t scale : {1, 30}) {
    Case c = PlainCase({.batch = 2, .q_heads = 2, .kv_heads = 1, .q_rows = 40, .kv_rows = 20 * scale});
    c.p.window_left = 5;
    c.p.window_right = 0;
    c.p.alignment = scale == 1 ? MaskAlignment::kBottomRight : MaskAlignment::kTopLeft;
    c.p.q_lengths = {40, 30};
    c.p.kv_lengths = {20 * scale, 0};
    c.p.sinks = {1, -std::numeric_limits<float>::infinity()};
    Check(c);
    const auto expected = reference::AttentionValues(c.p, c.Args());
    const OnDevice operands(c);
    for (const AttentionVariant& variant : AttentionVariants()) {
      if (!Takes(variant, c.p)) continue;
      SCOPED_TRACE(variant.info.name);
      const Result result = Compute(variant, c, operands);
      for (std::int64_t row = 0; row < 160; ++row) {
        if (expected->lse.value[static_cast<std::size_t>(row)] != -kInfinity) continue;
        EXPECT_EQ(reference::Load(DataType::kF32, result.lse.data(), row), -kInfinity) << row;
        for (std::int64_t i = row * 16; i < row * 16 + 16; ++i) {
          const double o = reference::Load(DataType::kF32, result.o.data(), i);
          EXPECT_TRUE(o == 0 && !std::signbit(o)) << "row " << row << ": " << o;
        }
      }
    }
  }
}

// More sequences than a grid has in y or z, and a row each.
TEST_F(AttentionGpu, ManySequences) {
#ifdef KERND_EMULATOR
  GTEST_SKIP() << "SKIPPED: 70000 blocks take the emulator minutes, and it has no limit of the grid";
#endif
  for (const AttentionLayout layout : {AttentionLayout::kBHLD, AttentionLayout::kPacked}) {
    constexpr std::int64_t kBatch = 70000;
    Random random(8);
    Case c;
    const bool packed = layout == AttentionLayout::kPacked;
    SetTensors(c, DataType::kF16, layout,
               {.batch = kBatch, .q_rows = packed ? kBatch : 1, .kv_rows = packed ? 2 * kBatch : 2, .d = 2, .dv = 3},
               random, false);
    for (std::int64_t b = 0; packed && b <= kBatch; ++b) {
      // Every third sequence has two queries, the one before it none; keys come in ones and threes.
      c.p.q_offsets.push_back(b % 3 == 2 ? b - 1 : b);
      c.p.kv_offsets.push_back(2 * b + (b % 2 != 0 && b < kBatch ? 1 : 0));
    }
    if (packed) c.p.q_offsets.back() = kBatch;
    Check(c);
  }
}

// Sequences of very different lengths in one packed call: some cut, some not, some empty.
TEST_F(AttentionGpu, RaggedPacked) {
  for (const DataType type : {DataType::kF32, DataType::kBF16}) {
    Random random(17);
    Case c;
    c.p.q_offsets = {0, 1, 1, 4, 204, 205, 270, 272};
    c.p.kv_offsets = {0, 1500, 1501, 1501, 1800, 2100, 2150, 6000};
    SetTensors(c, type, AttentionLayout::kPacked,
               {.q_heads = 6, .kv_heads = 2, .q_rows = 272, .kv_rows = 6000, .d = 40, .dv = 72}, random, true);
    for (const bool causal : {false, true}) {
      c.p.causal = causal;
      c.p.alignment = MaskAlignment::kBottomRight;
      Check(c);
    }
  }
}

// A query of many heads of one kv head, as in multi-query attention, around the limits of cutting along the keys.
TEST_F(AttentionGpu, ManyHeadsOfOneKeyHead) {
  for (const std::int64_t heads : {63, 64, 65, 127, 128, 129}) {
    Check(PlainCase({.batch = 2, .q_heads = heads, .kv_heads = 1, .q_rows = 1, .kv_rows = 900, .d = 20, .dv = 12}, 4,
                    DataType::kF16));
  }
}

// Offsets past 2^31 elements, between the sequences and between the rows.
TEST_F(AttentionGpu, LargeStrides) {
  constexpr std::int64_t kFar = (std::int64_t{1} << 31) + 24, kKeys = 3, kD = 8;
  for (const auto& [type, rows] :
       {std::pair{DataType::kF8E5M2, false}, {DataType::kF8E5M2, true}, {DataType::kF16, true}}) {
    const std::int64_t size = ElementBytes(type);
    const Case small = PlainCase({.batch = 2, .q_rows = 2, .kv_rows = kKeys, .d = kD, .dv = kD}, 6, type);
    Case c = small;
    c.p.k.strides = rows ? Dims{kD, kD, kFar, 1} : Dims{kFar, kD, kD, 1};
    c.p.v.strides = c.p.k.strides;
    OnDevice operands(small);
    for (const auto& [buffer, operand] : {std::pair{&operands.k, &small.k}, std::pair{&operands.v, &small.v}}) {
      *buffer = DeviceBuffer((rows ? kFar * (kKeys - 1) + 2 * kD : kFar + kKeys * kD) * size);
      for (std::int64_t b = 0; b < 2; ++b) {
        for (std::int64_t i = 0; i < kKeys; ++i) {
          buffer->Upload((b * c.p.k.strides[0] + i * c.p.k.strides[2]) * size,
                         static_cast<const std::byte*>(operand->data()) + (b * kKeys + i) * kD * size, kD * size);
        }
      }
    }
    const auto expected = reference::AttentionValues(small.p, small.Args());
    for (const AttentionVariant& variant : AttentionVariants()) {
      if (!Takes(variant, c.p)) continue;
      SCOPED_TRACE(variant.info.name + (rows ? ", rows" : ", sequences"));
      const Result result = Compute(variant, c, operands);
      ExpectMatches(c, result.o, result.lse, *expected);
    }
  }
}

TEST_F(AttentionGpu, WorkspaceAndChoice) {
#ifdef KERND_EMULATOR
  GTEST_SKIP() << "SKIPPED: the emulator's table has no naive kernels";
#endif
  const DeviceInfo device = Device();
  const auto prefill = PlainCase({.q_heads = 2, .kv_heads = 2, .q_rows = 1000, .kv_rows = 1000, .d = 4, .dv = 4}).p;
  const auto decode = PlainCase({.batch = 3, .q_heads = 2, .kv_heads = 2, .kv_rows = 1000, .d = 4, .dv = 4}).p;
  for (const AttentionProblem& p : {prefill, decode}) {
    const AttentionGeometry g = *Validate(p);
    const auto choice = Choose(AttentionVariants(), p, g, KernelRequest{}, device);
    ASSERT_TRUE(choice.ok()) << choice.status();
    EXPECT_EQ(choice->variant->info.name.find("naive"), std::string::npos) << choice->variant->info.name;
    const auto naive = Choose(AttentionVariants(), p, g, KernelRequest{.name = "attention_f32_sm75_naive"}, device);
    ASSERT_TRUE(naive.ok()) << naive.status();
    // Its workspace is the matrix of scores.
    const std::int64_t scores =
        NaiveBytes(p, g) - p.q.bytes() - p.k.bytes() - p.v.bytes() - g.o_spec.bytes() - g.lse_spec->bytes();
    EXPECT_EQ(naive->variant->workspace_bytes(p, g, device), (scores + 255) / 256 * 256);
    const auto simt = Choose(AttentionVariants(), p, g, KernelRequest{.name = "attention_f32_sm75_simt"}, device);
    ASSERT_TRUE(simt.ok()) << simt.status();
    // Uncut: nothing. Cut: four parts of each of six rows, with maximum, sum and four columns each: 576 bytes.
    EXPECT_EQ(simt->variant->workspace_bytes(p, g, device), g.max_q_rows == 1 ? 768 : 0);
  }
}

}  // namespace
}  // namespace kernd::gpu
