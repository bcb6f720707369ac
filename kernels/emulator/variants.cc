// The table of what the emulator runs, in the place of kernels/gpu/variants.cc: the kernels whose instructions it has.
// Of those for ordinary cores, attention_simt.cu is built as well, and tested by a sample.
#include "kernels/gpu/variants.h"

namespace kernd {

absl::Span<const AttentionVariant> AttentionVariants() {
  return AttentionMmaVariants();
}

absl::Span<const MatmulVariant> MatmulVariants() {
  return MatmulMmaVariants();
}

}  // namespace kernd
