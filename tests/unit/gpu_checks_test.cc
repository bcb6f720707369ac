// --debug-checks on the GPU: values that are no numbers, and writes outside of results.
#include <cstring>
#include <limits>

#include "tests/unit/gpu_backend_case.h"

namespace kernd::gpu {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class GpuChecksTest : public GpuBackendTest {
 protected:
  void SetUp() override {
    BackendOptions options;
    options.debug_checks = true;
    options.chunk_bytes = 1024;
    Start(options);
  }
};

TEST_F(GpuChecksTest, FindNothingInGoodCalls) {
  for (const std::int64_t size : {1, 7, 33, 100}) {
    const Matmul matmul(size, size + 3, size + 1);
    const core::CallPtr call = Run(MakeCall(matmul));
    ASSERT_TRUE(call->status.ok()) << call->status;
    EXPECT_EQ(BytesOf(call->results[0]), matmul.Expected());
    EXPECT_THAT(call->findings, ElementsAre());
    EXPECT_EQ(Pool("device").used, 0);
  }
  const Matmul matmul(5, 6, 7);
  const core::CallPtr call = MakeCall(matmul);
  EXPECT_GT(call->plan.steps[0].memory.workspace, kDeviceAlignment) << "guards and counts are accounted for";
}

TEST_F(GpuChecksTest, CountWhatIsNoNumber) {
  Matmul matmul(4, 5, 6);
  const float nan = std::nanf(""), inf = std::numeric_limits<float>::infinity();
  std::memcpy(matmul.a.data() + 4 * 7, &nan, 4);     // row 1
  std::memcpy(matmul.bias.data() + 4 * 2, &inf, 4);  // column 2
  const Matmul first(2, 2, 2);
  core::Program program;
  program.steps.emplace_back(first.step);
  program.steps.emplace_back(matmul.step);
  const core::CallPtr call = Run(MakeCall(std::move(program)));
  ASSERT_TRUE(call->status.ok()) << call->status;
  EXPECT_THAT(call->findings, ElementsAre(core::Finding{.tensor = "steps[1].a", .nan = 1},
                                          core::Finding{.tensor = "steps[1].bias", .inf = 1},
                                          core::Finding{.tensor = "steps[1].d", .nan = 5, .inf = 3}));
}

// One element before the first, behind the last, and in the last byte of the guard's reach.
TEST_F(GpuChecksTest, AWriteOutsideOfAResultIsInternal) {
  const Matmul matmul(5, 7, 3);  // 140 bytes: the guard begins inside the alignment
  for (const std::int64_t at : {-1, -64, 35, 36, 64, 127}) {
    SCOPED_TRACE(at);
    gpu_->after_kernel = [at](float* result, std::int64_t) { result[at] = 1; };
    const core::CallPtr call = Run(MakeCall(matmul));
    EXPECT_TRUE(absl::IsInternal(call->status)) << call->status;
    EXPECT_THAT(std::string(call->status.message()), HasSubstr("wrote past the result \"d\""));
    EXPECT_THAT(call->findings, ElementsAre(core::Finding{.tensor = "d", .overrun = true}));
    EXPECT_TRUE(call->results.empty());
  }
  gpu_->after_kernel = nullptr;
  EXPECT_TRUE(Run(MakeCall(matmul))->status.ok());
  EXPECT_EQ(lost_, 0);
}

TEST_F(GpuChecksTest, AttentionToo) {
  core::AttentionStep step;
  step.problem.q = step.problem.k = step.problem.v = {.dtype = DataType::kF32, .shape = {1, 2, 3, 4}};
  step.problem.want_lse = true;
  Bytes q = Ramp(24, -1), v = Ramp(24, 2);
  const float nan = std::nanf("");
  std::memcpy(v.data(), &nan, 4);
  step.q.runs = step.k.runs = {q};
  step.v.runs = {v};
  core::Program program;
  program.steps.emplace_back(std::move(step));
  gpu_->after_kernel = [](float* o, std::int64_t elements) { o[elements] = 0; };
  const core::CallPtr call = Run(MakeCall(std::move(program)));
  EXPECT_TRUE(absl::IsInternal(call->status)) << call->status;
  EXPECT_THAT(call->findings, ElementsAre(core::Finding{.tensor = "v", .nan = 1},
                                          core::Finding{.tensor = "o", .nan = 3, .overrun = true}));
}

}  // namespace
}  // namespace kernd::gpu
