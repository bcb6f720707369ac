// kernbench on a GPU: the rows of the kernel table, and the best of cuBLASLt's candidates as their peer. A run is timed
// by events of the device, behind a write of twice the L2 cache: operands come from memory, and the host has enqueued
// everything before the device begins.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernd/kernels/error.h"
#include "kernels/gpu/cublaslt.h"
#include "kernels/gpu/cuda.h"
#include "kernels/gpu/matmul_lt_plan.h"
#include "kernels/reference/convert.h"
#include "server/gpu/nvml.h"
#include "server/gpu/open.h"
#include "tests/bench/kernbench.h"

namespace kernd::bench {
namespace {

class DeviceBuffer {
 public:
  static absl::StatusOr<DeviceBuffer> Make(std::int64_t bytes) {
    DeviceBuffer buffer;
    void* data = nullptr;
    KERND_CUDA(cudaMalloc(&data, static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1))));
    buffer.data_.reset(data);
    return buffer;
  }
  static absl::StatusOr<DeviceBuffer> Copy(const std::vector<std::byte>& from) {
    KERND_ASSIGN_OR_RETURN(DeviceBuffer buffer, Make(static_cast<std::int64_t>(from.size())));
    KERND_CUDA(cudaMemcpy(buffer.data(), from.data(), from.size(), cudaMemcpyHostToDevice));
    return buffer;
  }
  // Normal numbers; 8-bit integers fill their range. A block of a prime number of elements again and again, as drawing
  // each would take minutes.
  static absl::StatusOr<DeviceBuffer> Random(const TensorSpec& spec, unsigned seed) {
    constexpr std::int64_t kBlock = 1'048'583;
    const std::int64_t bytes = spec.bytes(), block = std::min(spec.elements(), kBlock) * ElementBytes(spec.dtype);
    std::vector<std::byte> host(static_cast<std::size_t>(bytes));
    std::mt19937 random(seed);
    std::normal_distribution<double> normal;
    const double width = spec.dtype == DataType::kI8 ? 40 : 1;
    for (std::int64_t i = 0; i < block / ElementBytes(spec.dtype); ++i) {
      reference::Store(spec.dtype, width * normal(random), host.data(), i);
    }
    for (std::int64_t at = block; at < bytes; at += block) {
      std::memcpy(host.data() + at, host.data(), static_cast<std::size_t>(std::min(block, bytes - at)));
    }
    return Copy(host);
  }
  void* data() const { return data_.get(); }

 private:
  struct Free {
    void operator()(void* data) const { (void)cudaFree(data); }
  };
  std::unique_ptr<void, Free> data_;
};

// A device with a stream, two events, and what is written before each run.
class Bench {
 public:
  static absl::StatusOr<std::shared_ptr<Bench>> Open() {
    auto bench = std::make_shared<Bench>();
    KERND_ASSIGN_OR_RETURN(bench->driver_, gpu::OpenDevice(0));
    KERND_ASSIGN_OR_RETURN(bench->stream_, bench->driver_->CreateStream());
    KERND_CUDA(cudaEventCreate(&bench->begin_));
    KERND_CUDA(cudaEventCreate(&bench->end_));
    bench->flush_bytes_ = std::max<std::int64_t>(2 * bench->device().l2_bytes, 64 << 20);
    KERND_ASSIGN_OR_RETURN(bench->flush_, DeviceBuffer::Make(bench->flush_bytes_));
    return bench;
  }
  const DeviceInfo& device() const { return driver_->device(); }
  Stream stream() const { return stream_; }

  template <typename Launch>
  absl::StatusOr<double> Seconds(const Launch& launch) {
    KERND_CUDA(cudaMemsetAsync(flush_.data(), 0, static_cast<std::size_t>(flush_bytes_), stream_));
    KERND_CUDA(cudaEventRecord(begin_, stream_));
    KERND_RETURN_IF_ERROR(launch());
    KERND_CUDA(cudaEventRecord(end_, stream_));
    KERND_CUDA(cudaEventSynchronize(end_));
    float ms = 0;
    KERND_CUDA(cudaEventElapsedTime(&ms, begin_, end_));
    return ms * 1e-3;
  }

 private:
  std::unique_ptr<gpu::Driver> driver_;
  Stream stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  std::int64_t flush_bytes_ = 0;
  DeviceBuffer flush_;
};
using BenchPtr = std::shared_ptr<Bench>;

// A row of the table with operands of its own.
template <typename Launch>
class GpuRunnable final : public Runnable {
 public:
  GpuRunnable(BenchPtr bench, std::string name, std::vector<DeviceBuffer> buffers, Launch launch)
      : bench_(std::move(bench)), name_(std::move(name)), buffers_(std::move(buffers)), launch_(std::move(launch)) {}

  std::string_view kernel() const override { return name_; }
  absl::StatusOr<double> Run() override { return bench_->Seconds(launch_); }

 private:
  const BenchPtr bench_;
  const std::string name_;
  const std::vector<DeviceBuffer> buffers_;
  const Launch launch_;
};

template <typename Launch>
std::unique_ptr<Runnable> MakeRunnable(BenchPtr bench, std::string name, std::vector<DeviceBuffer> buffers,
                                       Launch launch) {
  return std::make_unique<GpuRunnable<Launch>>(std::move(bench), std::move(name), std::move(buffers),
                                               std::move(launch));
}

class GpuTarget final : public Target {
 public:
  explicit GpuTarget(BenchPtr bench) : bench_(std::move(bench)), kernels_(gpu::BuiltKernels()) {}

  std::string_view name() const override { return "cuda"; }
  std::string gpu() const override { return bench_->device().name; }
  std::string driver() const override {
    const auto nvml = gpu::Nvml::Open("libnvidia-ml.so.1");
    const std::string version = nvml.ok() ? (*nvml)->Read(bench_->device().pci).driver_version : "";
    return version.empty() ? absl::StrCat("CUDA ", gpu::CudaVersion(bench_->device().driver_version)) : version;
  }
  std::vector<VariantInfo> Variants() const override { return gpu::VariantsFor(bench_->device(), kernels_); }

  absl::StatusOr<std::unique_ptr<Runnable>> Prepare(const MatmulProblem& p, const KernelRequest& request) override {
    const DeviceInfo& device = bench_->device();
    KERND_ASSIGN_OR_RETURN(const MatmulGeometry g, Validate(p));
    KERND_ASSIGN_OR_RETURN(const Choice<MatmulVariant> choice, Choose(kernels_.matmul, p, g, request, device));
    const MatmulVariant& variant = *choice.variant;
    KERND_RETURN_IF_ERROR(variant.load(device));
    KERND_ASSIGN_OR_RETURN(DeviceBuffer a, DeviceBuffer::Random(p.a, 1));
    KERND_ASSIGN_OR_RETURN(DeviceBuffer b, DeviceBuffer::Random(p.b, 2));
    KERND_ASSIGN_OR_RETURN(DeviceBuffer d, DeviceBuffer::Make(g.d.bytes()));
    KERND_ASSIGN_OR_RETURN(DeviceBuffer workspace, DeviceBuffer::Make(variant.workspace_bytes(p, g, device)));
    const MatmulArgs args{.a = a.data(), .b = b.data(), .d = d.data()};
    auto launch = [p, g, args, &variant, bench = bench_, space = workspace.data()] {
      return variant.launch(p, g, bench->device(), args, space, bench->stream());
    };
    std::vector<DeviceBuffer> buffers;
    for (DeviceBuffer* buffer : {&a, &b, &d, &workspace}) buffers.push_back(std::move(*buffer));
    return MakeRunnable(bench_, variant.info.name, std::move(buffers), std::move(launch));
  }

  absl::StatusOr<std::unique_ptr<Runnable>> Prepare(const AttentionProblem& p, const KernelRequest& request) override {
    const DeviceInfo& device = bench_->device();
    KERND_ASSIGN_OR_RETURN(const AttentionGeometry g, Validate(p));
    KERND_ASSIGN_OR_RETURN(const Choice<AttentionVariant> choice, Choose(kernels_.attention, p, g, request, device));
    const AttentionVariant& variant = *choice.variant;
    KERND_RETURN_IF_ERROR(variant.load(device));
    KERND_ASSIGN_OR_RETURN(DeviceBuffer q, DeviceBuffer::Random(p.q, 1));
    KERND_ASSIGN_OR_RETURN(DeviceBuffer k, DeviceBuffer::Random(p.k, 2));
    KERND_ASSIGN_OR_RETURN(DeviceBuffer v, DeviceBuffer::Random(p.v, 3));
    KERND_ASSIGN_OR_RETURN(DeviceBuffer o, DeviceBuffer::Make(g.o_spec.bytes()));
    KERND_ASSIGN_OR_RETURN(DeviceBuffer workspace, DeviceBuffer::Make(variant.workspace_bytes(p, g, device)));
    const AttentionTableLayout layout(p, g);
    std::vector<std::byte> host(static_cast<std::size_t>(layout.bytes()));
    layout.Write(p, g, host.data());
    KERND_ASSIGN_OR_RETURN(DeviceBuffer tables, DeviceBuffer::Copy(host));
    const AttentionArgs args{.q = q.data(), .k = k.data(), .v = v.data(), .o = o.data()};
    auto launch = [p, g, args, &variant, bench = bench_, space = workspace.data(),
                   at = layout.At(static_cast<const std::byte*>(tables.data()))] {
      return variant.launch(p, g, bench->device(), args, at, space, bench->stream());
    };
    std::vector<DeviceBuffer> buffers;
    for (DeviceBuffer* buffer : {&q, &k, &v, &o, &workspace, &tables}) buffers.push_back(std::move(*buffer));
    return MakeRunnable(bench_, variant.info.name, std::move(buffers), std::move(launch));
  }

 private:
  const BenchPtr bench_;
  const gpu::KernelTables kernels_;
};

// The product alone, as cuBLASLt takes the matrices, by the quickest of its first candidates; 8-bit operands both along
// K, as it wants them.
class CublasLtTarget final : public Target {
 public:
  explicit CublasLtTarget(BenchPtr bench) : bench_(std::move(bench)) {}

  std::string_view name() const override { return "cublaslt-best"; }
  absl::StatusOr<std::unique_ptr<Runnable>> Prepare(const MatmulProblem& p, const KernelRequest&) override {
    constexpr int kCandidates = 32, kTries = 5;
    const DeviceInfo& device = bench_->device();
    KERND_ASSIGN_OR_RETURN(const MatmulGeometry g, Validate(p));
    const bool along_k = p.transpose_b || ElementBytes(p.a.dtype) == 1;
    const LtCall call{.device = device.ordinal,
                      .x_type = p.b.dtype,
                      .y_type = p.a.dtype,
                      .d_type = g.output_dtype,
                      .tf32 = p.numerics == Numerics::kTf32,
                      .x_transposed = along_k,
                      .m = g.n,
                      .n = g.m,
                      .k = g.k,
                      .ldx = along_k ? g.k : g.n,
                      .ldy = g.k,
                      .ldc = g.n,
                      .ldd = g.n,
                      .x_align = kDeviceAlignment,
                      .y_align = kDeviceAlignment,
                      .c_align = kDeviceAlignment,
                      .d_align = kDeviceAlignment};
    KERND_ASSIGN_OR_RETURN(const std::vector<LtPlan> plans, LtCandidatesOf(call, device, kCandidates));
    KERND_ASSIGN_OR_RETURN(DeviceBuffer a, DeviceBuffer::Random(p.a, 1));
    KERND_ASSIGN_OR_RETURN(DeviceBuffer b, DeviceBuffer::Random(p.b, 2));
    KERND_ASSIGN_OR_RETURN(DeviceBuffer d, DeviceBuffer::Make(g.d.bytes()));
    std::int64_t most = 0;
    for (const LtPlan& plan : plans) most = std::max(most, plan.workspace_bytes);
    KERND_ASSIGN_OR_RETURN(DeviceBuffer workspace, DeviceBuffer::Make(most));
    const LtPointers pointers{.x = b.data(), .y = a.data(), .d = d.data(), .workspace = workspace.data()};
    const auto launch_of = [&](const LtPlan& plan) {
      return
          [call, plan, pointers, stream = bench_->stream()] { return EnqueueLt(call, plan, 1, 0, pointers, stream); };
    };
    const LtPlan* best = nullptr;
    double best_seconds = std::numeric_limits<double>::infinity();
    for (const LtPlan& plan : plans) {
      double quickest = std::numeric_limits<double>::infinity();
      for (int i = 0; i < kTries; ++i) {
        const absl::StatusOr<double> seconds = bench_->Seconds(launch_of(plan));
        if (!seconds.ok()) break;  // a candidate that does not run after all
        quickest = std::min(quickest, *seconds);
      }
      if (quickest < best_seconds) {
        best = &plan;
        best_seconds = quickest;
      }
    }
    if (best == nullptr) return absl::UnimplementedError("cuBLASLt has no algorithm for it");
    auto launch = launch_of(*best);
    std::vector<DeviceBuffer> buffers;
    for (DeviceBuffer* buffer : {&a, &b, &d, &workspace}) buffers.push_back(std::move(*buffer));
    return MakeRunnable(bench_, "cublaslt", std::move(buffers), std::move(launch));
  }
  absl::StatusOr<std::unique_ptr<Runnable>> Prepare(const AttentionProblem&, const KernelRequest&) override {
    return absl::UnimplementedError("cuBLASLt has no attention");
  }

 private:
  const BenchPtr bench_;
};

template <typename T>
absl::StatusOr<std::unique_ptr<Target>> OnDevice() {
  KERND_ASSIGN_OR_RETURN(BenchPtr bench, Bench::Open());
  return std::make_unique<T>(std::move(bench));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Target>> MakeGpuTarget() {
  return OnDevice<GpuTarget>();
}

absl::StatusOr<std::unique_ptr<Target>> MakeCublasLtTarget() {
  return OnDevice<CublasLtTarget>();
}

}  // namespace kernd::bench
