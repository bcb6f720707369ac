// The table of what the emulator runs, in the place of kernels/gpu/variants.cc: the kernels whose instructions it has.
// Of those for ordinary cores, attention_simt.cu is built as well, and tested by a sample.
#include "kernels/gpu/variants.h"

#include <vector>

namespace kernd {

absl::Span<const AttentionVariant> AttentionVariants() {
  static const auto& all = *[] {
    auto* const rows = new std::vector<AttentionVariant>;
    for (const absl::Span<const AttentionVariant> family : {AttentionWgmmaVariants(), AttentionMmaVariants()}) {
      rows->insert(rows->end(), family.begin(), family.end());
    }
    return rows;
  }();
  return all;
}

absl::Span<const MatmulVariant> MatmulVariants() {
  return MatmulMmaVariants();
}

}  // namespace kernd
