// What the refusal of a call that can never fit proposes instead: the largest that fits, against a search of every
// size.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <random>

#include "kernd/kernels/error.h"
#include "server/core/engine.h"
#include "server/core/fit.h"

namespace kernd::core {
namespace {

TensorSpec F32(Dims shape) {
  return {.dtype = DataType::kF32, .shape = std::move(shape)};
}

// Bytes of a step's operands and results; counts how often it is asked.
struct Planner {
  std::int64_t limit = 0;
  std::function<double(double)> uneven = [](double bytes) { return bytes; };
  int questions = 0;
  std::int64_t sequences = 0;  // asked about, in all

  double operator()(const Program& program) {
    ++questions;
    const double bytes = std::visit([this](const auto& step) { return BytesOf(step.problem); }, program.steps.at(0));
    return uneven(bytes) / static_cast<double>(limit);
  }

 private:
  double BytesOf(const MatmulProblem& p) {
    const auto g = Validate(p);
    EXPECT_TRUE(g.ok()) << g.status();
    if (!g.ok()) return std::numeric_limits<double>::infinity();
    double bytes = 0;
    for (const TensorSpec& spec : {p.a, p.b, g->d}) bytes += static_cast<double>(spec.bytes());
    if (p.c) bytes += static_cast<double>(p.c->bytes());
    return bytes;
  }
  double BytesOf(const AttentionProblem& p) {
    const auto g = Validate(p);
    EXPECT_TRUE(g.ok()) << g.status();
    if (!g.ok()) return std::numeric_limits<double>::infinity();
    sequences += g->batch;
    double bytes = 0;
    for (const TensorSpec& spec : {p.q, p.k, p.v, g->o_spec}) bytes += static_cast<double>(spec.bytes());
    for (const auto& spec : {p.mask, p.bias, g->lse_spec}) bytes += spec ? static_cast<double>(spec->bytes()) : 0;
    return bytes;
  }
};

Program Of(Step step) {
  Program program;
  program.steps.push_back(std::move(step));
  return program;
}

AttentionStep Padded(std::int64_t batch, std::int64_t q_length, std::int64_t kv_length, AttentionLayout layout) {
  const auto shape = [&](std::int64_t heads, std::int64_t length) -> Dims {
    if (layout == AttentionLayout::kBHLD) return {batch, heads, length, 8};
    return {batch, length, heads, 8};
  };
  AttentionStep step;
  AttentionProblem& p = step.problem;
  p.layout = layout;
  p.alignment = MaskAlignment::kBottomRight;
  p.q = F32(shape(4, q_length));
  p.k = p.v = F32(shape(2, kv_length));
  return step;
}

TEST(Fit, TheLargestBatchIsExact) {
  for (const AttentionLayout layout : {AttentionLayout::kBHLD, AttentionLayout::kBLHD}) {
    AttentionStep step = Padded(100, 16, 24, layout);
    AttentionProblem& p = step.problem;
    p.causal = p.want_lse = true;
    p.mask = TensorSpec{.dtype = DataType::kBool, .shape = {100, 1, 16, 24}};
    p.bias = F32({1, 4, 1, 24});
    p.q_lengths.assign(100, 7);
    p.kv_lengths.assign(100, 9);
    // Of a sequence: 4 (16 (4 8) 2 + 24 (2 8) 2 + 4 16) + 16 24 bytes; of the bias, 4 4 24.
    constexpr std::int64_t kOne = 4 * (16 * 32 * 2 + 24 * 16 * 2 + 4 * 16) + 16 * 24, kFixed = 4 * 4 * 24;
    for (const std::int64_t batch : {1, 2, 37, 98, 99}) {
      for (const std::int64_t spare : {std::int64_t{0}, kOne - 1}) {
        Planner planner = {.limit = kFixed + batch * kOne + spare};
        const Fit fit = FindFit(Of(step), std::ref(planner));
        EXPECT_EQ(fit.dimension, "batch") << batch;
        EXPECT_EQ(fit.size, batch) << spare;
        EXPECT_EQ(fit.text, "the largest batch that would fit is " + std::to_string(batch));
        EXPECT_LE(planner.questions, 8);
      }
    }
  }
}

TEST(Fit, ThenTheLongestSequence) {
  struct Case {
    std::int64_t batch, q_length, kv_length;
  };
  for (const AttentionLayout layout : {AttentionLayout::kBHLD, AttentionLayout::kBLHD}) {
    for (const Case& c : {Case{1, 4096, 4096}, Case{9, 4096, 4096}, Case{3, 1, 4096}, Case{3, 4096, 100}}) {
      AttentionStep step = Padded(c.batch, c.q_length, c.kv_length, layout);
      step.problem.mask = TensorSpec{.dtype = DataType::kBool, .shape = {1, 1, c.q_length, c.kv_length}};
      step.problem.q_lengths.assign(static_cast<std::size_t>(c.batch), c.q_length);
      for (const std::int64_t length : {1, 63, 99, 1000}) {
        const std::int64_t q = std::min(c.q_length, length), kv = std::min(c.kv_length, length);
        Planner planner = {.limit = 4 * (q * 32 * 2 + kv * 16 * 2) + q * kv};
        const Fit fit = FindFit(Of(step), std::ref(planner));
        EXPECT_EQ(fit.dimension, "length") << c.batch << " " << length;
        EXPECT_EQ(fit.size, length) << c.batch << " " << c.q_length << " " << c.kv_length;
      }
    }
  }
}

// Sequences of very different lengths: memory does not grow evenly with their number.
TEST(Fit, PackedSequencesAreCountedFromTheFirst) {
  for (const unsigned seed : {1u, 2u, 3u}) {
    std::mt19937 random(seed);
    AttentionStep step;
    AttentionProblem& p = step.problem;
    p.layout = AttentionLayout::kPacked;
    p.q_offsets = {0};
    for (int i = 0; i < 300; ++i) p.q_offsets.push_back(p.q_offsets.back() + (random() % 10 == 0 ? 2000 : 3));
    p.kv_offsets = p.q_offsets;
    p.q = F32({p.q_offsets.back(), 4, 8});
    p.k = p.v = F32({p.q_offsets.back(), 2, 8});
    for (const std::size_t batch : {1, 17, 150, 299}) {
      Planner planner = {.limit = p.q_offsets[batch] * 4 * (32 + 16) * 2};
      const Fit fit = FindFit(Of(step), std::ref(planner));
      EXPECT_EQ(fit.dimension, "batch");
      EXPECT_EQ(fit.size, static_cast<std::int64_t>(batch)) << "seed " << seed;
    }
    Planner planner = {.limit = 2 * 4 * (32 + 16) * 2};
    const Fit fit = FindFit(Of(step), std::ref(planner));
    EXPECT_EQ(fit.dimension, "length");
    EXPECT_EQ(fit.size, 2) << "seed " << seed;
  }
}

TEST(Fit, ScalesOfEightBitOperandsFollowTheBatch) {
  for (const std::size_t scales : {1u, 2u, 20u}) {
    AttentionStep step = Padded(10, 16, 16, AttentionLayout::kBHLD);
    AttentionProblem& p = step.problem;
    p.q.dtype = p.k.dtype = p.v.dtype = DataType::kF8E4M3;
    p.q_scale.assign(scales, 1.0f);
    // Of a sequence: 16 (32 + 16 + 16) bytes of operands, 2 16 32 of BF16 results.
    Planner planner = {.limit = 3 * (16 * 64 + 16 * 64)};
    EXPECT_EQ(FindFit(Of(step), std::ref(planner)).size, 3) << scales;
  }
}

TEST(Fit, MatmulByItsFirstBatchDimensionThenItsRows) {
  MatmulStep step;
  MatmulProblem& p = step.problem;
  p.a = F32({50, 3, 20, 4});
  p.b = F32({4, 5});
  p.c = F32({50, 3, 20, 5});
  p.beta = 1;
  const std::int64_t item = 4 * 3 * (20 * 4 + 20 * 5 + 20 * 5), fixed = 4 * 20;
  Planner planner = {.limit = fixed + 7 * item};
  Fit fit = FindFit(Of(step), std::ref(planner));
  EXPECT_EQ(fit.dimension, "batch");
  EXPECT_EQ(fit.size, 7);

  planner.limit = fixed + 4 * 3 * 6 * (4 + 5 + 5);
  fit = FindFit(Of(step), std::ref(planner));
  EXPECT_EQ(fit.dimension, "rows");
  EXPECT_EQ(fit.size, 6);

  // B alone is too large.
  planner.limit = fixed;
  EXPECT_EQ(FindFit(Of(step), std::ref(planner)).size, 0);
}

TEST(Fit, MatmulShortensWhatGoesWithTheRows) {
  MatmulStep step;
  MatmulProblem& p = step.problem;
  p.a = {.dtype = DataType::kI8, .shape = {16, 1000}};
  p.b = {.dtype = DataType::kI8, .shape = {16, 8}};
  p.transpose_a = true;
  p.output_dtype = DataType::kF32;
  for (const ScaleSpec::Kind kind : {ScaleSpec::Kind::kTensor, ScaleSpec::Kind::kRow, ScaleSpec::Kind::kBlock}) {
    ScaleSpec& scale = p.a_scale.emplace();
    scale.kind = kind;
    scale.spec = F32(kind == ScaleSpec::Kind::kTensor ? Dims{1}
                     : kind == ScaleSpec::Kind::kRow  ? Dims{1000}
                                                      : Dims{8, 2});
    if (kind == ScaleSpec::Kind::kBlock) scale.block_rows = 128, scale.block_k = 8;
    Planner planner = {.limit = 16 * 8 + 129 * (16 + 4 * 8)};
    const Fit fit = FindFit(Of(step), std::ref(planner));
    EXPECT_EQ(fit.dimension, "rows");
    EXPECT_EQ(fit.size, 129);
  }
}

// However large and uneven the problem, the answer fits, and comes after a bounded number of questions.
TEST(Fit, QuestionsAreBoundedAndTheAnswerFits) {
  const std::vector<std::function<double(double)>> shapes = {
      [](double b) { return b * b; },
      [](double b) { return std::sqrt(b) * 1000; },
      [](double b) { return b < 1e9 ? b : std::numeric_limits<double>::infinity(); },
      [](double b) { return b + 1e6 * std::floor(b / 1e5); },
      [](double) { return 1e300; },
  };
  for (const std::int64_t rows : {std::int64_t{2}, std::int64_t{1000}, std::int64_t{1} << 40, std::int64_t{1} << 58}) {
    MatmulStep step;
    step.problem.a = F32({rows, 1});
    step.problem.b = F32({1, 1});
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      Planner planner = {.limit = 1'000'000, .uneven = shapes[i]};
      const Fit fit = FindFit(Of(step), std::ref(planner));
      EXPECT_LE(planner.questions, 80) << rows << " shape " << i;
      if (fit.size == 0) continue;
      step.problem.a.shape[0] = fit.size;
      EXPECT_LE(planner(Of(step)), 1) << rows << " shape " << i;
      step.problem.a.shape[0] = rows;
    }
  }
}

// Nearly all of the memory is in the last sequence, and most sequences are empty: the line between the ends says
// little, and each question is about many sequences.
TEST(Fit, ManySequencesAreAskedAboutAFewTimes) {
  AttentionStep step;
  AttentionProblem& p = step.problem;
  p.layout = AttentionLayout::kPacked;
  p.q_offsets.assign(static_cast<std::size_t>(kMaxSequences), 0);
  for (std::size_t i = 100'000; i < p.q_offsets.size(); ++i)
    p.q_offsets[i] = static_cast<std::int64_t>((i - 100'000) * (i - 100'000));
  p.q_offsets.push_back(p.q_offsets.back() + (1 << 26));
  p.kv_offsets = p.q_offsets;
  p.q = p.k = p.v = F32({p.q_offsets.back(), 1, 1});
  Planner planner = {.limit = p.q_offsets[120'000] * 4 * 4};
  const Fit fit = FindFit(Of(step), std::ref(planner));
  EXPECT_GT(fit.size, 1);
  EXPECT_LE(fit.size, 120'000);
  EXPECT_LE(planner.sequences, 6 * kMaxSequences);
}

TEST(Fit, SeveralStepsHaveNone) {
  Program program = Of(Padded(10, 16, 16, AttentionLayout::kBHLD));
  program.steps.push_back(program.steps.front());
  Planner planner = {.limit = 1};
  EXPECT_EQ(FindFit(program, std::ref(planner)).size, 0);
  EXPECT_EQ(planner.questions, 0);
}

}  // namespace
}  // namespace kernd::core
