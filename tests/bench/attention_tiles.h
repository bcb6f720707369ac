// One attention problem on a GPU that candidates for a kernel's tile are timed on, for attention_mma_tiles.cu and
// attention_wgmma_tiles.cu. A line of JSON for each candidate.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernd/kernels/gpu.h"
#include "kernels/gpu/cuda.h"
#include "kernels/reference/problem_case.h"

namespace kernd::gpu {

// Q, K, V and O on the device, the same for all problems: as many elements each, F16 from N(0, 1).
struct TiledOperands {
  static constexpr std::int64_t kTokens = 16384, kChannels = 2048, kBytes = kTokens * kChannels * 2;

  AttentionArgs args;

  static const TiledOperands& Get() {
    static const TiledOperands operands;
    return operands;
  }

 private:
  TiledOperands() {
    constexpr std::int64_t kDrawn = 1 << 20;  // which repeat: drawing all would take longer than timing
    reference::Source source(1);
    const void** const operands[] = {&args.q, &args.k, &args.v};
    for (const void** const operand : operands) {
      const reference::Elements drawn = source.Tensor({.dtype = DataType::kF16, .shape = {kDrawn}});
      auto* const memory = static_cast<std::byte*>(Allocate());
      for (std::int64_t at = 0; memory != nullptr && at < kBytes; at += kDrawn * 2) {
        (void)cudaMemcpy(memory + at, drawn.data(), kDrawn * 2, cudaMemcpyHostToDevice);
      }
      *operand = memory;
    }
    args.o = Allocate();
  }
  static void* Allocate() {
    void* memory = nullptr;
    return cudaMalloc(&memory, kBytes) == cudaSuccess ? memory : nullptr;  // kernels will fail, and say so
  }
};

// F16, 16384 tokens in all and 2048 channels, as the peers' figures have them.
class TiledProblem {
 public:
  TiledProblem(std::int64_t head_dim, std::int64_t length, bool causal)
      : d_(head_dim),
        length_(length),
        heads_(TiledOperands::kChannels / head_dim),
        batch_(TiledOperands::kTokens / length),
        causal_(causal),
        args_(TiledOperands::Get().args) {
    const TensorSpec spec{.dtype = DataType::kF16, .shape = {batch_, heads_, length, head_dim}};
    problem_ = {.q = spec, .k = spec, .v = spec};
    problem_.causal = causal;
    problem_.alignment = MaskAlignment::kTopLeft;
    problem_.want_lse = false;
    geometry_ = *Validate(problem_);
    const AttentionTableLayout layout(problem_, geometry_);
    std::vector<std::byte> table(static_cast<std::size_t>(layout.bytes()));
    layout.Write(problem_, geometry_, table.data());
    if (cudaMalloc(&table_, table.size()) == cudaSuccess) {
      (void)cudaMemcpy(table_, table.data(), table.size(), cudaMemcpyHostToDevice);
    }
    tables_ = layout.At(static_cast<std::byte*>(table_));
  }
  ~TiledProblem() { (void)cudaFree(table_); }
  TiledProblem(const TiledProblem&) = delete;
  TiledProblem& operator=(const TiledProblem&) = delete;

  const AttentionProblem& problem() const { return problem_; }
  const AttentionGeometry& geometry() const { return geometry_; }
  const AttentionArgs& args() const { return args_; }
  const AttentionTables& tables() const { return tables_; }

  // The two ends of O, which candidates are compared by: a MiB is enough of jobs of any kind.
  std::vector<std::byte> SampleOfOutput() const {
    constexpr std::int64_t kSample = 1 << 20;
    std::vector<std::byte> sample(2 * kSample);
    const auto* const o = static_cast<const std::byte*>(args_.o);
    (void)cudaMemcpy(sample.data(), o, kSample, cudaMemcpyDeviceToHost);
    (void)cudaMemcpy(sample.data() + kSample, o + TiledOperands::kBytes - kSample, kSample, cudaMemcpyDeviceToHost);
    return sample;
  }
  void ForgetOutput() const { (void)cudaMemset(args_.o, 0xff, TiledOperands::kBytes); }

  // Median of ten runs of `launch()`, after three that do not count.
  template <typename Launch>
  void Time(const char* tile, const Launch& launch) const {
    cudaEvent_t before, after;
    (void)cudaEventCreate(&before);
    (void)cudaEventCreate(&after);
    std::vector<float> times;
    absl::Status status;
    for (int i = 0; i < 13 && status.ok(); ++i) {
      (void)cudaEventRecord(before);
      status = launch();
      (void)cudaEventRecord(after);
      status.Update(CudaStatus(cudaEventSynchronize(after), tile));
      float milliseconds = 0;
      (void)cudaEventElapsedTime(&milliseconds, before, after);
      if (i >= 3) times.push_back(milliseconds);
    }
    (void)cudaEventDestroy(before);
    (void)cudaEventDestroy(after);
    if (!status.ok()) {
      std::fprintf(stderr, "%s: %s\n", tile, std::string(status.message()).c_str());
      return;
    }
    std::nth_element(times.begin(), times.begin() + 5, times.end());
    const double flops = 4.0 * static_cast<double>(batch_ * heads_ * length_ * length_ * d_) / (causal_ ? 2 : 1);
    std::printf("{\"tile\": \"%s\", \"d\": %ld, \"length\": %ld, \"causal\": %s, \"ms\": %.4f, \"tflops\": %.1f}\n",
                tile, static_cast<long>(d_), static_cast<long>(length_), causal_ ? "true" : "false", times[5],
                flops / times[5] * 1e-9);
    std::fflush(stdout);
  }

 private:
  std::int64_t d_, length_, heads_, batch_;
  bool causal_;
  AttentionProblem problem_;
  AttentionGeometry geometry_;
  AttentionArgs args_;
  AttentionTables tables_;
  void* table_ = nullptr;
};

// Calls `time(length, causal, device)` for the usual problems. The exit code of a program.
template <typename Time>
int ForUsualProblems(const Time& time) {
  cudaDeviceProp properties{};
  if (cudaGetDeviceProperties(&properties, 0) != cudaSuccess) {
    std::fprintf(stderr, "no CUDA device\n");
    return 1;
  }
  const DeviceInfo device{.sm = properties.major * 10 + properties.minor,
                          .multiprocessors = properties.multiProcessorCount,
                          .shared_memory_optin = static_cast<std::int64_t>(properties.sharedMemPerBlockOptin),
                          .l2_bytes = properties.l2CacheSize};
  for (const std::int64_t length : {1024, 16384, 512, 4096}) {  // the most telling first
    for (const bool causal : {true, false}) time(length, causal, device);
  }
  return 0;
}

}  // namespace kernd::gpu
