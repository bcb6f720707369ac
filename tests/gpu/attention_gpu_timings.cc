// Times of every attention variant on a few shapes, random operands, medians of device times. Off by default:
//   attention_gpu_test --gtest_also_run_disabled_tests --gtest_filter='*Timings*'
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/gpu/attention_gpu_case.h"

namespace kernd::gpu {
namespace {

struct TimedShape {
  const char* what;
  DataType type;
  std::int64_t batch, q_heads, kv_heads, q_rows, kv_rows, d, dv;
  bool causal, naive;  // naive: also by the textbook, where its matrix is not too large
};

constexpr TimedShape kShapes[] = {
    {"prefill", DataType::kBF16, 2, 16, 16, 4096, 4096, 128, 128, false, true},
    {"prefill, causal", DataType::kBF16, 2, 16, 16, 4096, 4096, 128, 128, true, false},
    {"prefill", DataType::kF16, 2, 16, 16, 4096, 4096, 64, 64, false, false},
    {"prefill", DataType::kF32, 2, 16, 16, 4096, 4096, 128, 128, false, false},
    {"prefill", DataType::kF8E4M3, 2, 16, 16, 4096, 4096, 128, 128, false, false},
    {"prefill", DataType::kBF16, 2, 8, 8, 4096, 4096, 256, 256, false, false},
    {"prefill, GQA", DataType::kBF16, 1, 64, 8, 4096, 4096, 128, 128, true, false},
    {"small", DataType::kF16, 1, 8, 8, 128, 128, 64, 64, false, true},
    {"decode", DataType::kBF16, 16, 32, 8, 1, 8192, 128, 128, false, false},
    {"decode", DataType::kBF16, 1, 32, 8, 1, 8192, 128, 128, false, true},
    {"decode", DataType::kBF16, 1, 32, 8, 1, 131072, 128, 128, false, false},
    {"decode, MHA", DataType::kBF16, 16, 32, 32, 1, 4096, 128, 128, false, false},
    {"decode, F8", DataType::kF8E4M3, 16, 32, 8, 1, 8192, 128, 128, false, false},
};

class AttentionGpuTimings : public DeviceTest {
 protected:
  static DeviceBuffer RandomBuffer(const TensorSpec& spec) {
    // A block of random numbers, again and again: what matters is that no two keys of a tile are alike.
    const TensorSpec block = SpecOf(spec.dtype, {std::min<std::int64_t>(spec.elements(), 1 << 20)});
    Operand operand(block, 0);
    Random random(7);
    operand.FillNormal(random);
    DeviceBuffer buffer(spec.bytes());
    for (std::int64_t at = 0; at < buffer.bytes(); at += operand.bytes()) {
      buffer.Upload(at, operand.data(), std::min(operand.bytes(), buffer.bytes() - at));
    }
    return buffer;
  }

  void Time(const AttentionVariant& variant, const TimedShape& n, const AttentionProblem& p,
            const AttentionArgs& operands) {
    const AttentionGeometry g = *Validate(p);
    const AttentionTableLayout layout(p, g);
    std::vector<std::byte> table(static_cast<std::size_t>(layout.bytes()));
    layout.Write(p, g, table.data());
    const DeviceBuffer tables(table.data(), layout.bytes()), o(g.o_spec.bytes()), lse(g.lse_spec->bytes()),
        workspace(variant.workspace_bytes(p, g, Device()));
    AttentionArgs args = operands;
    args.o = o.data();
    args.lse = static_cast<float*>(lse.data());
    cudaEvent_t before, after;
    ASSERT_EQ(cudaEventCreate(&before), cudaSuccess);
    ASSERT_EQ(cudaEventCreate(&after), cudaSuccess);
    std::vector<float> times;
    for (int i = 0; i < 8; ++i) {
      ASSERT_EQ(cudaEventRecord(before), cudaSuccess);
      ASSERT_TRUE(variant
                      .launch(p, g, Device(), args, layout.At(static_cast<std::byte*>(tables.data())), workspace.data(),
                              nullptr)
                      .ok());
      ASSERT_EQ(cudaEventRecord(after), cudaSuccess);
      ASSERT_EQ(cudaEventSynchronize(after), cudaSuccess);
      float milliseconds = 0;
      ASSERT_EQ(cudaEventElapsedTime(&milliseconds, before, after), cudaSuccess);
      if (i >= 3) times.push_back(milliseconds);
    }
    (void)cudaEventDestroy(before);
    (void)cudaEventDestroy(after);
    std::nth_element(times.begin(), times.begin() + 2, times.end());
    const double seconds = times[2] * 1e-3;
    const double flops =
        2.0 * static_cast<double>(n.batch * n.q_heads * n.q_rows * n.kv_rows * (n.d + n.dv)) / (n.causal ? 2 : 1);
    const double bytes = static_cast<double>(p.k.bytes() + p.v.bytes());
    std::printf(
        "%-30s %-16s B%ld Hq%ld Hkv%ld Lq%ld Lkv%ld D%ld/%ld: %9.3f ms %7.2f TFLOP/s, K and V %7.1f GB/s; "
        "workspace %.1f MiB; estimate %.3f ms\n",
        variant.info.name.c_str(), n.what, n.batch, n.q_heads, n.kv_heads, n.q_rows, n.kv_rows, n.d, n.dv,
        seconds * 1e3, flops / seconds * 1e-12, bytes / seconds * 1e-9,
        static_cast<double>(workspace.bytes()) / (1 << 20), variant.estimate(p, g, Device()) * 1e-3);
  }
};

TEST_F(AttentionGpuTimings, DISABLED_Shapes) {
  std::printf("%s, sm_%d, %d multiprocessors\n", Device().name.c_str(), Device().sm, Device().multiprocessors);
  for (const TimedShape& n : kShapes) {
    AttentionProblem p;
    p.q = SpecOf(n.type, {n.batch, n.q_heads, n.q_rows, n.d});
    p.k = SpecOf(n.type, {n.batch, n.kv_heads, n.kv_rows, n.d});
    p.v = SpecOf(n.type, {n.batch, n.kv_heads, n.kv_rows, n.dv});
    p.causal = n.causal;
    p.alignment = MaskAlignment::kBottomRight;
    p.want_lse = true;
    const DeviceBuffer q = RandomBuffer(p.q), k = RandomBuffer(p.k), v = RandomBuffer(p.v);
    for (const AttentionVariant& variant : AttentionVariants()) {
      if (!Takes(variant, p)) continue;
      if (!n.naive && variant.info.name.ends_with("_naive")) continue;
      Time(variant, n, p, {.q = q.data(), .k = k.data(), .v = v.data()});
    }
  }
}

}  // namespace
}  // namespace kernd::gpu
