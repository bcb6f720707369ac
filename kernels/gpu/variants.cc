#include "kernels/gpu/variants.h"

#include <vector>

namespace kernd {
namespace {

template <typename Variant>
std::vector<Variant> Join(std::initializer_list<absl::Span<const Variant>> families) {
  std::vector<Variant> all;
  for (const absl::Span<const Variant> family : families) all.insert(all.end(), family.begin(), family.end());
  return all;
}

}  // namespace

absl::Span<const AttentionVariant> AttentionVariants() {
  static const auto& all = *new std::vector<AttentionVariant>(Join<AttentionVariant>(
      {AttentionWgmmaVariants(), AttentionMmaVariants(), AttentionSimtVariants(), AttentionNaiveVariants()}));
  return all;
}

absl::Span<const MatmulVariant> MatmulVariants() {
  static const auto& all = *new std::vector<MatmulVariant>(Join<MatmulVariant>(
      {MatmulLtVariants(), MatmulSimtVariants(), MatmulSkinnyVariants(), MatmulWgmmaVariants(), MatmulMmaVariants()}));
  return all;
}

}  // namespace kernd
