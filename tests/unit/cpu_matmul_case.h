// The CPU's matmul variants, run between guards and held against the fp64 reference.
#pragma once

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/reference/matmul.h"
#include "server/cpu/matmul.h"
#include "tests/support/matmul_case.h"

namespace kernd::cpu {

using testing::Guarded;
using testing::Operand;
using testing::Pick;
using testing::Random;
using testing::SpecOf;
using testing::matmul::Case;
using testing::matmul::Describe;
using testing::matmul::ExpectMatches;
using testing::matmul::I8Extremes;
using testing::matmul::I8Rounds;
using testing::matmul::I8Wraps;
using testing::matmul::kI8Rounded;
using testing::matmul::kTypes;
using testing::matmul::NanAndInfinity;
using testing::matmul::PlainCase;
using testing::matmul::RandomCase;

inline std::string Packed(DataType type) {
  return "matmul_" + std::string(Token(type)) + "_cpu_packed";
}

struct Run {
  std::string kernel;  // empty: the rule's
  Isa isa = BestIsa();
  int threads = 1;
};

// D starts out as garbage; it, and the workspace of exactly the promised size, lie between guards.
inline std::vector<std::byte> Compute(const Case& c, const Run& run) {
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

// Every variant that can run the problem, on every instruction set, with one thread and with two.
inline void ExpectAllMatchReference(const Case& c) {
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

}  // namespace kernd::cpu
