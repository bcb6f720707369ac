// Resident tensors on a GPU made of host memory, which copies only when somebody waits: nothing may be read, reused or
// given back before its copy has been made.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "kernd/kernels/error.h"
#include "kernels/reference/matmul.h"
#include "server/gpu/backend.h"
#include "server/gpu/gather.h"
#include "server/gpu/resident_pool.h"
#include "tests/support/fake_gpu.h"
#include "tests/support/fake_kernels.h"
#include "tests/support/fake_tensors.h"

namespace kernd::gpu {
namespace {

using testing::FakeGpu;
using testing::FakeKernels;
using testing::Pattern;

absl::Span<const std::byte> BytesOf(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}
std::string Text(const std::byte* data, std::int64_t bytes) {
  return {reinterpret_cast<const char*>(data), static_cast<std::size_t>(bytes)};
}

class ResidentPoolTest : public ::testing::Test {
 protected:
  void SetUp() override {
    results_ = *PinnedPool::Create(gpu_, 1 << 20);
    pool_ = *ResidentPool::Create(gpu_, *results_, 1 << 20, 1000);
  }
  ~ResidentPoolTest() override {
    pool_.reset();
    results_.reset();
    EXPECT_EQ(gpu_.alive(), FakeGpu::Alive()) << "something was not given back";
  }
  std::string Read(core::TensorMemory& tensor, std::int64_t offset, std::int64_t bytes) {
    const auto buffer = tensor.Read(offset, bytes);
    EXPECT_TRUE(buffer.ok()) << buffer.status();
    return buffer.ok() ? Text(buffer->data(), buffer->size()) : "";
  }

  FakeGpu gpu_;
  std::unique_ptr<PinnedPool> results_;
  std::unique_ptr<ResidentPool> pool_;
};

TEST_F(ResidentPoolTest, WhatIsWrittenIsRead) {
  const auto tensor = pool_->Allocate(50'000).value();
  const std::string data = Pattern(50'000, 1);
  // More chunks than the ring has, from runs of every size, some of them empty; the source is spoilt at once.
  for (std::int64_t at = 0; at < 50'000; at += 12'500) {
    std::string part = data.substr(static_cast<std::size_t>(at), 12'500);
    const auto bytes = BytesOf(part);
    ASSERT_TRUE(tensor->Write(at, {bytes.subspan(0, 1), {}, bytes.subspan(1, 2999), bytes.subspan(3000), {}}).ok());
    part.assign(part.size(), '?');
  }
  ASSERT_TRUE(tensor->Settle().ok());
  EXPECT_TRUE(Text(tensor->data(), tensor->bytes()) == data) << "settled: the device has it";
  EXPECT_TRUE(Read(*tensor, 0, 50'000) == data);
  EXPECT_TRUE(Read(*tensor, 49'999, 1) == data.substr(49'999));
  EXPECT_EQ(Read(*tensor, 7, 0), "");
  EXPECT_EQ(results_->use().used, 0);
}

TEST_F(ResidentPoolTest, EmptyTensorsTakeNothing) {
  const auto tensor = pool_->Allocate(0).value();
  EXPECT_EQ(tensor->data(), nullptr);
  EXPECT_TRUE(tensor->Write(0, {absl::Span<const std::byte>()}).ok());
  EXPECT_TRUE(tensor->Settle().ok());
  EXPECT_EQ(Read(*tensor, 0, 0), "");
  EXPECT_EQ(pool_->memory().use().used, 0);
}

TEST_F(ResidentPoolTest, ATensorMayGoWhileItsCopiesAreStillToCome) {
  const std::string data = Pattern(3000, 1);
  auto tensor = pool_->Allocate(3000).value();
  ASSERT_TRUE(tensor->Write(0, {BytesOf(data)}).ok());
  EXPECT_GT(gpu_.pending(), 0);
  tensor.reset();
  EXPECT_EQ(pool_->memory().use().used, 0);
  const auto next = pool_->Allocate(3000).value();  // perhaps at the same address
  ASSERT_TRUE(next->Write(0, {BytesOf(Pattern(3000, 2))}).ok());
  ASSERT_TRUE(next->Settle().ok());
  EXPECT_TRUE(Read(*next, 0, 3000) == Pattern(3000, 2));
}

TEST_F(ResidentPoolTest, ManyThreadsWriteOneTensorAndReadAnother) {
  const std::string data = Pattern(64'000, 1);
  const auto written = pool_->Allocate(64'000).value(), read = pool_->Allocate(64'000).value();
  ASSERT_TRUE(read->Write(0, {BytesOf(data)}).ok() && read->Settle().ok());
  std::vector<std::thread> threads;
  for (std::int64_t t = 0; t < 12; ++t) {  // more than the ring has chunks
    threads.emplace_back([&, t] {
      for (std::int64_t at = t * 1000; at < 64'000; at += 12'000) {
        const std::string part = data.substr(static_cast<std::size_t>(at), 1000);
        EXPECT_TRUE(written->Write(at, {BytesOf(part)}).ok());
        EXPECT_TRUE(Read(*read, at, 1000) == part);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(written->Settle().ok());
  EXPECT_TRUE(Read(*written, 0, 64'000) == data);
}

TEST_F(ResidentPoolTest, FailuresAreToldAndNothingIsLost) {
  const std::string data = Pattern(20'000, 1);
  for (const char* call : {"CopyIn", "Record", "Wait"}) {
    SCOPED_TRACE(call);
    const auto tensor = pool_->Allocate(20'000).value();
    gpu_.FailNext(call, 1, absl::InternalError("cudaErrorSomething"));
    EXPECT_TRUE(absl::IsInternal(tensor->Write(0, {BytesOf(data)})));
    // The ring is whole again: more chunks than it has go through.
    ASSERT_TRUE(tensor->Write(0, {BytesOf(data)}).ok());
    ASSERT_TRUE(tensor->Settle().ok());
    EXPECT_TRUE(Read(*tensor, 0, 20'000) == data);
    for (const char* of_read : {"CopyOut", "Record", "Wait"}) {
      gpu_.FailNext(of_read, 1, absl::InternalError("cudaErrorSomething"));
      EXPECT_TRUE(absl::IsInternal(tensor->Read(0, 100).status())) << of_read;
      EXPECT_EQ(results_->use().used, 0);
    }
  }
  gpu_.FailNext("Allocate", 1, absl::InternalError("cudaErrorSomething"));
  EXPECT_TRUE(absl::IsInternal(pool_->Allocate(100).status()));
  EXPECT_EQ(pool_->memory().use().used, 0);
}

TEST(Gather, CopiesAnyView) {
  std::random_device device;
  for (int round = 0; round < 200; ++round) {
    const unsigned seed = device();
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    FakeGpu gpu;
    const Pool memory = gpu.CreatePool(1 << 20).value();
    const Stream stream = gpu.CreateStream().value();
    core::View view = {.element_bytes = 1 << random() % 4};
    const std::size_t rank = random() % 5;
    std::int64_t elements = 1, last = 0;
    for (std::size_t i = 0; i < rank; ++i) {
      view.shape.push_back(1 + static_cast<std::int64_t>(random() % 4));
      // Rows that overlap, repeat, touch and lie apart.
      view.strides.push_back(i + 1 == rank ? 1 : static_cast<std::int64_t>(random() % 40));
      elements *= view.shape.back();
      last += (view.shape.back() - 1) * view.strides.back();
    }
    if (round % 3 == 0) view.strides = TensorSpec{.dtype = DataType::kU8, .shape = view.shape}.EffectiveStrides();
    if (round % 3 == 0) last = elements - 1;
    const std::int64_t element = view.element_bytes, from_bytes = (last + 1) * element;
    std::byte* const from = gpu.Allocate(memory, from_bytes, stream).value();
    std::byte* const to = gpu.Allocate(memory, elements * element, stream).value();
    ASSERT_TRUE(gpu.Synchronize(stream).ok());
    const std::string data = Pattern(from_bytes, round);
    std::memcpy(from, data.data(), data.size());
    ASSERT_TRUE(Gather(gpu, to, from, view, stream).ok());
    if (round % 3 == 0) {
      EXPECT_EQ(gpu.calls("CopyRows"), 1) << "what is contiguous is one copy";
    }
    ASSERT_TRUE(gpu.Synchronize(stream).ok());
    std::string expected;
    for (std::int64_t e = 0; e < elements; ++e) {
      std::int64_t rest = e, offset = 0;
      for (std::size_t i = rank; i-- > 0;) {
        offset += rest % view.shape[i] * view.strides[i];
        rest /= view.shape[i];
      }
      expected += data.substr(static_cast<std::size_t>(offset * element), static_cast<std::size_t>(element));
    }
    EXPECT_TRUE(Text(to, elements * element) == expected);
    ASSERT_TRUE(gpu.Free(from, stream).ok() && gpu.Free(to, stream).ok() && gpu.Synchronize(stream).ok());
    gpu.Destroy(stream);
    gpu.DestroyPool(memory);
  }
}

// Calls of the backend whose operands and results are in a session.
class ResidentCallTest : public ::testing::Test {
 protected:
  ResidentCallTest() {
    BackendOptions options;
    options.memory_limit = 64 << 20;
    options.resident_limit = 32 << 20;
    options.primed_bytes = 1 << 20;
    options.pinned_bytes = 4 << 20;
    backend_ = *MakeBackend(gpu_, FakeKernels(*gpu_), options);
  }
  ~ResidentCallTest() override {
    tensors_.clear();
    call_.reset();
    backend_.reset();
    EXPECT_EQ(gpu_->alive(), FakeGpu::Alive()) << "something was not given back";
  }
  // A tensor of these floats.
  core::TensorMemory& Put(const std::vector<float>& values) {
    const absl::Span<const std::byte> bytes(reinterpret_cast<const std::byte*>(values.data()), values.size() * 4);
    tensors_.push_back(backend_->AllocateTensor(static_cast<std::int64_t>(bytes.size())).value());
    EXPECT_TRUE(tensors_.back()->Write(0, {bytes}).ok() && tensors_.back()->Settle().ok());
    return *tensors_.back();
  }
  const core::MemoryUse& Run(core::MatmulStep step, std::shared_ptr<core::TensorMemory> kept = nullptr) {
    core::Program program;
    program.steps.emplace_back(std::move(step));
    call_ = std::make_shared<core::Call>(std::move(program), absl::InfiniteFuture(), 0, [](core::Call&) {});
    call_->plan.steps.push_back(backend_->PlanStep(call_->program.steps[0]).value());
    if (kept != nullptr) call_->kept = {std::move(kept)};
    const core::CallPtr batch[] = {call_};
    backend_->Execute(0, batch);
    EXPECT_TRUE(call_->status.ok()) << call_->status;
    return call_->plan.steps[0].memory;
  }
  static std::vector<float> Ramp(int count, float start) {
    std::vector<float> values(static_cast<std::size_t>(count));
    for (int i = 0; i < count; ++i) values[static_cast<std::size_t>(i)] = start + 0.5f * static_cast<float>(i % 13);
    return values;
  }
  // A B of 8x4 and 4x6, by the reference; A's rows `lda` apart.
  static std::vector<float> Product(const float* a, std::int64_t lda, const float* b) {
    std::vector<float> d(48);
    for (int i = 0; i < 8; ++i) {
      for (int j = 0; j < 6; ++j) {
        double sum = 0;
        for (int k = 0; k < 4; ++k) sum += static_cast<double>(a[i * lda + k]) * b[k * 6 + j];
        d[static_cast<std::size_t>(i * 6 + j)] = static_cast<float>(sum);
      }
    }
    return d;
  }
  static core::MatmulStep Step(const TensorSpec& a) {
    core::MatmulStep step;
    step.problem.a = a;
    step.problem.b = {.dtype = DataType::kF32, .shape = {4, 6}};
    return step;
  }
  std::vector<float> Result(const std::byte* data) {
    std::vector<float> d(48);
    std::memcpy(d.data(), data, 48 * 4);
    return d;
  }

  std::shared_ptr<FakeGpu> gpu_ = std::make_shared<FakeGpu>();
  std::unique_ptr<core::Backend> backend_;
  std::vector<std::unique_ptr<core::TensorMemory>> tensors_;
  core::CallPtr call_;
};

TEST_F(ResidentCallTest, OperandsAreReadWhereTheyAre) {
  const std::vector<float> a = Ramp(8 * 7, 1), b = Ramp(24, -2);
  core::MatmulStep step = Step({.dtype = DataType::kF32, .shape = {8, 4}, .strides = {7, 1}});
  step.a.device = Put(a).data();  // a view: 4 of 7 columns
  step.b.device = Put(b).data();
  const std::int64_t copies = gpu_->calls("CopyIn");
  const core::MemoryUse& use = Run(std::move(step));
  EXPECT_EQ(Result(call_->results[0].data()), Product(a.data(), 7, b.data()));
  EXPECT_EQ(use.inputs, 0);
  EXPECT_EQ(use.outputs, 256);
  EXPECT_EQ(use.naive, (8 * 4 + 4 * 6 + 8 * 6) * 4) << "the textbook algorithm has them all";
  EXPECT_EQ(gpu_->calls("CopyIn"), copies) << "nothing moved";
}

TEST_F(ResidentCallTest, ViewsThatLieWhereKernelsCannotReadAreCopiedOnTheDevice) {
  const std::vector<float> a = Ramp(60, 1), b = Ramp(24, -2);
  core::MatmulStep step = Step({.dtype = DataType::kF32, .shape = {8, 4}});
  step.a.device = Put(a).data() + 3 * 4;
  step.a.copy_of = core::View{.shape = {8, 4}, .strides = {7, 1}, .element_bytes = 4};
  step.b.runs = {absl::Span<const std::byte>(reinterpret_cast<const std::byte*>(b.data()), 96)};  // mixed with inline
  const core::MemoryUse& use = Run(std::move(step));
  EXPECT_EQ(Result(call_->results[0].data()), Product(a.data() + 3, 7, b.data()));
  EXPECT_EQ(use.inputs, 2 * 256) << "the copy is the call's";
}

TEST_F(ResidentCallTest, ResultsStayWhereTheyAreToBe) {
  const std::vector<float> a = Ramp(32, 1), b = Ramp(24, -2);
  core::MatmulStep step = Step({.dtype = DataType::kF32, .shape = {8, 4}});
  step.a.device = Put(a).data();
  step.b.device = Put(b).data();
  step.places[0].resident = 7;
  const std::shared_ptr<core::TensorMemory> d = backend_->AllocateTensor(48 * 4).value();
  ASSERT_TRUE(d->Settle().ok());
  const core::MemoryUse& use = Run(std::move(step), d);
  EXPECT_EQ(use.inputs + use.outputs, 0) << "what is read and written is the session's";
  EXPECT_EQ(use.pinned, 0);
  EXPECT_EQ(call_->results[0].size(), 0) << "nothing is sent";
  EXPECT_EQ(Result(d->data()), Product(a.data(), 4, b.data()));
  EXPECT_EQ(Result(d->Read(0, 48 * 4).value().data()), Product(a.data(), 4, b.data()));
  call_->kept.clear();
}

}  // namespace
}  // namespace kernd::gpu
