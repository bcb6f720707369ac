// The CPU's attention kernels, run between guards and held against the fp64 reference.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "server/cpu/attention.h"
#include "tests/support/attention_case.h"

namespace kernd::cpu {

using testing::Guarded;
using testing::Operand;
using testing::Pick;
using testing::Random;
using testing::SpecOf;
using testing::attention::Case;
using testing::attention::Describe;
using testing::attention::PlainCase;
using testing::attention::RandomCase;

struct Run {
  std::string kernel;  // empty: the rule's
  Isa isa = BestIsa();
  int threads = 1;
};

struct Result {
  std::vector<std::byte> o, lse;
  bool operator==(const Result&) const = default;
};

// Outputs start out as garbage; they, and the workspace of exactly the promised size, lie between guards.
inline Result Compute(const Case& c, const Run& run) {
  const auto g = Validate(c.p);
  EXPECT_TRUE(g.ok()) << g.status();
  if (!g.ok()) return {};
  const auto choice = ChooseAttention(c.p, *g, {.name = run.kernel}, run.threads, run.isa);
  EXPECT_TRUE(choice.ok()) << choice.status();
  if (!choice.ok()) return {};
  Guarded o(g->o_spec.bytes(), std::byte{0xff}, ElementBytes(g->output_dtype)),
      lse(g->lse_spec ? g->lse_spec->bytes() : 0, std::byte{0xff});
  Guarded workspace(choice->workspace_bytes, std::byte{0xff});
  AttentionArgs args = c.Args();
  args.o = o.data();
  args.lse = c.p.want_lse ? reinterpret_cast<float*>(lse.data()) : nullptr;
  RunAttention(*choice, c.p, *g, args, workspace.data());
  o.ExpectGuardsIntact();
  lse.ExpectGuardsIntact();
  workspace.ExpectGuardsIntact();
  return {o.Copy(), lse.Copy()};
}

inline void ExpectMatches(const Case& c, const Result& result, const reference::AttentionResult& expected) {
  testing::attention::ExpectMatches(c, result.o, result.lse, expected);
}

inline void ExpectMatchesReference(const Case& c, const Result& result) {
  const auto expected = reference::AttentionValues(c.p, c.Args());
  ASSERT_TRUE(expected.ok()) << expected.status();
  ExpectMatches(c, result, *expected);
}

}  // namespace kernd::cpu
