#include "kernels/gpu/matmul_mma_pack.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "kernels/gpu/matmul_epilogue.h"
#include "kernels/gpu/matmul_lt_cost.h"

namespace kernd {
namespace {

constexpr std::int64_t kVectorBytes = 16;

std::int64_t RoundUp(std::int64_t x, std::int64_t unit) {
  return x / unit * unit + (x % unit != 0 ? unit : 0);
}

// Multiply-adds of the device in a microsecond, at most; measured on an H200 for SM 9.0, and guessed for others.
double RateOf(MmaPath path, const DeviceInfo& device) {
  const double of_16_bits = (device.sm >= 80 && IsAsync(path) ? 512 : 256) * (device.sm >= 90 ? 1.65 : 1);
  return of_16_bits * 2 / static_cast<double>(ElementBytes(DataTypeOf(path))) * device.multiprocessors *
         (device.clock_khz * 1e-3);
}

double MemoryMicroseconds(double bytes, const DeviceInfo& device) {
  return bytes / (static_cast<double>(device.memory_bytes_per_second) * 0.85) * 1e6;
}

double Products(const MatmulProblem& p, const MatmulGeometry& g) {
  if (HasNoProduct(p, g)) return 0;
  return static_cast<double>(g.batch) * static_cast<double>(g.m) * static_cast<double>(g.n) * static_cast<double>(g.k);
}

// Of those where operands come an element at a time.
constexpr double kByElements = 1.0 / 6;

// Whether cp.async can bring the operand as it lies.
bool IsStraight(std::int64_t element, bool along_k, std::int64_t ld, const Dims& batch_strides) {
  const auto whole = [&](std::int64_t elements) { return elements * element % kVectorBytes == 0; };
  return (along_k || element == 2) && whole(ld) && std::all_of(batch_strides.begin(), batch_strides.end(), whole);
}

// The operand's copy, one of each distinct item. Nothing: past 2^63 bytes.
std::optional<MmaSource> Packed(const MmaSource& source, std::int64_t rows, std::int64_t k, std::int64_t element,
                                const Dims& batch_shape) {
  MmaSource copy = source;
  copy.packed = true;
  copy.along_k |= element != 2;
  const std::int64_t lines = copy.along_k ? rows : k;
  copy.ld = RoundUp(copy.along_k ? k : rows, kVectorBytes / element);
  for (int i = static_cast<int>(batch_shape.size()) - 1; i >= 0; --i) {
    if (source.batch_strides[i] == 0 || batch_shape[i] == 1) {
      copy.batch_strides[i] = 0;
      continue;
    }
    copy.batch_strides[i] = copy.items * lines * copy.ld;
    copy.items *= batch_shape[i];
    copy.item_shape.insert(copy.item_shape.begin(), batch_shape[i]);
    copy.item_strides.insert(copy.item_strides.begin(), source.batch_strides[i]);
  }
  const auto bytes = CheckedProduct({copy.items, lines, copy.ld, element});
  if (!bytes || *bytes > INT64_MAX - kDeviceAlignment) return std::nullopt;
  copy.bytes = RoundUp(*bytes, kDeviceAlignment);
  return copy;
}

}  // namespace

MmaPlan MmaPlanOf(MmaPath path, const MmaTile& tile, const MatmulProblem& p, const MatmulGeometry& g,
                  const DeviceInfo& device) {
  MmaPlan plan;
  plan.a.along_k = !p.transpose_a, plan.b.along_k = p.transpose_b;
  plan.a.ld = g.lda, plan.b.ld = g.ldb;
  plan.a.batch_strides = g.a_batch_strides, plan.b.batch_strides = g.b_batch_strides;
  plan.splits = SplitsFor(tile, p, g, device);
  plan.sums = SumsFor(p, g, plan.splits);
  if (g.d.elements() == 0 || HasNoProduct(p, g)) return plan;

  const std::int64_t element = ElementBytes(DataTypeOf(path));
  const bool a_straight = IsStraight(element, plan.a.along_k, plan.a.ld, plan.a.batch_strides);
  const bool b_straight = IsStraight(element, plan.b.along_k, plan.b.ld, plan.b.batch_strides);
  const auto a = a_straight ? plan.a : Packed(plan.a, g.m, g.k, element, g.batch_shape);
  const auto b = b_straight ? plan.b : Packed(plan.b, g.n, g.k, element, g.batch_shape);
  if (IsAsync(path) && a && b) {
    const double compute = Products(p, g) / RateOf(path, device);
    const double passes = kLtPassMicroseconds * (!a_straight + !b_straight) +
                          PassMicroseconds(device, 2 * (static_cast<double>(a->bytes) + static_cast<double>(b->bytes)));
    if (passes < compute / kByElements - compute) plan.a = *a, plan.b = *b;
  }
  plan.b.at = plan.a.bytes;
  const auto sums_at = CheckedAdd(plan.a.bytes, plan.b.bytes);
  const auto all =
      sums_at && plan.sums.workspace_bytes >= 0 ? CheckedAdd(*sums_at, plan.sums.workspace_bytes) : std::nullopt;
  plan.sums_at = sums_at.value_or(0);
  plan.workspace_bytes = all.value_or(-1);
  return plan;
}

double MmaMicroseconds(MmaPath path, int tile, const MatmulProblem& p, const MatmulGeometry& g,
                       const DeviceInfo& device) {
  const int place = PlaceInRule(tile, p, g);
  if (p.numerics == Numerics::kBatchInvariant) return 1 + place;
  // Beside cuBLASLt's: from the begin to the end of a 256^3, 2 more.
  constexpr double kLaunch = kLtCallMicroseconds + 2;
  constexpr double kSums = 2;                                // passes that the one with the sums takes the time of
  constexpr double kOfTile[kMmaTiles] = {0.33, 0.67, 1, 1};  // of the rate

  int first = 0;
  while (PlaceInRule(first, p, g) != 0) ++first;
  const MmaTile& t = kMmaTile[first];
  const MmaPlan plan = MmaPlanOf(path, t, p, g, device);
  const auto up = [](double x, double by) { return std::ceil(x / by); };
  const double m = static_cast<double>(g.m), n = static_cast<double>(g.n), batch = static_cast<double>(g.batch);
  const double k = HasNoProduct(p, g) ? 0 : static_cast<double>(g.k);
  const double blocks = batch * up(m, t.m) * up(n, t.n) * static_cast<double>(plan.splits.splits);
  const double multiprocessors = device.multiprocessors;
  const double together = std::clamp<double>(up(blocks, multiprocessors), 1, t.blocks);  // of a multiprocessor
  const double waves = up(blocks, multiprocessors * together);
  const std::int64_t element = ElementBytes(DataTypeOf(path));
  const auto straight = [&](const MmaSource& s) { return IsStraight(element, s.along_k, s.ld, s.batch_strides); };
  const bool whole_chunks = straight(plan.a) && straight(plan.b);
  const double rate = RateOf(path, device) / multiprocessors * kOfTile[first] * (whole_chunks ? 1 : kByElements);
  const double compute =
      waves * together * t.m * t.n * std::min(k, static_cast<double>(plan.splits.k_per_split)) / rate;
  const double bytes =
      batch * ((m + n) * k * static_cast<double>(element) + m * n * static_cast<double>(ElementBytes(g.output_dtype)));
  double passes = kLtPassMicroseconds * (plan.a.packed + plan.b.packed + plan.sums.needed * kSums);
  passes += PassMicroseconds(device, 2 * (static_cast<double>(plan.a.bytes) + static_cast<double>(plan.b.bytes) +
                                          static_cast<double>(plan.sums.workspace_bytes)));
  return (kLaunch + std::max(compute, MemoryMicroseconds(bytes, device)) + passes) * (1 + 0.25 * place);
}

}  // namespace kernd
