// The GPU backend where something goes wrong: calls of the driver that fail, a device that is lost, clients that leave.
#include "kernd/kernels/error.h"
#include "tests/unit/gpu_backend_case.h"

namespace kernd::gpu {
namespace {

using ::testing::HasSubstr;

// Whatever call of the driver fails, and whichever of them: the call ends with that error, nothing leaks, and the next
// call is right.
TEST_F(GpuBackendTest, EveryFailureIsSurvived) {
  BackendOptions options;
  options.chunk_bytes = 1024;
  Start(options);
  const Matmul matmul(33, 20, 40);
  for (const char* what : {"Bind", "Allocate", "Record", "CopyIn", "Launch", "CopyOut", "Passed", "Between", "Wait"}) {
    int failed = 0;
    for (int nth = 1; nth <= 12; ++nth) {
      SCOPED_TRACE(std::string(what) + " " + std::to_string(nth));
      const core::CallPtr call = MakeCall(matmul);
      gpu_->FailNext(what, nth, absl::InternalError(std::string(what) + " failed"));
      Run(call);
      if (!call->status.ok()) {
        ++failed;
        EXPECT_THAT(std::string(call->status.message()), HasSubstr(what));
        EXPECT_TRUE(call->results.empty());
        if (std::string(what) != "Bind") {
          EXPECT_EQ(gpu_->pending(), 0) << "work on its buffers is still to come";
        }
      }
      gpu_->FailNext(what, 1 << 30, absl::OkStatus());
      EXPECT_EQ(Pool("device").used, 0);
      const core::CallPtr next = Run(MakeCall(matmul));
      ASSERT_TRUE(next->status.ok()) << next->status;
      EXPECT_EQ(BytesOf(next->results[0]), matmul.Expected());
    }
    EXPECT_GT(failed, 0) << what << " was never called";
  }
  EXPECT_EQ(lost_, 0) << "none of these is the end of the device";
}

TEST_F(GpuBackendTest, MemoryHeldByOthersIsARefusalAndNoMore) {
  Start();
  const Matmul matmul(64, 64, 64);
  const core::CallPtr call = MakeCall(matmul);
  gpu_->memory = 1 << 20;  // all that is there is what was primed
  gpu_->FailNext("Allocate", 1, absl::ResourceExhaustedError("cudaErrorMemoryAllocation"));
  EXPECT_TRUE(Run(call)->status.ok()) << "the second try succeeds: " << call->status;
  const Matmul larger(640, 640, 640);
  const core::CallPtr refused = Run(MakeCall(larger));
  EXPECT_TRUE(absl::IsResourceExhausted(refused->status));
  EXPECT_EQ(DetailOf(refused->status).reason, reason::kMemoryFull);
  EXPECT_TRUE(Run(MakeCall(matmul))->status.ok());
}

TEST_F(GpuBackendTest, ALostDeviceIsSaidOnce) {
  Start();
  const Matmul matmul(8, 8, 8);
  const core::CallPtr first = MakeCall(matmul), second = MakeCall(matmul);
  gpu_->Lose();
  EXPECT_TRUE(absl::IsInternal(Run(first)->status));
  EXPECT_EQ(lost_, 1);
  EXPECT_TRUE(absl::IsUnavailable(Run(second)->status));
  EXPECT_EQ(DetailOf(second->status).reason, reason::kDeviceLost);
  EXPECT_EQ(lost_, 1);
}

TEST_F(GpuBackendTest, NobodyWaitsNothingRuns) {
  Start();
  const Matmul matmul(8, 8, 8);
  const core::CallPtr call = MakeCall(matmul);
  call->Abandon();
  const std::int64_t before = gpu_->calls("Launch");
  EXPECT_TRUE(absl::IsCancelled(Run(call)->status));
  EXPECT_EQ(gpu_->calls("Launch"), before);
}

TEST_F(GpuBackendTest, StagingStopsWhenTheClientGoes) {
  BackendOptions options;
  options.chunk_bytes = 1024;
  Start(options);
  const Matmul matmul(100, 100, 100);
  const core::CallPtr call = MakeCall(matmul);
  gpu_->AtNext("CopyIn", 3, [&] { call->Abandon(); });
  EXPECT_TRUE(absl::IsCancelled(Run(call)->status));
  EXPECT_EQ(gpu_->calls("CopyIn"), 3);
  EXPECT_EQ(gpu_->calls("Launch"), 0);
}

TEST_F(GpuBackendTest, APrewarmThatFailsNamesTheKernel) {
  Start();
  gpu_->FailNext("Launch", 1, absl::InternalError("no image"));
  const absl::Status status = backend_->Prewarm([](int, int, std::string_view) {});
  EXPECT_THAT(std::string(status.message()), HasSubstr("matmul_f32_sm75_fake: no image"));
}

TEST_F(GpuBackendTest, ALongStepEndsWithItsSliceWhenTheClientGoes) {
  Start();
  gpu_->microseconds_a_row = 1000;
  const Matmul matmul(2048, 16, 3);
  const core::CallPtr call = MakeCall(matmul);
  gpu_->AtNext("Launch", 3, [&] { call->Abandon(); });
  EXPECT_TRUE(absl::IsCancelled(Run(call)->status)) << call->status;
  EXPECT_EQ(gpu_->calls("Launch"), 3) << "of eight";
  EXPECT_EQ(gpu_->pending(), 0);
  EXPECT_EQ(Pool("device").used, 0);
  EXPECT_TRUE(Run(MakeCall(matmul))->status.ok());
}

}  // namespace
}  // namespace kernd::gpu
