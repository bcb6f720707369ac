// The textbook: S = Q K^T, P = softmax(S), O = P V, with the whole of S in memory. Kept as the honest comparison for
// memory and as a second reference; never chosen unless asked for.
// Three kernels for each sequence: products in tiles of 16 by 16 by way of shared memory, a thread for each element,
//   and a block for each row of the softmax. Any dtype, shape and option; F32 arithmetic.
// Shared memory: 2 KiB. Time: S is written once and read four times.
#include <limits>

#include "absl/strings/str_cat.h"
#include "kernels/gpu/attention_device.cuh"
#include "kernels/gpu/launch.cuh"
#include "kernels/gpu/variants.h"

namespace kernd {
namespace gpu {
namespace {

constexpr int kTile = 16, kThreads = 256;
static_assert(kThreads == kTile * kTile);

// One sequence; `scores` are [Hq, q_length, kv_length].
struct Job {
  std::int64_t b;
  AttentionSequence s;
  float* scores;
};

__host__ __device__ inline std::int64_t Tiles(std::int64_t count) {
  return (count + kTile - 1) / kTile;
}

__global__ void __launch_bounds__(kThreads)
    AttentionScores(const __grid_constant__ AttentionParams p, const __grid_constant__ Job job) {
  __shared__ float q[kTile][kTile + 1], k[kTile][kTile + 1];
  const AttentionSequence& s = job.s;
  const std::int64_t rows = Tiles(s.q_length), cols = Tiles(s.kv_length), works = rows * cols * p.kv_heads * p.group;
  const int x = threadIdx.x % kTile, y = threadIdx.x / kTile;
  for (std::int64_t work = blockIdx.x; work < works; work += gridDim.x) {
    const std::int64_t col0 = work % cols * kTile, row0 = work / cols % rows * kTile, head = work / cols / rows;
    const std::int64_t kv_head = head / p.group, query = row0 + y, key = col0 + x;
    float dot = 0;
    for (std::int64_t d0 = 0; d0 < p.head_dim; d0 += kTile) {
      const bool inside = d0 + x < p.head_dim;
      q[y][x] = inside && query < s.q_length
                    ? LoadElement(p.args.q, At(p.q, job.b, head, s.q_start + query) + d0 + x, p.type)
                    : 0.0f;
      k[y][x] = inside && col0 + y < s.kv_length
                    ? LoadElement(p.args.k, At(p.k, job.b, kv_head, s.kv_start + col0 + y) + d0 + x, p.type)
                    : 0.0f;
      __syncthreads();
      for (int d = 0; d < kTile; ++d) dot = fmaf(q[y][d], k[x][d], dot);
      __syncthreads();
    }
    if (query >= s.q_length || key >= s.kv_length) continue;
    const AttentionRow row = RowOf(p, s, job.b, head, query);
    float logit = -KERND_INFINITY;
    if (key >= row.first && key < row.last) {
      const float distance = fabsf(static_cast<float>(row.position - key));
      logit = Logit(p, row, key, distance, dot * LogitFactor(p, job.b, kv_head));
    }
    job.scores[(head * s.q_length + query) * s.kv_length + key] = logit;
  }
}

// All threads get the whole; always in the same order.
template <typename Combine>
__device__ float Reduce(float x, const Combine& combine) {
  __shared__ float values[kThreads];
  __syncthreads();
  values[threadIdx.x] = x;
  for (unsigned step = kThreads / 2; step > 0; step /= 2) {
    __syncthreads();
    if (threadIdx.x < step) values[threadIdx.x] = combine(values[threadIdx.x], values[threadIdx.x + step]);
  }
  __syncthreads();
  return values[0];
}

// Logits become weights, V's scale included; LSE is done.
__global__ void __launch_bounds__(kThreads)
    AttentionSoftmax(const __grid_constant__ AttentionParams p, const __grid_constant__ Job job) {
  const AttentionSequence& s = job.s;
  const std::int64_t works = s.q_rows * p.kv_heads * p.group;
  for (std::int64_t work = blockIdx.x; work < works; work += gridDim.x) {
    const std::int64_t query = work % s.q_rows, head = work / s.q_rows;
    const std::int64_t keys = query < s.q_length ? s.kv_length : 0;
    float* const row = job.scores + (head * s.q_length + query) * s.kv_length;
    float most = -KERND_INFINITY, sum = 0;
    for (std::int64_t j = threadIdx.x; j < keys; j += kThreads) most = fmaxf(most, row[j]);
    most = Reduce(most, [](float a, float b) { return fmaxf(a, b); });
    const float pivot = most == -KERND_INFINITY ? 0.0f : most;
    for (std::int64_t j = threadIdx.x; j < keys; j += kThreads) {
      row[j] = Probability(row[j], pivot);
      sum += row[j];
    }
    sum = Reduce(sum, [](float a, float b) { return a + b; });
    const bool empty = sum == 0;
    if (!empty) {
      const float factor = OutputFactor(p, head, most, sum, 1.0f);
      for (std::int64_t j = threadIdx.x; j < keys; j += kThreads) {
        if (!IsHidden(row[j])) row[j] *= factor;
      }
    }
    if (threadIdx.x == 0 && p.args.lse != nullptr) {
      p.args.lse[At(p.lse, job.b, head, s.q_start + query)] = empty ? -KERND_INFINITY : most + logf(sum);
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    AttentionOutput(const __grid_constant__ AttentionParams p, const __grid_constant__ Job job) {
  __shared__ float weights[kTile][kTile + 1], v[kTile][kTile + 1];
  const AttentionSequence& s = job.s;
  const std::int64_t rows = Tiles(s.q_rows), cols = Tiles(p.v_head_dim), works = rows * cols * p.kv_heads * p.group;
  const int x = threadIdx.x % kTile, y = threadIdx.x / kTile;
  for (std::int64_t work = blockIdx.x; work < works; work += gridDim.x) {
    const std::int64_t col = work % cols * kTile + x, query = work / cols % rows * kTile + y, head = work / cols / rows;
    const std::int64_t kv_head = head / p.group;
    float sum = 0;
    for (std::int64_t j0 = 0; j0 < s.kv_length; j0 += kTile) {
      weights[y][x] = query < s.q_length && j0 + x < s.kv_length
                          ? job.scores[(head * s.q_length + query) * s.kv_length + j0 + x]
                          : -0.0f;
      v[y][x] = j0 + y < s.kv_length && col < p.v_head_dim
                    ? LoadElement(p.args.v, At(p.v, job.b, kv_head, s.kv_start + j0 + y) + col, p.type)
                    : 0.0f;
      __syncthreads();
      for (int j = 0; j < kTile; ++j) {
        if (!IsHidden(weights[y][j])) sum = fmaf(weights[y][j], v[j][x], sum);
      }
      __syncthreads();
    }
    if (query >= s.q_rows || col >= p.v_head_dim) continue;
    StoreElement(p.args.o, At(p.o, job.b, head, s.q_start + query) + col, p.o_type,
                 sum * ValueFactor(p, job.b, kv_head) + 0.0f);
  }
}

// Bytes of the scores of all sequences, as the textbook holds them.
std::int64_t WorkspaceBytes(const AttentionProblem&, const AttentionGeometry& g, const DeviceInfo&) {
  std::int64_t scores = 0;
  for (const AttentionSequence& s : g.sequences) scores += g.q_heads * s.q_rows * s.kv_length;  // at most kMaxScores
  const std::int64_t bytes = scores * static_cast<std::int64_t>(sizeof(float));
  return (bytes + kDeviceAlignment - 1) / kDeviceAlignment * kDeviceAlignment;
}

absl::Status Launch(const AttentionProblem& p, const AttentionGeometry& g, const DeviceInfo&, const AttentionArgs& args,
                    const AttentionTables& tables, void* workspace, Stream stream) {
  if (g.o_spec.elements() == 0 && (!g.lse_spec || g.lse_spec->elements() == 0)) return absl::OkStatus();
  const AttentionParams params = ParamsOf(p, g, args, tables);
  float* scores = static_cast<float*>(workspace);
  for (std::int64_t b = 0; b < g.batch; ++b) {
    const Job job{.b = b, .s = g.sequences[b], .scores = scores};
    if (job.s.q_rows == 0) continue;
    scores += g.q_heads * job.s.q_rows * job.s.kv_length;
    if (const std::int64_t tiles = g.q_heads * Tiles(job.s.q_length) * Tiles(job.s.kv_length); tiles > 0) {
      KERND_RETURN_IF_ERROR(
          LaunchKernel("AttentionScores", AttentionScores, GridOf(tiles), kThreads, 0, stream, params, job));
    }
    KERND_RETURN_IF_ERROR(LaunchKernel("AttentionSoftmax", AttentionSoftmax, GridOf(g.q_heads * job.s.q_rows), kThreads,
                                       0, stream, params, job));
    if (g.v_head_dim == 0) continue;
    const std::int64_t tiles = g.q_heads * Tiles(job.s.q_rows) * Tiles(g.v_head_dim);
    KERND_RETURN_IF_ERROR(
        LaunchKernel("AttentionOutput", AttentionOutput, GridOf(tiles), kThreads, 0, stream, params, job));
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace gpu

absl::Span<const AttentionVariant> AttentionNaiveVariants() {
  static const auto& rows = *[] {
    auto* all = new std::vector<AttentionVariant>;
    for (const DataType type :
         {DataType::kF16, DataType::kBF16, DataType::kF32, DataType::kF8E4M3, DataType::kF8E5M2}) {
      all->push_back(
          {.info = {.name = absl::StrCat("attention_", std::string(Token(type)), "_sm75_naive"),
                    .op = OpKind::kAttention,
                    .dtypes = {type},
                    .method = "the textbook's matrix of scores in memory: the comparison for memory, only on request"},
           .min_sm = 75,
           .why_not = [](const AttentionProblem&, const AttentionGeometry&,
                         const DeviceInfo&) { return std::string(); },
           .estimate = [](const AttentionProblem&, const AttentionGeometry&,
                          const DeviceInfo&) { return std::numeric_limits<double>::infinity(); },
           .workspace_bytes = gpu::WorkspaceBytes,
           .load = [](const DeviceInfo&) { return absl::OkStatus(); },
           .launch = gpu::Launch});
    }
    return all;
  }();
  return rows;
}

}  // namespace kernd
