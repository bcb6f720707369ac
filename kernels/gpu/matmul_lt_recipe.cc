#include "kernels/gpu/matmul_lt_recipe.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/gpu/matmul_lt_cost.h"

namespace kernd {
namespace {

// Packed rows, and rows of sums, are multiples of this many elements: what F8 and I8 ask for, and more than the
// fastest kernels of the others do.
constexpr std::int64_t kUnit = 16;
constexpr std::int64_t kVectorBytes = 16;
constexpr std::size_t kMaxCalls = 64;
constexpr std::int64_t kMaxBatchOfCall = 65535;

std::int64_t RoundUp(std::int64_t x, std::int64_t unit) {
  return x / unit * unit + (x % unit != 0 ? unit : 0);
}

// The batch, with dimensions of size 1 gone and neighbours joined where every operand steps through them evenly.
struct Batch {
  Dims shape, a, b, c;

  void Push(std::int64_t size, std::int64_t sa, std::int64_t sb, std::int64_t sc) {
    if (size == 1) return;
    const auto joins = [size](const Dims& strides, std::int64_t inner) { return strides.back() == inner * size; };
    if (!shape.empty() && joins(a, sa) && joins(b, sb) && joins(c, sc)) {
      shape.back() *= size;
      a.back() = sa, b.back() = sb, c.back() = sc;
      return;
    }
    shape.push_back(size);
    a.push_back(sa), b.push_back(sb), c.push_back(sc);
  }
};

// One problem on its way to a recipe.
class Builder {
 public:
  Builder(const MatmulProblem& p, const MatmulGeometry& g, const DeviceInfo& device, bool fuse_bias)
      : p_(p), g_(g), device_(device), fuse_bias_(fuse_bias) {}

  LtRecipe Build() {
    if (r_.refusal = Refusal(); !r_.refusal.empty()) return std::move(r_);
    if (HasNoProduct(p_, g_)) {
      r_.finish = true;
      r_.microseconds = kLtPassMicroseconds;
      return std::move(r_);
    }
    CollapseBatch();
    SetTypes();
    DecidePacking();
    if (!r_.refusal.empty()) return std::move(r_);
    DecideSums();
    SetCall();
    if (r_.refusal = CallRefusal(); !r_.refusal.empty()) return std::move(r_);
    r_.microseconds = Cost(r_.a.packed, r_.b.packed, r_.finish, aligned_);
    return std::move(r_);
  }

 private:
  std::string Refusal() const {
    if (p_.numerics == Numerics::kBatchInvariant) return "picks its algorithm by M and batch too: not BATCH_INVARIANT";
    if (HasBlockScales(p_)) return "scales of blocks are not among those that it applies";
    if (std::max({g_.m, g_.n, g_.k}) > INT32_MAX - kUnit) return "a dimension is past 2^31";
    return "";
  }

  // Rows of a batch of A that stand as evenly as the rows inside an item are one tall matrix, if B is the same for all.
  void CollapseBatch() {
    const bool reads_c = p_.beta != 0;
    for (std::size_t i = 0; i < g_.batch_shape.size(); ++i) {
      batch_.Push(g_.batch_shape[i], g_.a_batch_strides[i], g_.b_batch_strides[i], reads_c ? g_.c_batch_strides[i] : 0);
    }
    r_.m = g_.m;
    lda_ = g_.lda, ldb_ = g_.ldb, ldc_ = g_.ldc;
    if (batch_.shape.empty() || p_.transpose_a || batch_.b.back() != 0 || r_.m * batch_.shape.back() > INT32_MAX)
      return;
    const auto even = [&](std::int64_t ld, std::int64_t stride) { return r_.m == 1 || stride == r_.m * ld; };
    if (!even(lda_, batch_.a.back()) || (reads_c && !even(ldc_, batch_.c.back()))) return;
    if (r_.m == 1) lda_ = batch_.a.back(), ldc_ = batch_.c.back();
    r_.m *= batch_.shape.back();
    batch_.shape.pop_back(), batch_.a.pop_back(), batch_.b.pop_back(), batch_.c.pop_back();
  }

  // F8 that the hardware does not multiply (two E5M2, or before sm_89) becomes F16, which holds it exactly.
  void SetTypes() {
    const DataType a = p_.a.dtype, b = p_.b.dtype;
    converts_ = IsFloat8(a) && (device_.sm < 89 || (a == DataType::kF8E5M2 && b == DataType::kF8E5M2));
    r_.a.type = converts_ ? DataType::kF16 : a;
    r_.b.type = converts_ ? DataType::kF16 : b;
    strict_ = ElementBytes(a) == 1;
    packs_ = strict_ || ElementBytes(a) == 2 || p_.numerics == Numerics::kTf32;
  }

  // `contiguous` elements in each of `lines` lines.
  static bool Overlaps(std::int64_t lines, std::int64_t ld, std::int64_t contiguous) {
    return lines > 1 && ld < contiguous;
  }
  bool IsAligned(DataType type, std::int64_t ld, const Dims& strides) const {
    const auto whole = [&](std::int64_t elements) { return elements * ElementBytes(type) % kVectorBytes == 0; };
    return whole(ld) && std::all_of(strides.begin(), strides.end(), whole);
  }

  void DecidePacking() {
    const bool a_k = !p_.transpose_a, b_k = p_.transpose_b;
    const std::int64_t a_lines = a_k ? r_.m : g_.k, a_line = a_k ? g_.k : r_.m;
    const std::int64_t b_lines = b_k ? g_.n : g_.k, b_line = b_k ? g_.k : g_.n;
    // The stride of a single line means nothing; this one suits everybody.
    if (a_lines == 1) lda_ = RoundUp(a_line, kUnit);
    if (b_lines == 1) ldb_ = RoundUp(b_line, kUnit);
    const bool a_overlaps = Overlaps(a_lines, lda_, a_line), b_overlaps = Overlaps(b_lines, ldb_, b_line);
    if ((a_overlaps || b_overlaps) && !packs_) {
      r_.refusal = "rows of an operand overlap";
      return;
    }
    const bool a_aligned = !a_overlaps && IsAligned(p_.a.dtype, lda_, batch_.a);
    const bool b_aligned = !b_overlaps && IsAligned(p_.b.dtype, ldb_, batch_.b);
    const bool d_aligned = g_.n * ElementBytes(g_.output_dtype) % kVectorBytes == 0 || (r_.m == 1 && g_.batch == 1);
    // Rows that end inside of 16 bytes are as slow as rows that begin there: an H200 took 32 us for 300 x 7000 x 500
    // with A packed, 25 as it lay, and with both packed, whose K is filled up with zeros, 24 (B [N, K]).
    const bool k_aligned = g_.k * ElementBytes(p_.a.dtype) % kVectorBytes == 0 || !(a_k || b_k);
    const bool a_straight = a_aligned && k_aligned, b_straight = b_aligned && k_aligned;
    bool pack_a = false, pack_b = false;
    if (strict_) {
      const bool whole_k = g_.k % kUnit == 0;
      pack_a = converts_ || !a_k || !a_aligned || !whole_k;
      pack_b = converts_ || !b_k || !b_aligned || !whole_k || g_.n % kUnit != 0;
      pads_n_ = g_.n % kUnit != 0;
    } else if (packs_ && !(a_straight && b_straight && d_aligned)) {
      // Slow kernels for crooked rows, or fast ones after straightening them: whichever is sooner done.
      const bool worth = Cost(!a_straight, !b_straight, !d_aligned, true) < Cost(false, false, false, false);
      pack_a = a_overlaps || (worth && !a_straight);
      pack_b = b_overlaps || (worth && !b_straight);
      pads_n_ = worth && !d_aligned;
    }
    aligned_ = !packs_ || ((a_straight || pack_a) && (b_straight || pack_b) && (d_aligned || pads_n_));
    // Zeros past K are harmless where both operands have them.
    const std::int64_t call_k = pack_a && pack_b ? RoundUp(g_.k, kUnit) : g_.k;
    Place(r_.a, pack_a, a_k, r_.m, r_.m, lda_, batch_.a);
    Place(r_.b, pack_b, b_k, g_.n, pads_n_ ? RoundUp(g_.n, kUnit) : g_.n, ldb_, batch_.b);
    r_.call.k = call_k;
  }

  void Place(LtOperand& o, bool pack, bool k_contiguous, std::int64_t rows, std::int64_t packed_rows, std::int64_t ld,
             const Dims& strides) {
    o.packed = pack;
    o.source_k_contiguous = k_contiguous;
    o.source_rows = rows;
    o.source_ld = ld;
    o.k_contiguous = pack || k_contiguous;
    o.ld = pack ? RoundUp(g_.k, kUnit) : ld;
    o.strides = strides;
    if (!pack) return;
    o.rows = packed_rows;
    o.k = o.ld;
    o.items = 1;
    for (int i = static_cast<int>(strides.size()) - 1; i >= 0; --i) {
      if (strides[i] == 0) continue;  // the same item again: one copy serves
      o.strides[i] = o.items * packed_rows * o.ld;
      o.items *= batch_.shape[i];
      o.item_shape.insert(o.item_shape.begin(), batch_.shape[i]);
      o.item_strides.insert(o.item_strides.begin(), strides[i]);
    }
    const auto bytes = CheckedProduct({o.items, o.rows, o.k, ElementBytes(o.type)});
    if (!bytes) r_.refusal = "packed operands would be past 2^63 bytes";
    o.bytes = bytes.value_or(0);
  }

  // What cuBLASLt writes, and where.
  void DecideSums() {
    const DataType out = g_.output_dtype;
    const bool integer = p_.a.dtype == DataType::kI8, wide = p_.a.dtype == DataType::kF64;
    const DataType raw = integer ? DataType::kI32 : wide ? DataType::kF64 : DataType::kF32;
    const auto tensor_wide = [](const std::optional<ScaleSpec>& s) {
      return !s || s->kind == ScaleSpec::Kind::kTensor;
    };
    // relu commutes with rounding, so it may follow in a pass of its own; the other activations may not. (cuBLASLt's
    // own relu turns NaN into 0.)
    bool applied = p_.activation == Activation::kNone || p_.activation == Activation::kRelu;
    if (integer) {
      applied &= out == DataType::kI32 && p_.alpha == 1 && p_.beta == 0 && !p_.bias;
    } else {
      applied &= wide || !MatmulEpilogueOf(p_, g_, {}).wide;  // its factors are floats
      applied &= tensor_wide(p_.a_scale) && tensor_wide(p_.b_scale);
      // As F16 it knows of no scales, and has no BF16 results.
      if (converts_) applied &= !p_.a_scale && !p_.b_scale && out != DataType::kBF16;
      if (p_.beta != 0) {
        // It reads C as it writes D: not broadcast, rows apart, the same N.
        applied &= !pads_n_ && !Overlaps(r_.m, ldc_, g_.n);
        applied &= std::all_of(batch_.c.begin(), batch_.c.end(), [](std::int64_t s) { return s != 0; });
      }
      // Seen on an H200 with crooked rows: results as if rounded to 16 bits before the bias, so rounded twice.
      if (p_.bias) applied &= fuse_bias_ && !pads_n_ && out == DataType::kF32 && p_.bias->dtype == out;
    }
    r_.applied = applied;
    r_.call.d_type = applied ? out : raw;
    r_.sums_in_d = !pads_n_ && ElementBytes(r_.call.d_type) == ElementBytes(out);
    r_.finish = !applied || !r_.sums_in_d || p_.activation == Activation::kRelu;
    ldd_ = r_.sums_in_d ? (r_.m == 1 && batch_.shape.empty() ? RoundUp(g_.n, kUnit) : g_.n) : RoundUp(g_.n, kUnit);
    if (r_.sums_in_d) return;
    const auto bytes = CheckedProduct({g_.batch, g_.m, ldd_, ElementBytes(r_.call.d_type)});
    if (!bytes) r_.refusal = "sums would be past 2^63 bytes";
    r_.sums_bytes = bytes.value_or(0);
  }

  void SetCall() {
    LtCall& c = r_.call;
    c.device = device_.ordinal;
    c.x_type = r_.b.type;
    c.y_type = r_.a.type;
    c.tf32 = p_.numerics == Numerics::kTf32;
    c.x_transposed = r_.b.k_contiguous;
    c.y_transposed = !r_.a.k_contiguous;
    c.m = pads_n_ && r_.b.packed ? r_.b.rows : g_.n;
    c.n = r_.m;
    c.ldx = r_.b.ld;
    c.ldy = r_.a.ld;
    c.ldd = ldd_;
    c.reads_c = r_.applied && p_.beta != 0;
    c.ldc = c.reads_c ? (r_.m == 1 ? std::max(ldc_, g_.n) : ldc_) : ldd_;
    c.adds_bias = r_.applied && p_.bias.has_value();
    c.scales_x = r_.applied && p_.b_scale.has_value();
    c.scales_y = r_.applied && p_.a_scale.has_value();
    SetLoops();
    SetAlignments();
  }

  // The last dimension is cuBLASLt's own loop, the others are ours.
  void SetLoops() {
    Batch loops;
    const std::int64_t item = r_.m * ldd_;
    for (std::size_t i = 0; i < batch_.shape.size(); ++i) {
      loops.Push(batch_.shape[i], r_.a.strides[i], r_.b.strides[i], r_.call.reads_c ? batch_.c[i] : 0);
    }
    LtCall& c = r_.call;
    std::int64_t inner = 1;
    if (!loops.shape.empty()) {
      inner = loops.shape.back();
      c.batch = inner;
      c.y_stride = loops.a.back();
      c.x_stride = loops.b.back();
      c.d_stride = item;
      c.c_stride = c.reads_c ? loops.c.back() : item;
    }
    const std::size_t own = loops.shape.empty() ? 0 : loops.shape.size() - 1;
    std::int64_t calls = 1;
    for (std::size_t i = 0; i < own; ++i) calls = std::min<std::int64_t>(calls * loops.shape[i], INT32_MAX);
    if (calls > static_cast<std::int64_t>(kMaxCalls) || inner > kMaxBatchOfCall) {
      r_.refusal = absl::StrCat("a batch of ", calls, " times ", inner, ": at most ", kMaxCalls, " times ",
                                kMaxBatchOfCall, " evenly spaced items");
      return;
    }
    for (std::int64_t call = 0; call < calls; ++call) {
      LtRecipe::Start start{.d = call * inner * item};
      for (std::int64_t i = static_cast<std::int64_t>(own) - 1, rest = call; i >= 0; --i) {
        const std::int64_t at = rest % loops.shape[i];
        rest /= loops.shape[i];
        start.a += at * loops.a[i];
        start.b += at * loops.b[i];
        start.c += at * loops.c[i];
      }
      r_.starts.push_back(start);
    }
  }

  // The largest power of two that divides every address, operands starting at multiples of kDeviceAlignment.
  void SetAlignments() {
    LtCall& c = r_.call;
    std::int64_t a = 0, b = 0, cc = 0, d = 0;  // all the bits of the offsets
    for (const LtRecipe::Start& s : r_.starts) a |= s.a, b |= s.b, cc |= s.c, d |= s.d;
    const auto align = [](std::int64_t elements, std::int64_t stride, DataType type) {
      const std::int64_t bits = (elements | stride) * ElementBytes(type) | kDeviceAlignment;
      return bits & -bits;
    };
    c.y_align = align(a, c.y_stride, c.y_type);
    c.x_align = align(b, c.x_stride, c.x_type);
    c.d_align = align(d, c.d_stride, c.d_type);
    c.c_align = c.reads_c ? align(cc, c.c_stride, c.d_type) : c.d_align;
  }

  std::string CallRefusal() const {
    if (!r_.refusal.empty()) return r_.refusal;
    const LtCall& c = r_.call;
    const auto large = [](std::int64_t lines, std::int64_t ld) { return ld > INT32_MAX || lines * ld > INT32_MAX; };
    if (large(c.x_transposed ? c.m : c.k, c.ldx) || large(c.y_transposed ? c.k : c.n, c.ldy) || large(c.n, c.ldd) ||
        large(c.n, c.ldc)) {
      return "a matrix spans 2^31 elements";
    }
    return "";
  }

  static double Bytes(std::int64_t rows, std::int64_t cols, DataType type, int times) {
    return static_cast<double>(rows) * static_cast<double>(cols) * static_cast<double>(ElementBytes(type)) * times;
  }

  double Cost(bool pack_a, bool pack_b, bool finish, bool aligned) const {
    const double bytes =
        Bytes(r_.m, g_.k, p_.a.dtype, 1) + Bytes(g_.n, g_.k, p_.b.dtype, 1) + Bytes(r_.m, g_.n, g_.output_dtype, 1);
    double passes = 0;
    if (pack_a) passes += Bytes(r_.m, g_.k, r_.a.type, 2);
    if (pack_b) passes += Bytes(g_.n, g_.k, r_.b.type, 2);
    if (finish) passes += Bytes(r_.m, g_.n, g_.output_dtype, 2);
    const double items = static_cast<double>(g_.batch) * static_cast<double>(g_.m) / static_cast<double>(r_.m);
    const double flops = 2 * static_cast<double>(r_.m) * static_cast<double>(g_.n) * static_cast<double>(g_.k);
    return LtMicroseconds(device_, r_.a.type, p_.numerics == Numerics::kTf32, aligned, items * flops, items * bytes,
                          items * passes, pack_a + pack_b + finish,
                          static_cast<int>(std::max<std::size_t>(1, r_.starts.size())));
  }

  const MatmulProblem& p_;
  const MatmulGeometry& g_;
  const DeviceInfo& device_;
  const bool fuse_bias_;
  LtRecipe r_;
  Batch batch_;
  std::int64_t lda_ = 0, ldb_ = 0, ldc_ = 0, ldd_ = 0;
  bool converts_ = false;  // F8 to F16
  bool strict_ = false;    // alignment is a condition, not a matter of speed
  bool packs_ = false;     // packing is offered
  bool pads_n_ = false;    // sums in rows of whole units, beside D
  bool aligned_ = false;
};

}  // namespace

LtRecipe LtRecipeOf(const MatmulProblem& p, const MatmulGeometry& g, const DeviceInfo& device, bool fuse_bias) {
  return Builder(p, g, device, fuse_bias).Build();
}

}  // namespace kernd
