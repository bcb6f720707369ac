// The CPU's matmul variants against the fp64 reference, the packed one on every instruction set of this machine, and
// the promises of kernd/kernels/matmul.h that no tolerance covers.
#include "server/cpu/matmul.h"

#include <cmath>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernd/kernels/error.h"
#include "kernels/reference/matmul.h"
#include "kernels/reference/tolerance.h"
#include "server/cpu/onednn.h"
#include "tests/support/operand.h"

namespace kernd::cpu {
namespace {

using testing::Guarded;
using testing::Operand;
using testing::Pick;
using testing::Random;
using testing::SpecOf;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr DataType kTypes[] = {DataType::kF32, DataType::kBF16,   DataType::kF16,   DataType::kF64,
                               DataType::kI8,  DataType::kF8E4M3, DataType::kF8E5M2};

std::string Packed(DataType type) {
  return "matmul_" + std::string(Token(type)) + "_cpu_packed";
}

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

struct Run {
  std::string kernel;  // empty: the rule's
  Isa isa = BestIsa();
  int threads = 1;
};

// D starts out as garbage; it, and the workspace of exactly the promised size, lie between guards.
std::vector<std::byte> Compute(const Case& c, const Run& run) {
  const auto g = Validate(c.p);
  EXPECT_TRUE(g.ok()) << g.status();
  if (!g.ok()) return {};
  const auto choice = ChooseMatmul(c.p, *g, {.name = run.kernel}, run.threads, run.isa);
  EXPECT_TRUE(choice.ok()) << choice.status();
  if (!choice.ok()) return {};
  Guarded d(g->d.bytes(), std::byte{0xff}, ElementBytes(g->output_dtype)),
      workspace(choice->workspace_bytes, std::byte{0xff});
  MatmulArgs args = c.Args();
  args.d = d.data();
  const absl::Status status = RunMatmul(*choice, c.p, *g, args, workspace.data());
  EXPECT_TRUE(status.ok()) << status;
  d.ExpectGuardsIntact();
  workspace.ExpectGuardsIntact();
  return d.Copy();
}

void ExpectMatches(const Case& c, const std::vector<std::byte>& d, const reference::Values& expected) {
  const DataType type = c.p.output_dtype == DataType::kInvalid ? DefaultMatmulOutput(c.p.a.dtype) : c.p.output_dtype;
  const auto difference = reference::Compare(type, d.data(), expected.value, reference::MatmulBounds(c.p, expected));
  EXPECT_TRUE(difference.ok()) << difference.ToString();
}

// Every variant that can run the problem, on every instruction set, with one thread and with two.
void ExpectAllMatchReference(const Case& c) {
  const auto expected = reference::MatmulValues(c.p, c.Args());
  ASSERT_TRUE(expected.ok()) << expected.status();
  for (const Isa isa : AvailableIsas()) {
    SCOPED_TRACE("packed " + std::string(Name(isa)));
    const auto one = Compute(c, {.kernel = Packed(c.p.a.dtype), .isa = isa});
    ExpectMatches(c, one, *expected);
    EXPECT_TRUE(one == Compute(c, {.kernel = Packed(c.p.a.dtype), .isa = isa, .threads = 2}))
        << "threads show in the bits";
  }
  SCOPED_TRACE("the rule's choice");
  const auto chosen = Compute(c, {.threads = 2});
  ExpectMatches(c, chosen, *expected);
  EXPECT_TRUE(chosen == Compute(c, {.threads = 2})) << "not deterministic";
}

Case PlainCase(DataType type, std::int64_t m, std::int64_t n, std::int64_t k, std::uint64_t seed = 1) {
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

// Anything that the problem allows, small.
Case RandomCase(std::uint64_t seed) {
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
    if (p.beta == 0 && output != DataType::kI32) c.c.Fill([](const Dims&) { return kNan; });
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

std::string Describe(const Case& c) {
  return "a " + c.p.a.ToString() + (c.p.transpose_a ? "^T" : "") + " b " + c.p.b.ToString() +
         (c.p.transpose_b ? "^T" : "");
}

TEST(CpuMatmul, RandomProblemsMatchTheReference) {
  for (std::uint64_t seed = 1; seed <= 250; ++seed) {
    const Case c = RandomCase(seed);
    SCOPED_TRACE("seed " + std::to_string(seed) + " " + Describe(c));
    ExpectAllMatchReference(c);
    if (HasFailure()) return;
  }
}

TEST(CpuMatmul, EdgeSizes) {
  const std::int64_t sizes[] = {1, 7, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 257};
  Random random(7);
  for (const DataType type : kTypes) {
    for (int i = 0; i < 13; ++i) {  // each size for each of M, N and K
      const std::int64_t m = sizes[i], n = sizes[(i + 5) % 13], k = sizes[(i + 9) % 13];
      const Case c = PlainCase(type, m, n, k, random());
      SCOPED_TRACE(Describe(c));
      ExpectAllMatchReference(c);
    }
  }
}

// Tiles, blocks of K and threads that really share the work.
TEST(CpuMatmul, LargerThanATile) {
  for (const DataType type : {DataType::kF32, DataType::kBF16, DataType::kI8}) {
    const Case c = PlainCase(type, 401, 1030, 515, 11);
    SCOPED_TRACE(Describe(c));
    ExpectAllMatchReference(c);
  }
}

TEST(CpuMatmul, I8IsExactAtItsExtremes) {
  for (const std::int64_t k : {1, 255, 1024, 3001}) {
    for (const double a : {-128.0, 127.0}) {
      Case c = PlainCase(DataType::kI8, 13, 33, k);
      c.a.Fill([&](const Dims&) { return a; });
      c.b.Fill([&](const Dims& at) { return at[1] % 2 ? -128.0 : 127.0; });
      SCOPED_TRACE(std::to_string(k) + " products with " + std::to_string(a));
      ExpectAllMatchReference(c);
    }
  }
}

TEST(CpuMatmul, I8WrapsModulo32Bits) {
  Case c = PlainCase(DataType::kI8, 1, 2, (1 << 17) + 300);
  c.a.Fill([](const Dims&) { return -128.0; });
  c.b.Fill([](const Dims&) { return -128.0; });
  ExpectAllMatchReference(c);
}

TEST(CpuMatmul, IntegerEpilogueRoundsHalfToEvenAndSaturates) {
  Case c = PlainCase(DataType::kI8, 1, 8, 1);
  const double b[] = {1, 3, 5, 7, -1, -3, 127, -128};
  c.a.Fill([](const Dims&) { return 1.0; });
  c.b.Fill([&](const Dims& at) { return b[at[1]]; });
  c.p.alpha = 0.5;
  c.p.bias = SpecOf(DataType::kF32, {8});
  c.bias = Operand(*c.p.bias, 0);
  c.bias.Fill([](const Dims& at) { return at[0] == 6 ? 3e9 : at[0] == 7 ? -3e9 : 0.0; });
  for (const Isa isa : AvailableIsas()) {
    for (const std::string& kernel : {std::string(), Packed(DataType::kI8)}) {
      const auto d = Compute(c, {.kernel = kernel, .isa = isa});
      std::vector<std::int32_t> values(8);
      std::memcpy(values.data(), d.data(), 32);
      EXPECT_THAT(values, ::testing::ElementsAre(0, 2, 2, 4, 0, -2, INT32_MAX, INT32_MIN));
    }
  }
}

// NaN in C with beta = 0, and in A and B with alpha = 0 or K = 0, must not be seen; pointers may then be null.
TEST(CpuMatmul, OperandsThatDoNotCountAreNotRead) {
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

TEST(CpuMatmul, NaNsAndInfinitiesStayInTheirRowsAndColumns) {
  for (const DataType type : {DataType::kF32, DataType::kBF16, DataType::kF16, DataType::kF64, DataType::kF8E5M2}) {
    for (const Activation activation : {Activation::kNone, Activation::kRelu, Activation::kGelu, Activation::kSilu}) {
      Case c = PlainCase(type, 40, 50, 33, 17);
      Random random(18);
      std::normal_distribution<double> normal;
      c.a.Fill([&](const Dims& at) { return at[0] == 7 && at[1] == 3 ? kNan : normal(random); });
      c.b.Fill([&](const Dims& at) {
        return at[1] == 11 && at[0] == 5 ? std::numeric_limits<double>::infinity() : normal(random);
      });
      c.p.activation = activation;
      SCOPED_TRACE(std::string(Name(type)) + " " + std::string(Name(activation)));
      ExpectAllMatchReference(c);
    }
  }
}

TEST(CpuMatmul, BatchInvariantRowsDoNotDependOnTheirCompany) {
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

// Row and batch strides that overlap or repeat: legal, and easily taken for a tall matrix.
TEST(CpuMatmul, BatchesOfRowsInEveryStride) {
  for (const DataType type : {DataType::kF32, DataType::kI8}) {
    for (const std::int64_t rows : {1, 3}) {
      for (const std::int64_t batch_stride : {0, 2, 10, 30, 37}) {
        for (const std::int64_t row_stride : {0, 2, 10, 12}) {
          Random random(19);
          Case c;
          c.p.a = {.dtype = type, .shape = {4, rows, 10}, .strides = {batch_stride, row_stride, 1}};
          c.p.b = SpecOf(type, {10, 20});
          c.a = Operand(c.p.a, 0);
          c.b = Operand(c.p.b, 0);
          c.a.FillNormal(random);
          c.b.FillNormal(random);
          SCOPED_TRACE(std::to_string(rows) + " rows, strides " + std::to_string(batch_stride) + ", " +
                       std::to_string(row_stride));
          ExpectAllMatchReference(c);
        }
      }
    }
  }
}

// Many threads, each with its own problem or the same one, making and running primitives at once.
TEST(CpuMatmul, ConcurrentCalls) {
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
TEST(CpuMatmul, PrimitivesThatWereEvictedAreMadeAgain) {
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
