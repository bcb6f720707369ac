// The GPU backend behind core's seam, on a GPU made of host memory. Kernels are the reference's, so results must be its
// bits.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/reference/matmul.h"
#include "server/gpu/backend.h"
#include "tests/support/fake_gpu.h"
#include "tests/support/fake_kernels.h"

namespace kernd::gpu {

using Bytes = std::vector<std::byte>;

inline Bytes Ramp(std::int64_t elements, float start) {
  Bytes bytes(static_cast<std::size_t>(elements) * sizeof(float));
  for (std::int64_t i = 0; i < elements; ++i) {
    const float value = start + 0.25f * static_cast<float>(i % 37);
    std::memcpy(bytes.data() + i * 4, &value, 4);
  }
  return bytes;
}

struct Matmul {
  core::MatmulStep step;
  Bytes a, b, bias;

  Matmul(std::int64_t m, std::int64_t n, std::int64_t k) : a(Ramp(m * k, 1)), b(Ramp(k * n, -2)), bias(Ramp(n, 3)) {
    step.problem.a = {.dtype = DataType::kF32, .shape = {m, k}};
    step.problem.b = {.dtype = DataType::kF32, .shape = {k, n}};
    step.problem.bias = TensorSpec{.dtype = DataType::kF32, .shape = {n}};
    Point();
  }
  void Point() {
    step.a.runs = {a};
    step.b.runs = {b};
    step.bias.runs = {bias};
  }
  Bytes Expected() const {
    Bytes d(static_cast<std::size_t>(Validate(step.problem)->d.bytes()));
    EXPECT_TRUE(
        reference::Matmul(step.problem, {.a = a.data(), .b = b.data(), .bias = bias.data(), .d = d.data()}).ok());
    return d;
  }
};

inline Bytes BytesOf(const core::HostBuffer& buffer) {
  return Bytes(buffer.data(), buffer.data() + buffer.size());
}

class GpuBackendTest : public ::testing::Test {
 protected:
  // `by_request`: all kernels run where they are asked for alone.
  void Start(BackendOptions options = {}, bool by_request = false) {
    if (options.memory_limit == 0) options.memory_limit = 64 << 20;
    options.primed_bytes = 1 << 20;
    options.pinned_bytes = 4 << 20;
    options.on_lost = [this](const absl::Status&) { ++lost_; };
    gpu_ = std::make_shared<testing::FakeGpu>();
    KernelTables kernels = testing::FakeKernels(*gpu_);
    matmul_rows_.assign(kernels.matmul.begin(), kernels.matmul.end());
    attention_rows_.assign(kernels.attention.begin(), kernels.attention.end());
    for (MatmulVariant& row : matmul_rows_) row.info.by_request = by_request;
    for (AttentionVariant& row : attention_rows_) row.info.by_request = by_request;
    kernels.matmul = matmul_rows_;
    kernels.attention = attention_rows_;
    auto backend = MakeBackend(gpu_, kernels, options);
    ASSERT_TRUE(backend.ok()) << backend.status();
    backend_ = *std::move(backend);
  }
  void TearDown() override {
    backend_.reset();
    if (gpu_ != nullptr) {
      EXPECT_EQ(gpu_->alive(), testing::FakeGpu::Alive()) << "something was not given back";
    }
  }

  core::CallPtr MakeCall(core::Program program) {
    auto call = std::make_shared<core::Call>(std::move(program), absl::InfiniteFuture(), 0, [](core::Call&) {});
    for (const core::Step& step : call->program.steps) {
      auto plan = backend_->PlanStep(step);
      EXPECT_TRUE(plan.ok()) << plan.status();
      if (plan.ok()) call->plan.steps.push_back(*std::move(plan));
    }
    return call;
  }
  // The call looks into `matmul`.
  core::CallPtr MakeCall(const Matmul& matmul) {
    core::Program program;
    program.steps.emplace_back(matmul.step);
    return MakeCall(std::move(program));
  }
  core::CallPtr Run(core::CallPtr call, int executor = 0) {
    const core::CallPtr batch[] = {call};
    backend_->Execute(executor, batch);
    return call;
  }
  core::PoolUse Pool(const std::string& name) {
    for (const core::PoolUse& pool : backend_->Pools()) {
      if (pool.pool == name) return pool;
    }
    return {};
  }

  std::shared_ptr<testing::FakeGpu> gpu_;
  std::vector<MatmulVariant> matmul_rows_;
  std::vector<AttentionVariant> attention_rows_;
  std::unique_ptr<core::Backend> backend_;
  std::atomic<int> lost_ = 0;
};

}  // namespace kernd::gpu
