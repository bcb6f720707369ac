#include "kernels/gpu/matmul_mma_plan.h"

#include <algorithm>
#include <cmath>

#include "kernels/gpu/matmul_epilogue.h"

namespace kernd {
namespace {

std::int64_t CeilDivide(std::int64_t x, std::int64_t by) {
  return x / by + (x % by != 0);
}

}  // namespace

int StagesFor(MmaPath path, const MmaTile& tile, const DeviceInfo& device) {
  const auto fits = [&](int stages, int blocks) {
    return static_cast<std::int64_t>(SharedBytes(path, tile, stages)) * blocks <= device.shared_memory_optin;
  };
  const int most = IsAsync(path) ? tile.stages : 2;
  struct Least {
    int blocks, stages;
  };
  for (const Least least : {Least{2, 3}, Least{2, 2}, Least{1, 2}}) {
    for (int blocks = tile.blocks; blocks >= least.blocks; --blocks) {
      for (int stages = most; stages >= std::min(least.stages, most); --stages) {
        if (fits(stages, blocks)) return stages;
      }
    }
  }
  return 0;
}

int PlaceInRule(int tile, const MatmulProblem& p, const MatmulGeometry& g) {
  const std::int64_t n = g.n, m = p.numerics == Numerics::kBatchInvariant ? n : g.m;
  const double side = std::sqrt(static_cast<double>(m) * static_cast<double>(n));
  int first = side < 512 ? 0 : side < 1024 ? 1 : side <= 2048 ? 2 : 3;
  const auto wasteful = [&](const MmaTile& t) { return t.m / 2 >= m || t.n / 2 >= n; };
  while (first > 0 && wasteful(kMmaTile[first])) --first;
  return tile <= first ? first - tile : tile;
}

MmaSplits SplitsFor(const MmaTile& tile, const MatmulProblem& p, const MatmulGeometry& g, const DeviceInfo& device) {
  // Elements of K in a part, and parts. A shorter K is sooner done by one block than cut and added up by a pass.
  constexpr std::int64_t kLeast = 256, kMost = 16, kShort = 2048;
  const MmaSplits whole{.splits = 1, .k_per_split = g.k};
  if (p.numerics == Numerics::kBatchInvariant || g.d.elements() == 0 || HasNoProduct(p, g) || g.k < kShort) {
    return whole;
  }
  // Every tile has elements of D, so the product is below 2^63.
  const std::int64_t tiles = g.batch * CeilDivide(g.m, tile.m) * CeilDivide(g.n, tile.n);
  const std::int64_t splits =
      std::min({kMost, std::int64_t{tile.blocks} * device.multiprocessors / tiles, g.k / kLeast});
  if (splits <= 1) return whole;
  const std::int64_t per_split = CeilDivide(CeilDivide(g.k, tile.k), splits) * tile.k;
  return {.splits = CeilDivide(g.k, per_split), .k_per_split = per_split};
}

MmaSums SumsFor(const MatmulProblem& p, const MatmulGeometry& g, const MmaSplits& splits) {
  MmaSums sums;
  if (g.d.elements() == 0 || HasNoProduct(p, g)) return sums;
  const MatmulEpilogue epilogue = MatmulEpilogueOf(p, g, {});
  const bool exact = epilogue.plain && g.output_dtype == DataType::kI32;
  sums.needed = splits.splits > 1 || (epilogue.wide && !exact);
  if (!sums.needed) return sums;
  sums.in_d = splits.splits == 1 && ElementBytes(g.output_dtype) == 4;
  if (sums.in_d) return sums;
  const auto bytes = CheckedProduct({g.d.elements(), splits.splits, 4});
  sums.workspace_bytes =
      bytes && *bytes <= INT64_MAX - kDeviceAlignment ? CeilDivide(*bytes, kDeviceAlignment) * kDeviceAlignment : -1;
  return sums;
}

}  // namespace kernd
