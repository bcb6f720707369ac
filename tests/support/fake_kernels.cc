#include "tests/support/fake_kernels.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "kernd/kernels/non_finite.h"
#include "kernels/reference/attention.h"
#include "kernels/reference/matmul.h"

namespace kernd::testing {
namespace {

FakeGpu* g_gpu = nullptr;  // rows of a table are plain functions

template <typename Problem, typename Geometry>
std::string Anything(const Problem&, const Geometry&, const DeviceInfo&) {
  return "";
}
double Estimate(const MatmulProblem&, const MatmulGeometry& g, const DeviceInfo&) {
  return g_gpu->microseconds_a_row * static_cast<double>(g.batch * g.m);
}
double Estimate(const AttentionProblem&, const AttentionGeometry& g, const DeviceInfo&) {
  double rows = 0;
  for (const AttentionSequence& s : g.sequences) rows += static_cast<double>(g.q_heads * s.q_rows);
  return g_gpu->microseconds_a_row * rows;
}
template <typename Problem, typename Geometry>
std::int64_t OneUnit(const Problem&, const Geometry&, const DeviceInfo&) {
  return kDeviceAlignment;
}
absl::Status Load(const DeviceInfo&) {
  return absl::OkStatus();
}

void AfterKernel(void* result, std::int64_t elements) {
  if (g_gpu->after_kernel) g_gpu->after_kernel(static_cast<float*>(result), elements);
}

absl::Status LaunchMatmul(const MatmulProblem& p, const MatmulGeometry& g, const DeviceInfo&, const MatmulArgs& args,
                          void* workspace, Stream stream) {
  return g_gpu->Launch(stream, [=, &p, &g] {
    std::memset(workspace, 0, kDeviceAlignment);
    reference::Matmul(p, args).IgnoreError();
    AfterKernel(args.d, g.d.elements());
  });
}

// Elements (head, row, column) at these strides, one sequence's.
TensorSpec SpecOf(DataType type, const HeadStrides& strides, std::int64_t heads, std::int64_t rows, std::int64_t cols) {
  return {.dtype = type, .shape = {1, heads, rows, cols}, .strides = {strides.batch, strides.head, strides.row, 1}};
}
TensorSpec SpecOf(DataType type, const BroadcastStrides& strides, const AttentionGeometry& g,
                  const AttentionSequence& s) {
  return {.dtype = type,
          .shape = {1, g.q_heads, s.q_rows, s.kv_length},
          .strides = {strides.batch, strides.head, strides.row, 1}};
}

template <typename T>
const T* At(const void* data, std::int64_t element) {
  return data == nullptr ? nullptr : static_cast<const T*>(data) + element;
}

// As a kernel would: shapes, strides and lengths from geometry and tables, of which a slice has its own; from the
// problem what no slice changes. One sequence after the other.
void Attention(const AttentionProblem& p, const AttentionGeometry& g, const AttentionArgs& args,
               const AttentionTables& tables) {
  for (std::int64_t b = 0; b < g.batch; ++b) {
    const AttentionSequence& s = tables.sequences[b];
    AttentionProblem one;
    one.q = SpecOf(p.q.dtype, g.q, g.q_heads, s.q_rows, g.head_dim);
    one.k = SpecOf(p.k.dtype, g.k, g.kv_heads, s.kv_length, g.head_dim);
    one.v = SpecOf(p.v.dtype, g.v, g.kv_heads, s.kv_length, g.v_head_dim);
    if (p.mask) one.mask = SpecOf(DataType::kBool, g.mask, g, s);
    if (p.bias) one.bias = SpecOf(p.bias->dtype, g.bias, g, s);
    one.scale = g.scale;
    one.softcap = p.softcap;
    one.alignment = s.diagonal == 0 ? MaskAlignment::kTopLeft : MaskAlignment::kBottomRight;
    one.window_left = g.window_left;
    one.window_right = g.window_right;
    one.q_lengths = {s.q_length};
    if (tables.alibi_slopes != nullptr) one.alibi_slopes.assign(tables.alibi_slopes, tables.alibi_slopes + g.q_heads);
    if (tables.sinks != nullptr) one.sinks.assign(tables.sinks, tables.sinks + g.q_heads);
    one.want_lse = p.want_lse;
    std::vector<float> o(static_cast<std::size_t>(g.q_heads * s.q_rows * g.v_head_dim));
    std::vector<float> lse(static_cast<std::size_t>(g.q_heads * s.q_rows));
    const std::int64_t mask = b * g.mask.batch, bias = b * g.bias.batch;
    const absl::Status done = reference::Attention(one, {.q = At<float>(args.q, b * g.q.batch + s.q_start * g.q.row),
                                                         .k = At<float>(args.k, b * g.k.batch + s.kv_start * g.k.row),
                                                         .v = At<float>(args.v, b * g.v.batch + s.kv_start * g.v.row),
                                                         .mask = At<char>(args.mask, mask),
                                                         .bias = At<float>(args.bias, bias),
                                                         .o = o.data(),
                                                         .lse = p.want_lse ? lse.data() : nullptr});
    if (!done.ok()) std::abort();
    for (std::int64_t h = 0; h < g.q_heads; ++h) {
      for (std::int64_t i = 0; i < s.q_rows; ++i) {
        const float* const row = o.data() + (h * s.q_rows + i) * g.v_head_dim;
        std::copy(row, row + g.v_head_dim,
                  static_cast<float*>(args.o) + b * g.o.batch + h * g.o.head + (s.q_start + i) * g.o.row);
        if (p.want_lse) args.lse[b * g.lse.batch + h * g.lse.head + s.q_start + i] = lse[h * s.q_rows + i];
      }
    }
  }
}

absl::Status LaunchAttention(const AttentionProblem& p, const AttentionGeometry& g, const DeviceInfo&,
                             const AttentionArgs& args, const AttentionTables& tables, void* workspace, Stream stream) {
  return g_gpu->Launch(stream, [=, &p, &g] {
    std::memset(workspace, 0, kDeviceAlignment);
    Attention(p, g, args, tables);
    AfterKernel(args.o, g.o_spec.elements());
  });
}

absl::Status ScanTensor(DataType type, const void* data, std::int64_t elements, std::uint64_t* counts,
                        const DeviceInfo&, Stream stream) {
  return g_gpu->Launch(stream, [=] {
    const NonFinite found = CountNonFinite(type, data, elements);
    counts[0] += static_cast<std::uint64_t>(found.nan);
    counts[1] += static_cast<std::uint64_t>(found.inf);
  });
}

AttentionVariant AttentionRow(const char* name, int min_sm) {
  return {.info = {.name = name, .op = OpKind::kAttention, .dtypes = {DataType::kF32}, .method = "the reference"},
          .min_sm = min_sm,
          .why_not = Anything,
          .estimate = Estimate,
          .workspace_bytes = OneUnit,
          .load = Load,
          .launch = LaunchAttention};
}

MatmulVariant MatmulRow(const char* name, int min_sm) {
  return {.info = {.name = name, .op = OpKind::kMatmul, .dtypes = {DataType::kF32}, .method = "the reference"},
          .min_sm = min_sm,
          .why_not = Anything,
          .estimate = Estimate,
          .workspace_bytes = OneUnit,
          .load = Load,
          .launch = LaunchMatmul};
}

}  // namespace

gpu::KernelTables FakeKernels(FakeGpu& gpu) {
  g_gpu = &gpu;
  static const auto& attention = *new std::vector<AttentionVariant>{AttentionRow("attention_f32_sm75_fake", 75),
                                                                    AttentionRow("attention_f32_sm100_fake", 100)};
  static const auto& matmul =
      *new std::vector<MatmulVariant>{MatmulRow("matmul_f32_sm75_fake", 75), MatmulRow("matmul_f32_sm100_fake", 100)};
  return {.attention = attention, .matmul = matmul, .scan = ScanTensor};
}

}  // namespace kernd::testing
