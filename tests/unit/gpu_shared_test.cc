// Memory that a client shares, on a GPU made of host memory, which copies only when somebody waits: it is registered
// before the first copy, copied from and to as it is, and unregistered after the last one, while it is still mapped.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>

#include "kernd/kernels/error.h"
#include "server/core/shared_region.h"
#include "server/gpu/backend.h"
#include "tests/support/fake_gpu.h"
#include "tests/support/fake_kernels.h"
#include "tests/support/memfd.h"

namespace kernd::gpu {
namespace {

using testing::FakeGpu;
using testing::FakeKernels;

constexpr std::int64_t kBytes = 16384;

// A [8, 4], its rows 7 elements apart, at byte 12; B [4, 6] at 4096; D [8, 6] at 8196.
class SharedCallTest : public ::testing::Test {
 protected:
  SharedCallTest() {
    BackendOptions options;
    options.memory_limit = 64 << 20;
    options.primed_bytes = 1 << 20;
    options.pinned_bytes = 4 << 20;
    backend_ = *MakeBackend(gpu_, FakeKernels(*gpu_), options);
    fd_ = testing::MakeMemfd(kBytes);
    data_ = static_cast<std::byte*>(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0));
    for (int i = 0; i < 7 * 8; ++i) At(12)[i] = 1 + 0.5f * static_cast<float>(i % 13);
    for (int i = 0; i < 24; ++i) At(4096)[i] = -2 + 0.25f * static_cast<float>(i % 5);
  }
  ~SharedCallTest() override {
    call_.reset();
    region_.reset();
    backend_.reset();
    EXPECT_EQ(gpu_->alive(), FakeGpu::Alive()) << "something was not given back";
    munmap(data_, kBytes);
    close(fd_);
  }
  float* At(std::int64_t offset) const { return reinterpret_cast<float*>(data_ + offset); }

  absl::Status Register() {
    region_ = *core::SharedRegion::Map(fd_, kBytes);
    auto registration = backend_->RegisterHost(absl::MakeSpan(region_->data(), kBytes));
    if (registration.ok()) region_->Keep(*std::move(registration));
    return registration.status();
  }
  void MakeCall(bool result_shared) {
    core::MatmulStep step;
    step.problem.a = {.dtype = DataType::kF32, .shape = {8, 4}};
    step.problem.b = {.dtype = DataType::kF32, .shape = {4, 6}};
    step.a.device = region_->data() + 12;
    step.a.copy_of = core::View{.shape = {8, 4}, .strides = {7, 1}, .element_bytes = 4};
    step.b.device = region_->data() + 4096;
    step.b.copy_of = core::View{.shape = {4, 6}, .strides = {6, 1}, .element_bytes = 4};
    step.a.owner = step.b.owner = region_;
    if (result_shared) step.places[0] = {.region = region_, .offset = 8196};
    core::Program program;
    program.steps.emplace_back(std::move(step));
    call_ = std::make_shared<core::Call>(std::move(program), absl::InfiniteFuture(), 0, [](core::Call&) {});
    call_->plan.steps.push_back(backend_->PlanStep(call_->program.steps[0]).value());
    if (result_shared) call_->shared = {region_->data() + 8196};
  }
  void Execute() {
    const core::CallPtr batch[] = {call_};
    backend_->Execute(0, batch);
  }
  std::vector<float> Product() const {
    std::vector<float> d(48);
    for (int i = 0; i < 8; ++i) {
      for (int j = 0; j < 6; ++j) {
        double sum = 0;
        for (int k = 0; k < 4; ++k) sum += static_cast<double>(At(12)[i * 7 + k]) * At(4096)[k * 6 + j];
        d[static_cast<std::size_t>(i * 6 + j)] = static_cast<float>(sum);
      }
    }
    return d;
  }

  const std::shared_ptr<FakeGpu> gpu_ = std::make_shared<FakeGpu>();
  std::unique_ptr<core::Backend> backend_;
  int fd_ = -1;
  std::byte* data_ = nullptr;  // as the client sees it
  std::shared_ptr<core::SharedRegion> region_;
  core::CallPtr call_;
};

TEST_F(SharedCallTest, IsCopiedFromAndToAsItIs) {
  ASSERT_TRUE(Register().ok());
  const std::int64_t staged = gpu_->calls("CopyIn");
  MakeCall(true);
  Execute();
  ASSERT_TRUE(call_->status.ok()) << call_->status;
  EXPECT_EQ(std::vector<float>(At(8196), At(8196) + 48), Product());
  EXPECT_EQ(At(8196)[48], 0) << "not a byte more";
  EXPECT_EQ(gpu_->calls("CopyIn"), staged) << "nothing was staged";
  EXPECT_EQ(call_->copied_bytes, 0);
  const core::MemoryUse& use = call_->plan.steps[0].memory;
  EXPECT_EQ(use.inputs, 2 * 256) << "the copies on the device are the call's";
  EXPECT_EQ(use.outputs, 256);
  EXPECT_EQ(use.pinned, 0);
  EXPECT_FALSE(backend_->UsesHostMemory());
}

TEST_F(SharedCallTest, ResultsMayGoIntoTheReply) {
  ASSERT_TRUE(Register().ok());
  MakeCall(false);
  Execute();
  ASSERT_TRUE(call_->status.ok()) << call_->status;
  const auto* d = reinterpret_cast<const float*>(call_->results[0].data());
  EXPECT_EQ(std::vector<float>(d, d + 48), Product());
}

TEST_F(SharedCallTest, IsUnregisteredWithTheLastCallAndStillMapped) {
  ASSERT_TRUE(Register().ok());
  MakeCall(true);
  // While the call is under way its client unregisters, and everybody but the call lets go.
  gpu_->AtNext("CopyRows", 2, [this] { region_.reset(); });
  gpu_->AtNext("CopyOut", 1, [this] { EXPECT_EQ(gpu_->alive().registered, 1); });
  Execute();
  ASSERT_TRUE(call_->status.ok()) << call_->status;
  EXPECT_EQ(std::vector<float>(At(8196), At(8196) + 48), Product());
  EXPECT_EQ(gpu_->alive().registered, 1) << "the call's result is there";
  data_[0] = std::byte{7};
  call_.reset();
  EXPECT_EQ(gpu_->alive().registered, 0);
  EXPECT_EQ(data_[0], std::byte{0}) << "the driver could still touch it";
}

TEST_F(SharedCallTest, NoCopyOutlivesACallThatFails) {
  for (const char* step : {"CopyRows", "Launch", "CopyOut", "Record", "Wait"}) {
    SCOPED_TRACE(step);
    ASSERT_TRUE(Register().ok());
    MakeCall(true);
    gpu_->FailNext(step, step == std::string("CopyRows") ? 2 : 1, absl::InternalError("cudaErrorSomething"));
    if (step == std::string("Wait")) gpu_->FailNext("Passed", 1, absl::InternalError("cudaErrorSomething"));
    Execute();
    EXPECT_TRUE(absl::IsInternal(call_->status)) << call_->status;
    EXPECT_EQ(gpu_->alive().registered, 1);
    call_.reset();
    region_.reset();
    EXPECT_EQ(gpu_->alive().registered, 0);
    gpu_->FailNext("Wait", 1, absl::OkStatus());
  }
}

TEST_F(SharedCallTest, WhatCannotBeRegisteredSaysWhy) {
  gpu_->FailNext("RegisterHost", 1, absl::ResourceExhaustedError("cudaErrorMemoryAllocation"));
  const absl::Status full = Register();
  EXPECT_TRUE(absl::IsResourceExhausted(full));
  EXPECT_EQ(DetailOf(full).reason, reason::kMemoryFull);
  EXPECT_TRUE(DetailOf(full).retry_after.has_value());
  gpu_->FailNext("RegisterHost", 1, absl::InternalError("cudaErrorSomething"));
  EXPECT_TRUE(absl::IsInternal(Register()));
}

}  // namespace
}  // namespace kernd::gpu
