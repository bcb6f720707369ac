// Operands and results in memory that clients share with the daemon.
#include <cmath>
#include <thread>
#include <vector>

#include "tests/integration/shared_memory_case.h"

namespace kernd::testing {
namespace {

TEST_F(SharedMemoryTest, OperandsAndResultsInItHaveTheBitsOfInlineOnes) {
  const v1::Tensor a = F32({300, 200}), b = F32({200, 100});
  const std::string expected = Run(Matmul(a, b)).d().data();
  const Memory memory(kMiB);
  MustShare(1, memory);
  memory.Write(0, a.data());
  memory.Write(400'000, b.data());
  ASSERT_TRUE(daemon_->WaitForMetric("kernd_requests_in_flight", 0));
  const double copied = daemon_->Metrics().at(kCopiedByMatmul);
  v1::MatmulRequest request = Matmul(In(a, 1, 0), In(b, 1, 400'000));
  EXPECT_TRUE(Run(request).d().data() == expected) << "into the reply";
  v1::SharedRef& place = *request.mutable_matmul()->mutable_d()->mutable_shared();
  place.set_region_id(1);
  place.set_offset_bytes(500'000);
  place.set_size_bytes(120'000);
  const v1::MatmulReply reply = Run(request);
  EXPECT_EQ(reply.d().data(), "");
  EXPECT_EQ(reply.d().dtype(), v1::DATA_TYPE_F32);
  EXPECT_EQ(reply.d().shape_size(), 2);
  EXPECT_TRUE(memory.Read(500'000, 120'000) == expected);
  EXPECT_EQ(memory.Read(620'000, 8), std::string(8, '\0')) << "not a byte more";
  if (!OnGpu()) {
    EXPECT_EQ(reply.memory().peak_bytes(), reply.memory().workspace_bytes()) << "it is the client's memory";
  }
  EXPECT_EQ(reply.memory().pinned_bytes(), 0);
  ASSERT_TRUE(daemon_->WaitForMetric("kernd_requests_in_flight", 0));
  EXPECT_EQ(daemon_->Metrics().at(kCopiedByMatmul), copied) << "nothing was copied by the CPU";
  EXPECT_TRUE(Run(Matmul(a, In(b, 1, 400'000))).d().data() == expected) << "mixed with inline";
}

TEST_F(SharedMemoryTest, AttentionAndItsTwoResults) {
  v1::AttentionRequest request = SmallAttention();
  request.mutable_attention()->set_want_lse(true);
  v1::AttentionReply expected, got;
  ASSERT_TRUE(Call(session_.channel, kAttention, request, expected).status.ok());
  const Memory memory(65536);
  MustShare(1, memory);
  v1::AttentionOp& op = *request.mutable_attention();
  memory.Write(0, op.q().data());
  memory.Write(4096, op.k().data());
  memory.Write(8192, op.v().data());
  *op.mutable_q() = In(op.q(), 1, 0);
  *op.mutable_k() = In(op.k(), 1, 4096);
  *op.mutable_v() = In(op.v(), 1, 8192);
  op.mutable_o()->mutable_shared()->set_region_id(1);
  op.mutable_o()->mutable_shared()->set_offset_bytes(16384);
  op.mutable_lse()->mutable_shared()->set_region_id(1);
  op.mutable_lse()->mutable_shared()->set_offset_bytes(65536 - 80);  // to the last byte, and at no address but F32's
  request.mutable_options()->set_session_id(session_.opened.session_id());
  const RawReply raw = Call(session_.channel, kAttention, request, got);
  ASSERT_TRUE(raw.status.ok()) << raw.status.error_message();
  EXPECT_TRUE(memory.Read(16384, 640) == expected.o().data());
  EXPECT_TRUE(memory.Read(65536 - 80, 80) == expected.lse().data());
}

TEST_F(SharedMemoryTest, ViewsAtEveryAddressThatAnElementMayHave) {
  const v1::Tensor whole = F32({4, 6});
  const std::vector<float> x = Floats(whole);
  const v1::Tensor part = F32({3, 2}, {x[7], x[8], x[13], x[14], x[19], x[20]}), b = F32({2, 2}, {1, 2, 3, 4});
  const std::string expected = Run(Matmul(part, b)).d().data();
  const Memory memory(8192);
  MustShare(1, memory);
  for (const std::int64_t at : {0, 4, 12, 60, 4092}) {
    memory.Write(at, whole.data());
    memory.Write(at + 96, b.data());
    v1::MatmulRequest request = Matmul(In(part, 1, at + 28, {6, 1}), In(b, 1, at + 96));
    request.mutable_matmul()->mutable_d()->mutable_shared()->set_region_id(1);
    request.mutable_matmul()->mutable_d()->mutable_shared()->set_offset_bytes(at + 112);
    Run(request);
    EXPECT_TRUE(memory.Read(at + 112, 24) == expected) << at;
  }
}

TEST_F(SharedMemoryTest, PlansSeeIt) {
  const v1::Tensor x = F32({64, 64});
  const Memory memory(65536);
  MustShare(1, memory);
  v1::MatmulRequest request = Matmul(In(x, 1, 0), In(x, 1, 16384));
  request.mutable_matmul()->mutable_d()->mutable_shared()->set_region_id(1);
  request.mutable_matmul()->mutable_d()->mutable_shared()->set_offset_bytes(32768);
  v1::PlanRequest plan;
  *plan.mutable_options() = request.options();
  *plan.add_steps()->mutable_matmul() = request.matmul();
  v1::PlanReply planned;
  ASSERT_TRUE(Call(session_.channel, kPlan, plan, planned).status.ok());
  EXPECT_EQ(planned.memory().peak_bytes(), Run(request).memory().peak_bytes());
}

TEST_F(SharedMemoryTest, NanIsAValueLikeOthers) {
  const v1::Tensor x = F32({2, 2}, {NAN, 1, INFINITY, 2}), y = F32({2, 2}, {1, 0, 0, 1});
  const Memory memory(4096);
  MustShare(1, memory);
  memory.Write(0, x.data());
  const std::vector<float> d = Floats(Run(Matmul(In(x, 1, 0), y)).d());
  EXPECT_TRUE(std::isnan(d[0]) && std::isnan(d[1]) && std::isinf(d[2]) && std::isnan(d[3]));
}

TEST_F(SharedMemoryTest, ARegionIsReadByManyCallsAtOnce) {
  const v1::Tensor a = F32({33, 64}), b = F32({64, 64});
  const Memory memory(kMiB);
  MustShare(1, memory);
  memory.Write(0, b.data());
  const std::string expected = Run(Matmul(a, b)).d().data();
  std::vector<std::thread> callers;
  for (int t = 0; t < 4; ++t) {
    callers.emplace_back([&, t] {
      const auto channel = Connect(daemon_->endpoint());
      const std::int64_t at = 65536 * (t + 1);
      for (int i = 0; i < 25; ++i) {
        v1::MatmulRequest request = Matmul(a, In(b, 1, 0));
        request.mutable_matmul()->mutable_d()->mutable_shared()->set_region_id(1);
        request.mutable_matmul()->mutable_d()->mutable_shared()->set_offset_bytes(at);
        v1::MatmulReply reply;
        const RawReply raw = Call(channel, kMatmul, request, reply);
        EXPECT_TRUE(raw.status.ok()) << raw.status.error_message();
        EXPECT_TRUE(memory.Read(at, expected.size()) == expected);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
}

}  // namespace
}  // namespace kernd::testing
