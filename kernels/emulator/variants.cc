// The table of what the emulator runs, in the place of kernels/gpu/variants.cc: the kernels whose instructions it has.
// Of those for ordinary cores, attention_simt.cu is built as well, and tested by a sample.
#include "kernels/gpu/variants.h"

#include <vector>

namespace kernd {

template <typename Variant, typename... More>
std::vector<Variant> Join(absl::Span<const Variant> first, More... more) {
  std::vector<Variant> all(first.begin(), first.end());
  (all.insert(all.end(), more.begin(), more.end()), ...);
  return all;
}

absl::Span<const AttentionVariant> AttentionVariants() {
  static const auto& all = *new std::vector(Join(AttentionWgmmaVariants(), AttentionMmaVariants()));
  return all;
}

absl::Span<const MatmulVariant> MatmulVariants() {
  static const auto& all = *new std::vector(Join(MatmulWgmmaVariants(), MatmulMmaVariants(), MatmulSkinnyVariants()));
  return all;
}

}  // namespace kernd
