// kernbench on the CPU: the kernels of server/cpu, and their peer.
#include <chrono>
#include <cmath>
#include <cstdint>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <utility>

#include "kernd/kernels/args.h"
#include "kernd/kernels/error.h"
#include "kernels/reference/convert.h"
#include "server/cpu/attention.h"
#include "server/cpu/matmul.h"
#include "server/cpu/onednn.h"
#include "tests/bench/kernbench.h"

namespace kernd::bench {
namespace {

// Memory as the daemon has it: aligned to a cache line.
class Buffer {
 public:
  explicit Buffer(std::int64_t bytes) {
    if (bytes > 0) data_.reset(::operator new (static_cast<std::size_t>(bytes), std::align_val_t{64}));
  }
  // A contiguous tensor of `spec`'s shape.
  static Buffer Random(const TensorSpec& spec, unsigned seed) {
    Buffer buffer(spec.bytes());
    std::mt19937 random(seed);
    std::normal_distribution<double> normal;
    const double width = spec.dtype == DataType::kI8 ? 40 : 1;
    for (std::int64_t i = 0; i < spec.elements(); ++i) {
      reference::Store(spec.dtype, width * normal(random), buffer.data(), i);
    }
    return buffer;
  }
  void* data() const { return data_.get(); }

 private:
  struct Delete {
    void operator()(void* data) const { ::operator delete (data, std::align_val_t{64}); }
  };
  std::unique_ptr<void, Delete> data_;
};

template <typename Work>
absl::StatusOr<double> Timed(const Work& work) {
  const auto start = std::chrono::steady_clock::now();
  KERND_RETURN_IF_ERROR(work());
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// The variant is chosen anew in each run, as in each call of the daemon.
class CpuMatmul final : public Runnable {
 public:
  CpuMatmul(const MatmulProblem& problem, MatmulGeometry geometry, const KernelRequest& request,
            const cpu::MatmulChoice& choice, int threads)
      : problem_(problem),
        geometry_(std::move(geometry)),
        request_(request),
        name_(choice.name),
        threads_(threads),
        a_(Buffer::Random(problem.a, 1)),
        b_(Buffer::Random(problem.b, 2)),
        d_(geometry_.d.bytes()),
        workspace_(choice.workspace_bytes) {}

  std::string_view kernel() const override { return name_; }
  absl::StatusOr<double> Run() override {
    return Timed([&]() -> absl::Status {
      KERND_ASSIGN_OR_RETURN(const cpu::MatmulChoice choice,
                             cpu::ChooseMatmul(problem_, geometry_, request_, threads_));
      const MatmulArgs args{.a = a_.data(), .b = b_.data(), .d = d_.data()};
      return cpu::RunMatmul(choice, problem_, geometry_, args, workspace_.data());
    });
  }

 private:
  const MatmulProblem problem_;
  const MatmulGeometry geometry_;
  const KernelRequest request_;
  const std::string name_;
  const int threads_;
  const Buffer a_, b_, d_, workspace_;
};

class CpuAttention final : public Runnable {
 public:
  CpuAttention(const AttentionProblem& problem, AttentionGeometry geometry, const KernelRequest& request,
               const cpu::AttentionChoice& choice, int threads)
      : problem_(problem),
        geometry_(std::move(geometry)),
        request_(request),
        name_(choice.name),
        threads_(threads),
        q_(Buffer::Random(problem.q, 1)),
        k_(Buffer::Random(problem.k, 2)),
        v_(Buffer::Random(problem.v, 3)),
        o_(geometry_.o_spec.bytes()),
        workspace_(choice.workspace_bytes) {}

  std::string_view kernel() const override { return name_; }
  absl::StatusOr<double> Run() override {
    return Timed([&]() -> absl::Status {
      KERND_ASSIGN_OR_RETURN(const cpu::AttentionChoice choice,
                             cpu::ChooseAttention(problem_, geometry_, request_, threads_));
      const AttentionArgs args{.q = q_.data(), .k = k_.data(), .v = v_.data(), .o = o_.data()};
      cpu::RunAttention(choice, problem_, geometry_, args, workspace_.data());
      return absl::OkStatus();
    });
  }

 private:
  const AttentionProblem problem_;
  const AttentionGeometry geometry_;
  const KernelRequest request_;
  const std::string name_;
  const int threads_;
  const Buffer q_, k_, v_, o_, workspace_;
};

class OnednnMatmul final : public Runnable {
 public:
  OnednnMatmul(std::shared_ptr<const cpu::onednn::Gemm> gemm, const MatmulProblem& problem, std::int64_t d_bytes)
      : gemm_(std::move(gemm)),
        a_(Buffer::Random(problem.a, 1)),
        b_(Buffer::Random(problem.b, 2)),
        d_(d_bytes),
        scratch_(gemm_->scratch_bytes()) {}

  std::string_view kernel() const override { return "onednn"; }
  absl::StatusOr<double> Run() override {
    return Timed([&] { return gemm_->Run(a_.data(), b_.data(), d_.data(), scratch_.data()); });
  }

 private:
  const std::shared_ptr<const cpu::onednn::Gemm> gemm_;
  const Buffer a_, b_, d_, scratch_;
};

class CpuTarget final : public Target {
 public:
  explicit CpuTarget(int threads) : threads_(threads) {}

  std::string_view name() const override { return "cpu"; }
  std::vector<VariantInfo> Variants() const override {
    std::vector<VariantInfo> all = cpu::MatmulVariants();
    for (VariantInfo& variant : cpu::AttentionVariants()) all.push_back(std::move(variant));
    return all;
  }
  absl::StatusOr<std::unique_ptr<Runnable>> Prepare(const MatmulProblem& problem,
                                                    const KernelRequest& request) override {
    KERND_ASSIGN_OR_RETURN(MatmulGeometry geometry, Validate(problem));
    KERND_ASSIGN_OR_RETURN(const cpu::MatmulChoice choice, cpu::ChooseMatmul(problem, geometry, request, threads_));
    return std::make_unique<CpuMatmul>(problem, std::move(geometry), request, choice, threads_);
  }
  absl::StatusOr<std::unique_ptr<Runnable>> Prepare(const AttentionProblem& problem,
                                                    const KernelRequest& request) override {
    KERND_ASSIGN_OR_RETURN(AttentionGeometry geometry, Validate(problem));
    KERND_ASSIGN_OR_RETURN(const cpu::AttentionChoice choice,
                           cpu::ChooseAttention(problem, geometry, request, threads_));
    return std::make_unique<CpuAttention>(problem, std::move(geometry), request, choice, threads_);
  }

 private:
  const int threads_;
};

class OnednnTarget final : public Target {
 public:
  explicit OnednnTarget(int threads) : threads_(threads) {}

  std::string_view name() const override { return "onednn-primitive"; }
  absl::StatusOr<std::unique_ptr<Runnable>> Prepare(const MatmulProblem& problem, const KernelRequest&) override {
    if (problem.transpose_b) return absl::UnimplementedError("the peer takes B as [K, N]");
    KERND_ASSIGN_OR_RETURN(const MatmulGeometry g, Validate(problem));
    KERND_ASSIGN_OR_RETURN(
        std::shared_ptr<const cpu::onednn::Gemm> gemm,
        cpu::onednn::GetGemm(
            {.dtype = problem.a.dtype, .m = g.m, .n = g.n, .k = g.k, .lda = g.lda, .ldb = g.ldb, .threads = threads_}));
    return std::make_unique<OnednnMatmul>(std::move(gemm), problem, g.m * g.n * 4);
  }
  absl::StatusOr<std::unique_ptr<Runnable>> Prepare(const AttentionProblem&, const KernelRequest&) override {
    return absl::UnimplementedError("oneDNN has no attention");
  }

 private:
  const int threads_;
};

}  // namespace

std::unique_ptr<Target> MakeCpuTarget(int threads) {
  return std::make_unique<CpuTarget>(threads);
}

std::unique_ptr<Target> MakeOnednnTarget(int threads) {
  return std::make_unique<OnednnTarget>(threads);
}

}  // namespace kernd::bench
