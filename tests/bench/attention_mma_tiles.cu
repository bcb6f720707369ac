// Tiles of the tensor-core attention side by side: what kernels/gpu/attention_mma_family.cuh chooses from. One line of
// JSON for each tile and problem, for run_attention_mma.py.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/gpu/attention_mma_tile.cuh"
#include "kernels/reference/problem_case.h"

namespace kernd::gpu {
namespace {

using attention_mma::TileKernel;
using attention_mma::TileShape;

struct Candidate {
  const char* name;  // rows of a warp x warps, buffers, blocks of an SM
  MmaKernel kernel;
};

template <unsigned kD>
std::vector<Candidate> Candidates() {
  constexpr MmaKind kKind = MmaKind::kF16Sm80;
  if constexpr (kD > 128) {
    return {{"16x4 1buf 2blk", TileKernel<TileShape<kKind, kD, kD, 1, 4, 2, 1>>()},
            {"16x8 1buf 1blk", TileKernel<TileShape<kKind, kD, kD, 1, 8, 1, 1>>()},
            {"16x8 2buf 1blk", TileKernel<TileShape<kKind, kD, kD, 1, 8, 1, 2>>()}};
  } else {
    return {{"32x4 1buf 2blk", TileKernel<TileShape<kKind, kD, kD, 2, 4, 2, 1>>()},
            {"32x4 2buf 2blk", TileKernel<TileShape<kKind, kD, kD, 2, 4, 2, 2>>()},
            {"16x4 1buf 3blk", TileKernel<TileShape<kKind, kD, kD, 1, 4, 3, 1>>()},
            {"16x8 1buf 1blk", TileKernel<TileShape<kKind, kD, kD, 1, 8, 1, 1>>()},
            {"16x8 2buf 1blk", TileKernel<TileShape<kKind, kD, kD, 1, 8, 1, 2>>()}};
  }
}

#define KERND_OR_RETURN(call)                                            \
  if (const absl::Status status = (call); !status.ok()) {                \
    std::fprintf(stderr, "%s\n", std::string(status.message()).c_str()); \
    return;                                                              \
  }

void* OnDevice(const void* from, std::int64_t bytes) {
  void* to = nullptr;
  if (cudaMalloc(&to, static_cast<std::size_t>(bytes)) != cudaSuccess) return nullptr;
  if (from != nullptr) (void)cudaMemcpy(to, from, static_cast<std::size_t>(bytes), cudaMemcpyHostToDevice);
  return to;
}

// 16384 tokens in all, as the peers' figures have them.
template <unsigned kD>
void TimeAll(std::int64_t length, bool causal, const DeviceInfo& device) {
  const std::int64_t heads = 2048 / kD, batch = 16384 / length;
  reference::Source source(1);
  reference::AttentionCase c = reference::MakeAttention(DataType::kF16, AttentionLayout::kBHLD,
                                                        {.batch = batch,
                                                         .q_heads = heads,
                                                         .q_rows = length,
                                                         .head_dim = kD,
                                                         .kv_heads = heads,
                                                         .kv_rows = length,
                                                         .v_head_dim = kD},
                                                        source);
  c.problem.causal = causal;
  c.problem.alignment = MaskAlignment::kTopLeft;
  c.problem.want_lse = false;
  const AttentionGeometry g = *Validate(c.problem);
  const AttentionTableLayout layout(c.problem, g);
  std::vector<std::byte> table(static_cast<std::size_t>(layout.bytes()));
  layout.Write(c.problem, g, table.data());
  const std::int64_t bytes = c.problem.q.bytes();
  void *const q = OnDevice(c.q.data(), bytes), *const k = OnDevice(c.k.data(), bytes),
              *const v = OnDevice(c.v.data(), bytes), *const o = OnDevice(nullptr, bytes),
              *const tables = OnDevice(table.data(), layout.bytes());
  const AttentionParams params =
      ParamsOf(c.problem, g, {.q = q, .k = k, .v = v, .o = o}, layout.At(static_cast<std::byte*>(tables)));
  for (const Candidate& candidate : Candidates<kD>()) {
    if (static_cast<std::int64_t>(candidate.kernel.shared_bytes) > device.shared_memory_optin) continue;
    KERND_OR_RETURN(candidate.kernel.load());
    AttentionPlan plan{.section = SectionOf(g, 2, device)};
    CutIntoPieces(params, candidate.kernel.rows, kD, length, 0, plan);
    cudaEvent_t before, after;
    (void)cudaEventCreate(&before);
    (void)cudaEventCreate(&after);
    std::vector<float> times;
    for (int i = 0; i < 13; ++i) {
      (void)cudaEventRecord(before);
      KERND_OR_RETURN(candidate.kernel.launch(params, plan, nullptr));
      (void)cudaEventRecord(after);
      KERND_OR_RETURN(CudaStatus(cudaEventSynchronize(after), candidate.name));
      float milliseconds = 0;
      (void)cudaEventElapsedTime(&milliseconds, before, after);
      if (i >= 3) times.push_back(milliseconds);
    }
    std::nth_element(times.begin(), times.begin() + 5, times.end());
    const double flops = 4.0 * static_cast<double>(batch * heads * length * length) * kD / (causal ? 2 : 1);
    std::printf("{\"tile\": \"%s\", \"d\": %u, \"length\": %ld, \"causal\": %s, \"ms\": %.4f, \"tflops\": %.1f}\n",
                candidate.name, kD, static_cast<long>(length), causal ? "true" : "false", times[5],
                flops / times[5] * 1e-9);
    (void)cudaEventDestroy(before);
    (void)cudaEventDestroy(after);
  }
  for (void* memory : {q, k, v, o, tables}) (void)cudaFree(memory);
}

}  // namespace
}  // namespace kernd::gpu

int main() {
  cudaDeviceProp properties{};
  if (cudaGetDeviceProperties(&properties, 0) != cudaSuccess) {
    std::fprintf(stderr, "no CUDA device\n");
    return 1;
  }
  const kernd::DeviceInfo device{.multiprocessors = properties.multiProcessorCount,
                                 .shared_memory_optin = static_cast<std::int64_t>(properties.sharedMemPerBlockOptin),
                                 .l2_bytes = properties.l2CacheSize};
  for (const bool causal : {false, true}) {
    for (const std::int64_t length : {1024, 4096, 16384}) {
      kernd::gpu::TimeAll<64>(length, causal, device);
      kernd::gpu::TimeAll<128>(length, causal, device);
      kernd::gpu::TimeAll<256>(length, causal, device);
    }
  }
  return 0;
}
