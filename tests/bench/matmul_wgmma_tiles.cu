// Shapes of the matmul for SM 9.0 side by side, in BF16: what kernels/gpu/matmul_wgmma_tile.cuh chooses from. One line
// of JSON for each candidate and problem: the median of rounds in which all take turns, so that the clock of a device
// that grows warm is the same for all, and whether 4096 results are what a plain sum of products says.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernd/kernels/gpu.h"
#include "kernels/gpu/cuda.h"
#include "tests/support/matmul_wgmma_candidates.cuh"

namespace kernd::gpu {
namespace {

constexpr int kRounds = 7, kSamples = 4096;
constexpr double kRoundSeconds = 0.02;

// Uniform in [-1, 1).
__global__ void Fill(__nv_bfloat16* to, std::int64_t count, std::uint64_t seed) {
  for (std::int64_t i = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x; i < count;
       i += std::int64_t{gridDim.x} * blockDim.x) {
    std::uint64_t x = (static_cast<std::uint64_t>(i) + seed) * 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 31) * 0xbf58476d1ce4e5b9u;
    to[i] = __float2bfloat16(static_cast<float>(x >> 40) * 0x1p-23f - 1);
  }
}

struct Sampled {
  const __nv_bfloat16 *a, *b, *d;
  std::int64_t m, n, k, lda, ldb;
  bool transpose_b;
};

// A result a block of 32 threads: worst[0] becomes its largest error over what rounding allows.
__global__ void Check(Sampled s, float* worst) {
  const std::uint64_t hash = (blockIdx.x + 1) * 0x9e3779b97f4a7c15u;
  // The corners, and places all over.
  const std::int64_t row = blockIdx.x < 4 ? blockIdx.x / 2 * (s.m - 1) : static_cast<std::int64_t>((hash >> 32) % s.m);
  const std::int64_t col = blockIdx.x < 4 ? blockIdx.x % 2 * (s.n - 1) : static_cast<std::int64_t>((hash >> 8) % s.n);
  double sum = 0, size = 0;
  for (std::int64_t i = threadIdx.x; i < s.k; i += 32) {
    const double x = __bfloat162float(s.a[row * s.lda + i]);
    const double y = __bfloat162float(s.transpose_b ? s.b[col * s.ldb + i] : s.b[i * s.ldb + col]);
    sum += x * y;
    size += fabs(x * y);
  }
  for (int lane = 16; lane > 0; lane /= 2) {
    sum += __shfl_xor_sync(0xffffffff, sum, lane);
    size += __shfl_xor_sync(0xffffffff, size, lane);
  }
  const double error = fabs(__bfloat162float(s.d[row * s.n + col]) - sum) / (fabs(sum) * 0x1p-8 + size * 0x1p-18);
  // As bits, positive floats are in order, and NaN is above all.
  if (threadIdx.x == 0) atomicMax(reinterpret_cast<unsigned*>(worst), __float_as_uint(static_cast<float>(error)));
}

struct Buffer {
  explicit Buffer(std::int64_t bytes) {
    if (cudaMalloc(&data, static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1))) != cudaSuccess) data = nullptr;
  }
  ~Buffer() { (void)cudaFree(data); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }
  void* data = nullptr;
};

// One way to compute a problem, and its times.
struct Entry {
  std::string name;
  std::function<absl::Status()> launch;
  float worst = 0;
  std::vector<double> seconds = {};
};

double Seconds(const Entry& entry, int launches) {
  cudaEvent_t before, after;
  (void)cudaEventCreate(&before);
  (void)cudaEventCreate(&after);
  (void)cudaEventRecord(before);
  absl::Status status;
  for (int i = 0; i < launches; ++i) status.Update(entry.launch());
  (void)cudaEventRecord(after);
  status.Update(CudaStatus(cudaEventSynchronize(after), entry.name));
  float milliseconds = 0;
  (void)cudaEventElapsedTime(&milliseconds, before, after);
  (void)cudaEventDestroy(before);
  (void)cudaEventDestroy(after);
  if (!status.ok()) {
    std::fprintf(stderr, "%s: %s\n", entry.name.c_str(), std::string(status.message()).c_str());
    return -1;
  }
  return milliseconds * 1e-3 / launches;
}

void TimeAll(std::int64_t m, std::int64_t n, std::int64_t k, bool transpose_b, const DeviceInfo& device) {
  MatmulProblem p;
  p.a = {.dtype = DataType::kBF16, .shape = {m, k}};
  p.b = {.dtype = DataType::kBF16, .shape = transpose_b ? Dims{n, k} : Dims{k, n}};
  p.transpose_b = transpose_b;
  const MatmulGeometry g = *Validate(p);
  constexpr std::int64_t kWorkspace = 512 << 20;
  const Buffer a(p.a.bytes()), b(p.b.bytes()), d(g.d.bytes()), workspace(kWorkspace), worst(4);
  const MatmulArgs args{.a = a.data, .b = b.data, .d = d.data};
  Fill<<<1024, 256>>>(a.as<__nv_bfloat16>(), m * k, 1);
  Fill<<<1024, 256>>>(b.as<__nv_bfloat16>(), k * n, 1u << 30);

  std::vector<Entry> entries;
  for (const matmul_wgmma::Candidate& candidate : matmul_wgmma::kCandidates) {
    const WgmmaMatmulKernel kernel = candidate.kernels({.a_along_k = true, .b_along_k = transpose_b});
    if (const absl::Status loaded = kernel.load(); !loaded.ok()) {
      std::fprintf(stderr, "%s: %s\n", candidate.name, std::string(loaded.message()).c_str());
      continue;
    }
    if (WgmmaPlanOf(kernel.tile, p, g, device).workspace_bytes > kWorkspace) continue;
    entries.push_back({candidate.name, [&] {
                         return LaunchWgmmaMatmul(candidate.kernels, p, g, device, args, workspace.data,
                                                  candidate.group, nullptr);
                       }});
  }
  for (const MatmulVariant& row : MatmulVariants()) {  // the peer
    if (row.info.name != "matmul_bf16_lt_heuristic" || !row.load(device).ok() || !row.why_not(p, g, device).empty()) {
      continue;
    }
    if (row.workspace_bytes(p, g, device) > kWorkspace) continue;
    entries.push_back({"cublaslt", [&] { return row.launch(p, g, device, args, workspace.data, nullptr); }});
  }

  for (Entry& entry : entries) {
    (void)cudaMemset(d.data, 0xff, static_cast<std::size_t>(g.d.bytes()));
    (void)cudaMemset(worst.data, 0, 4);
    if (Seconds(entry, 1) < 0) continue;
    Check<<<kSamples, 32>>>({.a = a.as<__nv_bfloat16>(),
                             .b = b.as<__nv_bfloat16>(),
                             .d = d.as<__nv_bfloat16>(),
                             .m = m,
                             .n = n,
                             .k = k,
                             .lda = g.lda,
                             .ldb = g.ldb,
                             .transpose_b = transpose_b},
                            worst.as<float>());
    (void)cudaMemcpy(&entry.worst, worst.data, 4, cudaMemcpyDeviceToHost);
  }
  for (int round = 0; round < kRounds; ++round) {
    for (Entry& entry : entries) {
      const double once = Seconds(entry, 2);
      if (once <= 0) continue;
      entry.seconds.push_back(Seconds(entry, static_cast<int>(std::clamp(kRoundSeconds / once, 3.0, 500.0))));
    }
  }
  for (Entry& entry : entries) {
    if (entry.seconds.empty()) continue;
    std::sort(entry.seconds.begin(), entry.seconds.end());
    const double median = entry.seconds[entry.seconds.size() / 2];
    const double flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
    std::printf(
        "{\"tile\": \"%s\", \"m\": %ld, \"n\": %ld, \"k\": %ld, \"layout\": \"%s\", \"us\": %.2f, \"best_us\": %.2f, "
        "\"tflops\": %.1f, \"error\": %.3f, \"right\": %s}\n",
        entry.name.c_str(), static_cast<long>(m), static_cast<long>(n), static_cast<long>(k), transpose_b ? "nt" : "nn",
        median * 1e6, entry.seconds[0] * 1e6, flops / median * 1e-12, entry.worst, entry.worst <= 1 ? "true" : "false");
  }
  std::fflush(stdout);
}

}  // namespace
}  // namespace kernd::gpu

int main() {
  cudaDeviceProp properties{};
  if (cudaGetDeviceProperties(&properties, 0) != cudaSuccess) {
    std::fprintf(stderr, "no CUDA device\n");
    return 1;
  }
  const kernd::DeviceInfo device{.sm = properties.major * 10 + properties.minor,
                                 .multiprocessors = properties.multiProcessorCount,
                                 .shared_memory_optin = static_cast<std::int64_t>(properties.sharedMemPerBlockOptin),
                                 .l2_bytes = properties.l2CacheSize};
  if (device.sm != 90) {
    std::fprintf(stderr, "the device is no Hopper\n");
    return 1;
  }
  for (const bool transpose_b : {false, true}) {
    kernd::gpu::TimeAll(4096, 4096, 4096, transpose_b, device);
    kernd::gpu::TimeAll(8192, 8192, 8192, transpose_b, device);
  }
  kernd::gpu::TimeAll(17, 4096, 4096, false, device);
  kernd::gpu::TimeAll(256, 8192, 8192, true, device);
  kernd::gpu::TimeAll(4096, 4097, 4095, false, device);
  return 0;
}
