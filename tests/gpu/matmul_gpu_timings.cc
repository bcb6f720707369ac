// How fast each row is; prints, asserts nothing, and runs only when asked for:
//   matmul_gpu_test --gtest_also_run_disabled_tests --gtest_filter='*Timings*'
// Normal numbers; a graph of products, one after the other, replayed for at least 20 ms: the device's own time, with
// operands that fit into the L2 cache there. "enqueue" is what a launch costs the host.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/gpu/matmul_gpu_run.h"

namespace kernd::testing::matmul {
namespace {

// A buffer filled with one random block again and again.
DeviceBuffer RandomBuffer(DataType type, std::int64_t elements) {
  const std::int64_t size = ElementBytes(type), block = std::min<std::int64_t>(elements, 1 << 18);
  Random random(41);
  Operand values(SpecOf(type, {block}), 0);
  values.FillNormal(random);
  DeviceBuffer buffer(elements * size);
  buffer.Upload(0, values.data(), block * size);
  auto* bytes = static_cast<char*>(buffer.data());
  for (std::int64_t at = block; at < elements; at += block) {
    (void)cudaMemcpy(bytes + at * size, bytes, static_cast<std::size_t>(std::min(block, elements - at) * size),
                     cudaMemcpyDeviceToDevice);
  }
  return buffer;
}

class MatmulGpuTimings : public MatmulGpu {
 protected:
  void Time(const MatmulVariant& row, const MatmulProblem& p) {
    const MatmulGeometry g = *Validate(p);
    if (const std::string why = WhyNot(row, p, g); !why.empty()) return;
    const DeviceBuffer a = RandomBuffer(p.a.dtype, p.a.elements()), b = RandomBuffer(p.b.dtype, p.b.elements());
    DeviceBuffer d(g.d.bytes()), workspace(row.workspace_bytes(p, g, device_));
    const MatmulArgs args{.a = a.data(), .b = b.data(), .d = d.data()};
    const auto launch = [&](Stream stream) {
      const absl::Status status = row.launch(p, g, device_, args, workspace.data(), stream);
      EXPECT_TRUE(status.ok()) << status;
    };
    cudaStream_t stream = nullptr;
    cudaEvent_t start = nullptr, stop = nullptr;
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t replay = nullptr;
    ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
    ASSERT_EQ(cudaEventCreate(&start), cudaSuccess);
    ASSERT_EQ(cudaEventCreate(&stop), cudaSuccess);
    launch(stream);
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    constexpr int kInGraph = 10;
    ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    const auto before = std::chrono::steady_clock::now();
    for (int i = 0; i < kInGraph; ++i) launch(stream);
    const double enqueue =
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - before).count() / kInGraph;
    ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    ASSERT_EQ(cudaGraphInstantiate(&replay, graph, 0), cudaSuccess);
    const auto run = [&](int times) {
      (void)cudaEventRecord(start, stream);
      for (int i = 0; i < times; ++i) (void)cudaGraphLaunch(replay, stream);
      (void)cudaEventRecord(stop, stream);
      (void)cudaEventSynchronize(stop);
      float milliseconds = 0;
      (void)cudaEventElapsedTime(&milliseconds, start, stop);
      return milliseconds * 1e3 / (times * kInGraph);
    };
    const double once = run(1);
    const int times = static_cast<int>(std::clamp(20e3 / (once * kInGraph), 1.0, 500.0));
    std::vector<double> all = {run(times), run(times), run(times)};
    std::sort(all.begin(), all.end());
    const double flops = 2.0 * static_cast<double>(g.batch) * static_cast<double>(g.m) * static_cast<double>(g.n) *
                         static_cast<double>(g.k);
    std::printf(
        "%-30s %4s %5ldx%5ldx%5ld%s%s %10.2f us %8.2f TFLOP/s  estimate %9.2f us  enqueue %5.1f us  workspace %ld\n",
        row.info.name.c_str(), p.numerics == Numerics::kTf32 ? "tf32" : "", static_cast<long>(g.m),
        static_cast<long>(g.n), static_cast<long>(g.k), p.transpose_a ? " T" : " N", p.transpose_b ? "T" : "N", all[1],
        flops / all[1] * 1e-6, row.estimate(p, g, device_), enqueue, static_cast<long>(workspace.bytes()));
    std::fflush(stdout);
    (void)cudaGraphExecDestroy(replay);
    (void)cudaGraphDestroy(graph);
    (void)cudaEventDestroy(start);
    (void)cudaEventDestroy(stop);
    (void)cudaStreamDestroy(stream);
  }

  void Time(DataType type, std::int64_t m, std::int64_t n, std::int64_t k, bool transpose_b,
            Numerics numerics = Numerics::kDefault) {
    MatmulProblem p{.a = SpecOf(type, {m, k}), .b = SpecOf(type, transpose_b ? Dims{n, k} : Dims{k, n})};
    p.transpose_b = transpose_b;
    p.numerics = numerics;
    for (const MatmulVariant& row : MatmulVariants()) {
      const bool simt = row.info.name.ends_with("simt");
      if (!simt || m * n * k <= std::int64_t{2048} * 2048 * 4096) Time(row, p);
    }
  }
};

TEST_F(MatmulGpuTimings, DISABLED_Squares) {
  for (const DataType type : kTypes) {
    for (const std::int64_t side : {64, 512, 1024, 2048, 4096, 8192}) Time(type, side, side, side, true);
    Time(type, 4096, 4096, 4096, false);
  }
  for (const std::int64_t side : {1024, 4096}) Time(DataType::kF32, side, side, side, true, Numerics::kTf32);
}

TEST_F(MatmulGpuTimings, DISABLED_OddShapes) {
  for (const DataType type : {DataType::kBF16, DataType::kF8E4M3, DataType::kI8}) {
    Time(type, 4096, 4097, 4095, false);
    Time(type, 300, 7000, 500, false);
    Time(type, 1000, 1000, 1000, false);
    Time(type, 1001, 1001, 1001, true);
  }
  for (const std::int64_t m : {1, 4, 16, 17, 64}) {
    Time(DataType::kBF16, m, 4096, 4096, true);
    Time(DataType::kBF16, m, 4096, 4095, true);
  }
}

TEST_F(MatmulGpuTimings, DISABLED_Epilogues) {
  for (const Activation activation : {Activation::kNone, Activation::kRelu, Activation::kGelu, Activation::kSilu}) {
    MatmulProblem p{.a = SpecOf(DataType::kBF16, {4096, 4096}), .b = SpecOf(DataType::kBF16, {4096, 4096})};
    p.activation = activation;
    std::printf("%s: ", std::string(Name(activation)).c_str());
    Time(Row(DataType::kBF16, "lt_heuristic"), p);
  }
}

}  // namespace
}  // namespace kernd::testing::matmul
