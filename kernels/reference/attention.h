// Attention in double precision, from the definition in kernd/kernels/attention.h and from nothing else: it finds rows,
// keys and masks by its own means, so that an error in those of the kernels cannot hide here.
//
// Operands are in host memory. Where the definition leaves room:
// * A logit of minus infinity has no weight: a row whose visible logits are all so counts as one that sees no key.
// * A logit of plus infinity spoils its row as a NaN does.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernd/kernels/args.h"
#include "kernd/kernels/attention.h"
#include "kernels/reference/values.h"

namespace kernd::reference {

struct AttentionResult {
  Values o;    // shape of O
  Values lse;  // [B, Hq, Lq] or [Hq, total_q], whether the problem wants it or not; magnitude: the largest of the row's
               // contenders, the logits that any rounding leaves with a weight
  // Shape of LSE: the same magnitude, but 0 where a row has one contender, whose weight is 1 whatever its rounding.
  std::vector<double> contest;
};

// O and LSE before they are rounded. `args.o` and `args.lse` are not used. Errors: those of Validate.
absl::StatusOr<AttentionResult> AttentionValues(const AttentionProblem& problem, const AttentionArgs& args);

// The same, rounded to the output dtype and written to `args.o`, and to `args.lse` where the problem wants LSE.
absl::Status Attention(const AttentionProblem& problem, const AttentionArgs& args);

// Results for one set of rows over one part of the keys each.
struct AttentionPart {
  std::vector<double> o;    // [rows, Dv]
  std::vector<double> lse;  // [rows]
};

// The result over the keys of all `parts` together (Dv from the sizes; all parts alike): weights exp(lse). A part whose
// LSE is minus infinity counts for nothing, whatever its O; a row without any other gives O = 0 and minus infinity.
// Parts with a sink cannot be merged, as LSE leaves it out. No parts give an empty result.
AttentionPart Merge(absl::Span<const AttentionPart> parts);

}  // namespace kernd::reference
