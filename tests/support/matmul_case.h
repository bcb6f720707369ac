// Matmul problems with operands in host memory, for the kernels of every device, and what their results are held
// against: the fp64 reference.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernd/kernels/args.h"
#include "kernd/kernels/matmul.h"
#include "kernels/reference/matmul.h"
#include "kernels/reference/tolerance.h"
#include "tests/support/operand.h"

namespace kernd::testing::matmul {

inline constexpr DataType kTypes[] = {DataType::kF32, DataType::kBF16,   DataType::kF16,   DataType::kF64,
                                      DataType::kI8,  DataType::kF8E4M3, DataType::kF8E5M2};

// A problem with its operands.
struct Case {
  MatmulProblem p;
  Operand a, b, c, bias, a_scale, b_scale;

  MatmulArgs Args() const {
    return {.a = a.data(),
            .b = b.data(),
            .c = p.c ? c.data() : nullptr,
            .bias = p.bias ? bias.data() : nullptr,
            .a_scale = p.a_scale ? static_cast<const float*>(a_scale.data()) : nullptr,
            .b_scale = p.b_scale ? static_cast<const float*>(b_scale.data()) : nullptr};
  }
};

inline void ExpectMatches(const Case& c, const std::vector<std::byte>& d, const reference::Values& expected) {
  const DataType type = c.p.output_dtype == DataType::kInvalid ? DefaultMatmulOutput(c.p.a.dtype) : c.p.output_dtype;
  const auto difference = reference::Compare(type, d.data(), expected.value, reference::MatmulBounds(c.p, expected));
  EXPECT_TRUE(difference.ok()) << difference.ToString();
}

inline Case PlainCase(DataType type, std::int64_t m, std::int64_t n, std::int64_t k, std::uint64_t seed = 1) {
  Random random(seed);
  Case c;
  c.p.a = SpecOf(type, {m, k});
  c.p.b = SpecOf(type, {k, n});
  c.a = Operand(c.p.a, 0);
  c.b = Operand(c.p.b, 0);
  c.a.FillNormal(random);
  c.b.FillNormal(random);
  return c;
}
inline std::string Describe(const Case& c) {
  return "a " + c.p.a.ToString() + (c.p.transpose_a ? "^T" : "") + " b " + c.p.b.ToString() +
         (c.p.transpose_b ? "^T" : "");
}

// --- cases that every device must get right
// ---------------------------------------------------------------------------

// Sums of products of the largest magnitudes, long enough to leave the exact range of F32.
inline std::vector<Case> I8Extremes() {
  std::vector<Case> cases;
  for (const std::int64_t k : {1, 255, 1024, 3001}) {
    for (const double a : {-128.0, 127.0}) {
      Case& c = cases.emplace_back(PlainCase(DataType::kI8, 13, 33, k));
      c.a.Fill([&](const Dims&) { return a; });
      c.b.Fill([&](const Dims& at) { return at[1] % 2 ? -128.0 : 127.0; });
    }
  }
  return cases;
}

// A sum beyond 2^31.
inline Case I8Wraps() {
  Case c = PlainCase(DataType::kI8, 1, 2, (1 << 17) + 300);
  c.a.Fill([](const Dims&) { return -128.0; });
  c.b.Fill([](const Dims&) { return -128.0; });
  return c;
}

// Halves, and values beyond both ends of I32; what they are rounded to.
inline constexpr std::int32_t kI8Rounded[] = {0, 2, 2, 4, 0, -2, INT32_MAX, INT32_MIN};
inline Case I8Rounds() {
  constexpr double kB[] = {1, 3, 5, 7, -1, -3, 127, -128};
  Case c = PlainCase(DataType::kI8, 1, 8, 1);
  c.a.Fill([](const Dims&) { return 1.0; });
  c.b.Fill([&](const Dims& at) { return kB[at[1]]; });
  c.p.alpha = 0.5;
  c.p.bias = SpecOf(DataType::kF32, {8});
  c.bias = Operand(*c.p.bias, 0);
  c.bias.Fill([](const Dims& at) { return at[0] == 6 ? 3e9 : at[0] == 7 ? -3e9 : 0.0; });
  return c;
}

// A NaN in one row and an infinity in one column, for each type that has them and each activation.
inline std::vector<Case> NanAndInfinity(std::int64_t n, std::int64_t k) {
  std::vector<Case> cases;
  for (const DataType type : {DataType::kF32, DataType::kBF16, DataType::kF16, DataType::kF64, DataType::kF8E5M2}) {
    for (const Activation activation : {Activation::kNone, Activation::kRelu, Activation::kGelu, Activation::kSilu}) {
      Case& c = cases.emplace_back(PlainCase(type, 40, n, k, 17));
      Random random(18);
      std::normal_distribution<double> normal;
      c.a.Fill([&](const Dims& at) {
        return at[0] == 7 && at[1] == 3 ? std::numeric_limits<double>::quiet_NaN() : normal(random);
      });
      c.b.Fill([&](const Dims& at) {
        return at[1] == 11 && at[0] == 5 ? std::numeric_limits<double>::infinity() : normal(random);
      });
      c.p.activation = activation;
    }
  }
  return cases;
}

// Anything that the problem allows, small.
inline Case RandomCase(std::uint64_t seed) {
  Random random(seed);
  const auto maybe = [&](int percent) { return Pick(random, 1, 100) <= percent; };
  const std::int64_t sizes[] = {0, 1, 1, 2, 7, 13, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 255, 257};
  const auto size = [&] { return sizes[Pick(random, 0, 17)]; };
  const DataType type = kTypes[Pick(random, 0, 6)];
  const std::int64_t m = size(), n = size(), k = maybe(10) ? 700 : size();
  Case c;
  MatmulProblem& p = c.p;
  p.transpose_a = maybe(50);
  p.transpose_b = maybe(50);
  Dims batch;
  for (int i = static_cast<int>(Pick(random, 0, 2)); i > 0; --i) batch.push_back(Pick(random, 1, 3));
  const auto with_batch = [&](std::int64_t rows, std::int64_t cols) {
    Dims shape;
    const bool drop = maybe(20);
    for (const std::int64_t d : batch) {
      if (!drop) shape.push_back(maybe(25) ? 1 : d);
    }
    shape.push_back(rows);
    shape.push_back(cols);
    return shape;
  };
  const auto make = [&](DataType dtype, Dims shape, TensorSpec& spec, Operand& operand, double scale) {
    spec = SpecOf(dtype, std::move(shape), maybe(40) ? &random : nullptr);
    operand = Operand(spec, ElementBytes(dtype) * Pick(random, 0, 3));
    operand.FillNormal(random, scale);
  };
  DataType b_type = type;
  if (IsFloat8(type) && maybe(30)) b_type = type == DataType::kF8E4M3 ? DataType::kF8E5M2 : DataType::kF8E4M3;
  make(type, p.transpose_a ? with_batch(k, m) : with_batch(m, k), p.a, c.a, 1);
  make(b_type, p.transpose_b ? with_batch(n, k) : with_batch(k, n), p.b, c.b, 1);
  if (type == DataType::kI8) {
    const DataType outputs[] = {DataType::kInvalid, DataType::kI32, DataType::kF32, DataType::kF16, DataType::kBF16};
    p.output_dtype = outputs[Pick(random, 0, 4)];
  } else if (IsFloat8(type)) {
    const DataType outputs[] = {DataType::kInvalid, DataType::kF16, DataType::kBF16, DataType::kF32};
    p.output_dtype = outputs[Pick(random, 0, 3)];
  } else if (type != DataType::kF64 && maybe(40)) {
    p.output_dtype = DataType::kF32;
  }
  const DataType output = p.output_dtype == DataType::kInvalid ? DefaultMatmulOutput(type) : p.output_dtype;
  const double alphas[] = {1, 1, 1, 0.25, -2, 0}, betas[] = {0, 0, 1, 0.5};
  p.alpha = alphas[Pick(random, 0, 5)];
  p.beta = betas[Pick(random, 0, 3)];
  const double spread = output == DataType::kI32 ? 1000 : 1;
  if (p.beta != 0 || maybe(20)) {
    const auto g = Validate([&] {
      MatmulProblem q = p;
      q.beta = 0;
      return q;
    }());
    Dims shape = g->d.shape;
    for (std::size_t i = 0; i + 2 < shape.size(); ++i) {
      if (maybe(25)) shape[i] = 1;
    }
    TensorSpec spec;
    make(output, shape, spec, c.c, spread);
    p.c = spec;
    if (p.beta == 0 && output != DataType::kI32)
      c.c.Fill([](const Dims&) { return std::numeric_limits<double>::quiet_NaN(); });
  }
  if (maybe(30)) {
    TensorSpec spec;
    make(maybe(50) ? DataType::kF32 : output, {n}, spec, c.bias, spread);
    p.bias = spec;
  }
  const Activation activations[] = {Activation::kNone, Activation::kNone, Activation::kRelu, Activation::kGelu,
                                    Activation::kSilu};
  p.activation = activations[Pick(random, 0, 4)];
  const auto scale = [&](std::int64_t rows, std::optional<ScaleSpec>& spec, Operand& operand) {
    if (ElementBytes(type) != 1 || output == DataType::kI32 || !maybe(50)) return;
    spec = ScaleSpec{.kind = static_cast<ScaleSpec::Kind>(Pick(random, 0, 2))};
    Dims shape;
    if (spec->kind == ScaleSpec::Kind::kTensor && maybe(50)) shape = {1};
    if (spec->kind == ScaleSpec::Kind::kRow) shape = {rows};
    if (spec->kind == ScaleSpec::Kind::kBlock) {
      spec->block_rows = Pick(random, 1, 130);
      spec->block_k = Pick(random, 1, 130);
      shape = {(rows + spec->block_rows - 1) / spec->block_rows, (k + spec->block_k - 1) / spec->block_k};
    }
    spec->spec = SpecOf(DataType::kF32, shape, maybe(30) ? &random : nullptr);
    operand = Operand(spec->spec, 0);
    operand.Fill([&](const Dims&) { return std::uniform_real_distribution<double>(0.1, 2)(random); });
  };
  scale(m, p.a_scale, c.a_scale);
  scale(n, p.b_scale, c.b_scale);
  return c;
}

}  // namespace kernd::testing::matmul
