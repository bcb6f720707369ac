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

// F16, 16384 tokens in all and 2048 channels, as the peers' figures have them.
class TiledProblem {
 public:
  TiledProblem(std::int64_t head_dim, std::int64_t length, bool causal)
      : d_(head_dim), length_(length), heads_(2048 / head_dim), batch_(16384 / length), causal_(causal) {
    reference::Source source(1);
    reference::AttentionCase c = reference::MakeAttention(DataType::kF16, AttentionLayout::kBHLD,
                                                          {.batch = batch_,
                                                           .q_heads = heads_,
                                                           .q_rows = length,
                                                           .head_dim = head_dim,
                                                           .kv_heads = heads_,
                                                           .kv_rows = length,
                                                           .v_head_dim = head_dim},
                                                          source);
    c.problem.causal = causal;
    c.problem.alignment = MaskAlignment::kTopLeft;
    c.problem.want_lse = false;
    problem_ = c.problem;
    geometry_ = *Validate(problem_);
    const AttentionTableLayout layout(problem_, geometry_);
    std::vector<std::byte> table(static_cast<std::size_t>(layout.bytes()));
    layout.Write(problem_, geometry_, table.data());
    const std::int64_t bytes = problem_.q.bytes();
    args_ = {.q = OnDevice(c.q.data(), bytes), .k = OnDevice(c.k.data(), bytes), .v = OnDevice(c.v.data(), bytes)};
    args_.o = OnDevice(nullptr, bytes);
    tables_ = layout.At(static_cast<std::byte*>(OnDevice(table.data(), layout.bytes())));
  }
  ~TiledProblem() {
    for (void* memory : memory_) (void)cudaFree(memory);
  }
  TiledProblem(const TiledProblem&) = delete;
  TiledProblem& operator=(const TiledProblem&) = delete;

  const AttentionProblem& problem() const { return problem_; }
  const AttentionGeometry& geometry() const { return geometry_; }
  const AttentionArgs& args() const { return args_; }
  const AttentionTables& tables() const { return tables_; }

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
  void* OnDevice(const void* from, std::int64_t bytes) {
    void* to = nullptr;
    if (cudaMalloc(&to, static_cast<std::size_t>(bytes)) != cudaSuccess) return nullptr;
    if (from != nullptr) (void)cudaMemcpy(to, from, static_cast<std::size_t>(bytes), cudaMemcpyHostToDevice);
    memory_.push_back(to);
    return to;
  }

  std::int64_t d_, length_, heads_, batch_;
  bool causal_;
  AttentionProblem problem_;
  AttentionGeometry geometry_;
  AttentionArgs args_;
  AttentionTables tables_;
  std::vector<void*> memory_;
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
  for (const bool causal : {false, true}) {
    for (const std::int64_t length : {1024, 4096, 16384}) time(length, causal, device);
  }
  return 0;
}

}  // namespace kernd::gpu
