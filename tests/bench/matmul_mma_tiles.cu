// What the tensor-core matmul's large tiles gain from more stages, from operands that lie along K and from their turn
// over the result, apart from everything around the kernel. One line of JSON each, for run_matmul_mma.py.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "kernels/gpu/cuda.h"
#include "kernels/gpu/matmul_mma.h"

namespace kernd::gpu {
namespace {

// Square BF16 operands of random bits near one, and a result.
class Square {
 public:
  explicit Square(std::int64_t side) : side_(side) {
    std::vector<std::uint16_t> bits(static_cast<std::size_t>(side * side));
    std::uint32_t state = 1;
    for (std::uint16_t& x : bits) {
      state = state * 1664525 + 1013904223;
      x = static_cast<std::uint16_t>(0x3f00 | (state >> 16 & 0x80ff));  // 0.5 .. 2, of either sign
    }
    for (void*& m : memory_) {
      (void)cudaMalloc(&m, bits.size() * 2);
      (void)cudaMemcpy(m, bits.data(), bits.size() * 2, cudaMemcpyHostToDevice);
    }
  }
  ~Square() {
    for (void* m : memory_) (void)cudaFree(m);
  }
  Square(const Square&) = delete;
  Square& operator=(const Square&) = delete;

  // Median of eleven runs after two that do not count.
  void Time(int tile, int stages, bool b_along_k) const {
    const MmaTile& t = kMmaTile[tile];
    const std::size_t shared = SharedBytes(MmaPath::kBF16Sm80, t, stages);
    MmaProblem p{.a = Operand(memory_[0], true), .b = Operand(memory_[1], b_along_k), .k = side_, .k_per_split = side_};
    p.tiles_m = (side_ + t.m - 1) / t.m;
    p.tiles_n = (side_ + t.n - 1) / t.n;
    p.stages = stages;
    p.epilogue.output = DataType::kBF16;
    p.epilogue.plain = true;
    p.epilogue.m = p.epilogue.n = side_;
    p.epilogue.batch = 1;
    p.epilogue.d = memory_[2];
    const MmaMatmulKernel kernel =
        MmaMatmulKernelOf<MmaPath::kBF16Sm80>(tile, {.a_along_k = true, .b_along_k = b_along_k, .aligned = true});
    absl::Status status = kernel.load(shared);
    cudaEvent_t before, after;
    (void)cudaEventCreate(&before);
    (void)cudaEventCreate(&after);
    std::vector<float> times;
    for (int i = 0; i < 13 && status.ok(); ++i) {
      (void)cudaEventRecord(before);
      status = kernel.launch(p, shared, nullptr);
      (void)cudaEventRecord(after);
      status.Update(CudaStatus(cudaEventSynchronize(after), "run"));
      float milliseconds = 0;
      (void)cudaEventElapsedTime(&milliseconds, before, after);
      if (i >= 2) times.push_back(milliseconds);
    }
    (void)cudaEventDestroy(before);
    (void)cudaEventDestroy(after);
    if (!status.ok()) {
      std::fprintf(stderr, "tile %d, %d stages: %s\n", tile, stages, std::string(status.message()).c_str());
      return;
    }
    std::sort(times.begin(), times.end());
    const double ms = times[times.size() / 2], side = static_cast<double>(side_);
    std::printf(
        "{\"side\": %lld, \"tile\": \"%dx%dx%d\", \"stages\": %d, \"b_along_k\": %s, \"ms\": %.4f, \"tflops\": %.1f}\n",
        static_cast<long long>(side_), t.m, t.n, t.k, stages, b_along_k ? "true" : "false", ms,
        2 * side * side * side / ms * 1e-9);
    std::fflush(stdout);
  }

 private:
  MmaOperand Operand(const void* data, bool along_k) const {
    return {.data = data, .rows = side_, .ld = side_, .along_k = along_k, .width = 16};
  }

  std::int64_t side_;
  void* memory_[3] = {};
};

}  // namespace
}  // namespace kernd::gpu

int main() {
  for (const std::int64_t side : {4096, 8192, 2048}) {
    const kernd::gpu::Square square(side);
    for (const bool b_along_k : {false, true}) {
      for (const auto& [tile, stages] : {std::pair{3, 4}, {3, 3}, {2, 4}, {2, 3}, {3, 2}}) {
        square.Time(tile, stages, b_along_k);
      }
    }
  }
}
