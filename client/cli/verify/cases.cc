#include "client/cli/verify/cases.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/reference/convert.h"

namespace kernd::cli {
namespace {

using reference::AttentionCase;
using reference::AttentionSizes;
using reference::MatmulCase;
using reference::MatmulSizes;
using reference::Source;

enum class Run { kAlways, kNotQuick };

TensorSpec SpecOf(DataType type, Dims shape) {
  return {.dtype = type, .shape = std::move(shape), .strides = {}};
}

// --- matmul
// -----------------------------------------------------------------------------------------------------------

using SetMatmul = void (*)(MatmulCase&, const MatmulSizes&, Source&);

void SetScales(MatmulCase& c, const MatmulSizes& n, Source& source) {
  c.problem.a_scale = {.kind = ScaleSpec::Kind::kTensor, .spec = SpecOf(DataType::kF32, {1})};
  c.problem.b_scale = {.kind = ScaleSpec::Kind::kRow, .spec = SpecOf(DataType::kF32, {n.n})};
  c.problem.output_dtype = DataType::kF32;
  c.a_scale = reference::StoreAll(DataType::kF32, {0.125});
  const std::vector<float> rows = source.Floats(n.n, 0.5, 2);
  c.b_scale = reference::StoreAll(DataType::kF32, std::vector<double>(rows.begin(), rows.end()));
}

void SetC(MatmulCase& c, const MatmulSizes& n, Source& source) {
  c.problem.alpha = -0.5;
  c.problem.beta = 2;
  c.c = source.Tensor(c.problem.c.emplace(SpecOf(c.OutputType(), {n.m, n.n})));
}

template <Activation activation>
void SetBias(MatmulCase& c, const MatmulSizes& n, Source& source) {
  c.problem.activation = activation;
  c.bias = source.Tensor(c.problem.bias.emplace(SpecOf(c.OutputType(), {n.n})));
}

class MatmulList {
 public:
  explicit MatmulList(DataType dtype) : dtype_(dtype) {}

  void Add(const std::string& name, MatmulSizes sizes, Run run = Run::kNotQuick, SetMatmul set = nullptr) {
    Case c{.op = OpKind::kMatmul, .dtype = dtype_, .name = name, .quick = run == Run::kAlways};
    c.shape = absl::StrCat(absl::StrJoin(sizes.batch, "x"), sizes.batch.empty() ? "" : "x", sizes.m, "x", sizes.n, "x",
                           sizes.k);
    c.make = [dtype = dtype_, sizes, set](Source& source) -> Call {
      MatmulCase made = MakeMatmul(dtype, sizes, source);
      if (set != nullptr) set(made, sizes, source);
      return made;
    };
    cases_.push_back(std::move(c));
  }

  // [[1, 2], [3, 4]] [[5, 6], [7, 8]] = [[19, 22], [43, 50]]: each of these is a number of every type.
  void AddKnown() {
    Add("by heart", {2, 2, 2}, Run::kAlways, [](MatmulCase& c, const MatmulSizes&, Source&) {
      c.a = reference::StoreAll(c.problem.a.dtype, {1, 2, 3, 4});
      c.b = reference::StoreAll(c.problem.b.dtype, {5, 6, 7, 8});
    });
    cases_.back().known = {19, 22, 43, 50};
  }

  std::vector<Case> Take() { return std::move(cases_); }

 private:
  DataType dtype_;
  std::vector<Case> cases_;
};

std::vector<Case> MatmulPresets(DataType dtype) {
  MatmulList list(dtype);
  list.AddKnown();
  for (std::int64_t n = 1; n <= 16; ++n) list.Add("square", {n, n, n}, n == 16 ? Run::kAlways : Run::kNotQuick);
  list.Add("odd", {33, 47, 61}, Run::kAlways);
  list.Add("odd, A^T", {33, 47, 61, {}, true, false});
  list.Add("odd, B^T", {33, 47, 61, {}, false, true});
  list.Add("odd, A^T B^T", {33, 47, 61, {}, true, true}, Run::kAlways);
  list.Add("primes", {17, 19, 23});
  list.Add("primes", {101, 103, 107});
  list.Add("primes", {211, 223, 227});
  list.Add("one row", {1, 257, 129}, Run::kAlways);
  list.Add("one column", {257, 1, 129});
  list.Add("nothing to sum", {5, 7, 0});
  list.Add("past a tile", {127, 129, 33}, Run::kAlways);
  list.Add("past a tile", {129, 127, 65});
  list.Add("whole tiles", {256, 256, 256});
  list.Add("long sum", {8, 16, 4096});
  list.Add("batch", {17, 33, 65, {3}}, Run::kAlways);
  list.Add("alpha, beta, C", {33, 47, 61}, Run::kNotQuick, SetC);
  list.Add("bias, relu", {33, 47, 61}, Run::kNotQuick, SetBias<Activation::kRelu>);
  list.Add("bias, gelu", {33, 47, 61}, Run::kAlways, SetBias<Activation::kGelu>);
  list.Add("bias, silu", {33, 47, 61}, Run::kNotQuick, SetBias<Activation::kSilu>);
  if (IsFloat8(dtype) || dtype == DataType::kI8) list.Add("scales", {33, 47, 61}, Run::kAlways, SetScales);
  return list.Take();
}

// --- attention
// --------------------------------------------------------------------------------------------------------

using SetAttention = std::function<void(AttentionCase&, Source&)>;

// Rows without a key of their own size, keys to the left and right, and where the diagonal lies.
SetAttention Window(MaskAlignment alignment, std::optional<std::int64_t> left, std::optional<std::int64_t> right) {
  return [=](AttentionCase& c, Source&) {
    c.problem.alignment = alignment;
    c.problem.causal = right == 0;
    c.problem.window_left = left;
    if (right != 0) c.problem.window_right = right;
  };
}

SetAttention Causal(MaskAlignment alignment = MaskAlignment::kTopLeft) {
  return Window(alignment, std::nullopt, 0);
}

class AttentionList {
 public:
  explicit AttentionList(DataType dtype) : dtype_(dtype) {}

  void Add(const std::string& name, AttentionSizes n, Run run = Run::kNotQuick, SetAttention set = nullptr,
           AttentionLayout layout = AttentionLayout::kBHLD) {
    Case c{.op = OpKind::kAttention, .dtype = dtype_, .name = name, .quick = run == Run::kAlways};
    c.shape = absl::StrJoin({n.batch, n.q_heads, n.q_rows, n.head_dim}, "x");
    const bool dv = n.v_head_dim != n.head_dim, rows = dv || n.kv_rows != n.q_rows;
    if (rows || n.kv_heads != n.q_heads) absl::StrAppend(&c.shape, ",", n.kv_heads);
    if (rows) absl::StrAppend(&c.shape, ",", n.kv_rows);
    if (dv) absl::StrAppend(&c.shape, ",", n.v_head_dim);
    c.make = [dtype = dtype_, n, layout, set = std::move(set)](Source& source) -> Call {
      AttentionCase made = MakeAttention(dtype, layout, n, source);
      if (set) set(made, source);
      return made;
    };
    cases_.push_back(std::move(c));
  }

  // Q of zeros: each row of O is the mean of the values that it sees.
  void AddKnown(const std::string& name, bool causal, std::vector<double> o) {
    Add(name, {1, 1, 2, 2, 1, 2, 2}, Run::kAlways, [causal](AttentionCase& c, Source&) {
      c.problem.causal = causal;
      c.problem.want_lse = false;
      c.q = reference::StoreAll(c.problem.q.dtype, {0, 0, 0, 0});
      c.v = reference::StoreAll(c.problem.v.dtype, {1, 2, 3, 4});
    });
    cases_.back().known = std::move(o);
  }

  std::vector<Case> Take() { return std::move(cases_); }

 private:
  DataType dtype_;
  std::vector<Case> cases_;
};

std::vector<Case> AttentionPresets(DataType dtype) {
  constexpr MaskAlignment kTop = MaskAlignment::kTopLeft, kBottom = MaskAlignment::kBottomRight;
  AttentionList list(dtype);
  list.AddKnown("by heart", false, {2, 3, 2, 3});
  list.AddKnown("by heart, causal", true, {1, 2, 2, 3});
  for (const std::int64_t n : {1, 17, 33, 127, 129}) {
    const Run run = n == 33 ? Run::kAlways : Run::kNotQuick;
    list.Add("full", {1, 2, n, 64, 2, n, 64}, run);
    list.Add("causal", {1, 2, n, 64, 2, n, 64}, run, Causal());
  }
  list.Add("causal", {1, 2, 512, 64, 2, 512, 64}, Run::kNotQuick, Causal());
  list.Add("one query", {2, 4, 1, 128, 2, 257, 128}, Run::kAlways, Causal(kBottom));
  list.Add("fewer queries, bottom-right", {1, 2, 17, 64, 2, 129, 64}, Run::kNotQuick, Causal(kBottom));
  list.Add("fewer keys, top-left", {1, 2, 129, 64, 2, 33, 64}, Run::kNotQuick, Causal(kTop));
  list.Add("rows without keys", {1, 2, 65, 64, 2, 33, 64}, Run::kNotQuick, Causal(kBottom));
  list.Add("grouped heads", {2, 8, 65, 64, 2, 65, 64}, Run::kAlways, Causal());
  list.Add("one kv head", {2, 8, 65, 64, 1, 65, 64});
  list.Add("window 16, causal", {1, 2, 129, 64, 2, 129, 64}, Run::kAlways, Window(kTop, 16, 0));
  list.Add("window 8 + 8", {1, 2, 129, 64, 2, 129, 64}, Run::kNotQuick, Window(kTop, 8, 8));
  list.Add("window 0 + 0", {1, 2, 33, 64, 2, 33, 64}, Run::kNotQuick, Window(kTop, 0, 0));
  list.Add("bias", {1, 4, 33, 64, 4, 65, 64}, Run::kAlways, [](AttentionCase& c, Source& source) {
    c.bias = source.Tensor(c.problem.bias.emplace(SpecOf(DataType::kF32, {1, 4, 33, 65})));
  });
  list.Add("mask", {2, 2, 33, 64, 2, 65, 64}, Run::kNotQuick, [](AttentionCase& c, Source& source) {
    c.mask = source.Mask(c.problem.mask.emplace(SpecOf(DataType::kBool, {2, 1, 33, 65})), 0.7);
  });
  list.Add("slopes, causal", {1, 4, 65, 64, 4, 65, 64}, Run::kNotQuick, [](AttentionCase& c, Source& source) {
    c.problem.causal = true;
    c.problem.alibi_slopes = source.Floats(4, 0, 0.5);
  });
  list.Add("softcap", {1, 2, 65, 64, 2, 65, 64}, Run::kNotQuick,
           [](AttentionCase& c, Source&) { c.problem.softcap = 2; });
  list.Add("sinks, causal", {1, 4, 65, 64, 4, 65, 64}, Run::kNotQuick, [](AttentionCase& c, Source& source) {
    c.problem.causal = true;
    c.problem.sinks = source.Floats(4, -3, 3);
  });
  list.Add("scale 0", {1, 2, 33, 64, 2, 33, 64}, Run::kNotQuick,
           [](AttentionCase& c, Source&) { c.problem.scale = 0; });
  list.Add("lengths", {3, 2, 65, 64, 2, 65, 64}, Run::kAlways, [](AttentionCase& c, Source&) {
    c.problem.q_lengths = {65, 1, 0};
    c.problem.kv_lengths = {64, 17, 65};
  });
  list.Add("lengths, causal", {3, 2, 65, 64, 2, 65, 64}, Run::kNotQuick, [](AttentionCase& c, Source&) {
    c.problem.causal = true;
    c.problem.alignment = MaskAlignment::kBottomRight;
    c.problem.kv_lengths = {65, 17, 0};
  });
  list.Add("BLHD, causal", {2, 4, 65, 64, 2, 65, 64}, Run::kAlways, Causal(), AttentionLayout::kBLHD);
  list.Add("packed, causal", {4, 4, 33, 64, 2, 33, 64}, Run::kAlways, Causal(), AttentionLayout::kPacked);
  list.Add("packed, bottom-right", {3, 2, 17, 64, 2, 65, 64}, Run::kNotQuick, Causal(kBottom),
           AttentionLayout::kPacked);
  for (const std::int64_t d : {8, 32, 80, 96, 128, 192, 256}) {
    const Run run = d == 128 ? Run::kAlways : Run::kNotQuick;
    list.Add("head_dim, causal", {1, 2, 65, d, 2, 65, d}, run, Causal());
  }
  list.Add("head_dim, other Dv", {1, 2, 65, 192, 2, 65, 128}, Run::kNotQuick, Causal());
  if (IsFloat8(dtype)) {
    list.Add("scales", {1, 4, 65, 64, 2, 65, 64}, Run::kAlways, [](AttentionCase& c, Source& source) {
      c.problem.q_scale = {0.5f};
      c.problem.k_scale = source.Floats(2, 0.5, 2);
      c.problem.v_scale = source.Floats(2, 0.5, 2);
    });
  }
  return list.Take();
}

constexpr std::array kMatmulTypes = {DataType::kF32, DataType::kF16,    DataType::kBF16,  DataType::kF64,
                                     DataType::kI8,  DataType::kF8E4M3, DataType::kF8E5M2};
constexpr std::array kAttentionTypes = {DataType::kF32, DataType::kF16, DataType::kBF16, DataType::kF8E4M3,
                                        DataType::kF8E5M2};

}  // namespace

Case InTf32(const Case& c) {
  Case tf32 = c;
  absl::StrAppend(&tf32.name, ", TF32");
  tf32.tf32 = true;
  tf32.make = [make = c.make](Source& source) {
    Call call = make(source);
    std::get<MatmulCase>(call).problem.numerics = Numerics::kTf32;
    return call;
  };
  return tf32;
}

std::vector<DataType> DataTypesOf(OpKind op) {
  switch (op) {
    case OpKind::kMatmul: return {kMatmulTypes.begin(), kMatmulTypes.end()};
    case OpKind::kAttention: return {kAttentionTypes.begin(), kAttentionTypes.end()};
    case OpKind::kMerge: break;
  }
  return {};
}

std::vector<Case> Presets(OpKind op, DataType dtype) {
  const std::vector<DataType> types = DataTypesOf(op);
  if (std::find(types.begin(), types.end(), dtype) == types.end()) return {};
  return op == OpKind::kMatmul ? MatmulPresets(dtype) : AttentionPresets(dtype);
}

}  // namespace kernd::cli
