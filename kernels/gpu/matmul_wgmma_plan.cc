#include "kernels/gpu/matmul_wgmma_plan.h"

#include <algorithm>
#include <numeric>
#include <optional>

namespace kernd {
namespace {

constexpr std::int64_t kChunk = 8;  // elements of 16 bytes

std::int64_t RoundUp(std::int64_t x, std::int64_t unit) {
  return x / unit * unit + (x % unit != 0 ? unit : 0);
}

bool IsStride(std::int64_t stride) {
  return stride % kChunk == 0 && stride > 0 && stride <= kMostWgmmaStride;
}

// Items where they lie: one dimension whose stride divides those of the whole batch. False: there is none.
bool PlaceItems(const Dims& shape, const Dims& strides, WgmmaOperandPlan& o) {
  std::int64_t unit = 0;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] > 1) unit = std::gcd(unit, strides[i]);
  }
  if (unit == 0) return true;  // the same item for all
  if (!IsStride(unit)) return false;
  o.item_stride = unit;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    const std::int64_t step = shape[i] > 1 ? strides[i] / unit : 0;
    o.item_of.strides[i] = step;
    const auto last = CheckedProduct({shape[i] - 1, step});
    if (!last || *last > kMostWgmmaElements - o.items) return false;
    o.items += *last;
  }
  return true;
}

// A copy of each distinct item, lines in the direction that they have.
void PlaceCopies(const Dims& shape, const Dims& strides, WgmmaOperandPlan& o) {
  o.packed = true;
  o.ld = RoundUp(o.line, kChunk);
  o.item_stride = o.lines * o.ld;
  Dims item_shape, item_strides;
  o.items = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    o.item_of.strides[i] = strides[i] == 0 ? 0 : o.items;
    if (strides[i] == 0) continue;
    o.items *= shape[i];
    item_shape.insert(item_shape.begin(), shape[i]);
    item_strides.insert(item_strides.begin(), strides[i]);
  }
  o.source = BatchStridesOf(item_shape, item_strides);
  o.bytes = CheckedProduct({o.items, o.lines, o.ld, 2}).value_or(INT64_MAX);
}

WgmmaOperandPlan OperandPlanOf(const Dims& shape, const Dims& strides, bool along_k, std::int64_t rows, std::int64_t k,
                               std::int64_t ld) {
  WgmmaOperandPlan o{.along_k = along_k,
                     .line = along_k ? k : rows,
                     .lines = along_k ? rows : k,
                     .ld = ld,
                     .item_of = BatchStridesOf(shape, {})};
  const bool even = o.lines == 1 || (IsStride(ld) && ld >= o.line);
  WgmmaOperandPlan in_place = o;
  if (even && PlaceItems(shape, strides, in_place)) return in_place;
  PlaceCopies(shape, strides, o);
  return o;
}

}  // namespace

WgmmaPlan WgmmaPlanOf(const MmaTile& tile, const MatmulProblem& p, const MatmulGeometry& g, const DeviceInfo& device) {
  WgmmaPlan plan{.a = OperandPlanOf(g.batch_shape, g.a_batch_strides, !p.transpose_a, g.m, g.k, g.lda),
                 .b = OperandPlanOf(g.batch_shape, g.b_batch_strides, p.transpose_b, g.n, g.k, g.ldb),
                 .splits = SplitsFor(tile, p, g, device)};
  plan.sums = SumsFor(p, g, plan.splits);
  std::optional<std::int64_t> end = 0;
  const auto place = [&](std::int64_t bytes) {
    const std::int64_t start = end.value_or(0);
    const bool fits = bytes >= 0 && bytes <= INT64_MAX - kDeviceAlignment;
    if (end) end = fits ? CheckedAdd(*end, RoundUp(bytes, kDeviceAlignment)) : std::nullopt;
    return start;
  };
  plan.a_at = place(plan.a.bytes);
  plan.b_at = place(plan.b.bytes);
  plan.sums_at = place(plan.sums.workspace_bytes);
  plan.workspace_bytes = end.value_or(-1);
  return plan;
}

}  // namespace kernd
