// Shared memory that changes under the daemon: cut short, taken away, written to while calls run.
#include <fcntl.h>

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "tests/integration/shared_memory_case.h"
#include "tests/support/pending_call.h"

namespace kernd::testing {
namespace {

using grpc::StatusCode;

TEST_F(SharedMemoryTest, CannotBeCutShort) {
  const v1::Tensor x = F32({64, 64});
  const Memory memory(32768);
  MustShare(1, memory);
  EXPECT_NE(ftruncate(memory.fd(), 0), 0);
  EXPECT_NE(ftruncate(memory.fd(), 4096), 0);
  // A hole is no cut: its pages are zeros.
  memory.Write(0, x.data());
  ASSERT_EQ(fallocate(memory.fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 32768), 0);
  if (!OnGpu()) {
    EXPECT_EQ(Run(Matmul(In(x, 1, 0), x)).d().data(), std::string(16384, '\0'));
  }
  ASSERT_EQ(ftruncate(memory.fd(), 65536), 0) << "longer it may be";
  ExpectRefused(Refused(Matmul(In(x, 1, 32768), x)), StatusCode::OUT_OF_RANGE, "OUT_OF_RANGE",
                "matmul.a.shared.offset_bytes");
}

TEST_F(SharedMemoryTest, UnregisteredItIsGoneButForCallsThatUseIt) {
  const v1::Tensor x = LongerOperand();
  const auto bytes = static_cast<std::int64_t>(x.data().size());
  v1::AttentionRequest request;
  request.mutable_options()->set_session_id(session_.opened.session_id());
  v1::AttentionOp& op = *request.mutable_attention();
  op.set_layout(v1::ATTENTION_LAYOUT_BHLD);
  *op.mutable_q() = *op.mutable_k() = *op.mutable_v() = x;
  v1::AttentionReply expected, got;
  ASSERT_TRUE(Call(session_.channel, kAttention, request, expected).status.ok());
  const Memory operand(bytes), result(bytes);
  MustShare(1, operand);
  MustShare(2, result);
  operand.Write(0, x.data());
  *op.mutable_q() = *op.mutable_k() = *op.mutable_v() = In(x, 1, 0);
  op.mutable_o()->mutable_shared()->set_region_id(2);
  RawReply raw;
  std::thread call([&] { raw = Call(Connect(daemon_->endpoint()), kAttention, request, got); });
  EXPECT_TRUE(WaitUntilItRuns(*daemon_));
  ASSERT_TRUE(Forget(1).status.ok() && Forget(2).status.ok());
  v1::AttentionReply late;
  EXPECT_EQ(Call(session_.channel, kAttention, request, late).reason, "REGION_NOT_FOUND");
  // It counts as long as it is used: also on a GPU, which copies from it.
  EXPECT_TRUE(daemon_->WaitForMetric(kShared, static_cast<double>(2 * bytes)));
  MustShare(1, Memory(4096));  // the id is free
  call.join();
  ASSERT_TRUE(raw.status.ok()) << raw.status.error_message();
  EXPECT_TRUE(result.Read(0, x.data().size()) == expected.o().data());
  EXPECT_TRUE(daemon_->WaitForMetric(kShared, 4096));
}

TEST_F(SharedMemoryTest, SessionsTakeTheirRegionsWithThem) {
  v1::OpenSessionRequest open;
  open.mutable_lease()->set_seconds(1);
  const Memory memory(8192);
  {
    SessionClient brief(daemon_->endpoint(), open), closed(daemon_->endpoint());
    for (const SessionClient* client : {&brief, &closed}) {
      v1::RegisterSharedMemoryRequest request = Registration(1, 8192, HandOver(socket_, memory.fd()));
      request.set_session_id(client->opened.session_id());
      ASSERT_TRUE(Register(*client->stub, request).status.ok());
    }
    closed.Close();
  }
  EXPECT_TRUE(daemon_->WaitForMetric(kShared, 0)) << "one was closed, the other's lease has ended";
  EXPECT_EQ(Mappings(daemon_->pid()), 0);
}

// Values, masks among them, that are others each time they are read; the daemon is none the worse.
TEST_F(SharedMemoryTest, ContentsMayChangeWhileCallsRun) {
  const Memory memory(kMiB);
  MustShare(1, memory);
  std::atomic<bool> stop = false;
  std::thread writer([&] {
    for (std::uint32_t round = 1; !stop; ++round) {
      auto* const words = reinterpret_cast<volatile std::uint32_t*>(memory.bytes().data());
      for (std::size_t i = 0; i < memory.bytes().size() / 4 && !stop; i += 7) words[i] = round * 2654435761u;
    }
  });
  v1::AttentionRequest request;
  request.mutable_options()->set_session_id(session_.opened.session_id());
  v1::AttentionOp& op = *request.mutable_attention();
  op.set_layout(v1::ATTENTION_LAYOUT_BHLD);
  v1::Tensor x = F32({1, 2, 256, 32}), mask;
  mask.set_dtype(v1::DATA_TYPE_BOOL);
  for (const std::int64_t dim : {1, 1, 256, 256}) mask.add_shape(dim);
  *op.mutable_q() = In(x, 1, 0);
  *op.mutable_k() = In(x, 1, 65536);
  *op.mutable_v() = In(x, 1, 131072);
  *op.mutable_mask() = In(mask, 1, 262144);
  op.mutable_o()->mutable_shared()->set_region_id(1);
  op.mutable_o()->mutable_shared()->set_offset_bytes(32768);  // over operands
  for (int i = 0; i < 20; ++i) {
    v1::AttentionReply reply;
    const RawReply raw = Call(session_.channel, kAttention, request, reply);
    EXPECT_TRUE(raw.status.ok()) << raw.status.error_message();
    Run(Matmul(In(F32({256, 256}), 1, 0), In(F32({256, 256}), 1, 4)));
    for (const v1::DataType dtype : {v1::DATA_TYPE_F16, v1::DATA_TYPE_I8, v1::DATA_TYPE_F8E4M3}) {
      v1::Tensor y = F32({128, 128});
      y.set_dtype(dtype);
      Run(Matmul(In(y, 1, 2), In(y, 1, 64)));
    }
  }
  stop = true;
  writer.join();
  v1::MatmulReply well;
  EXPECT_TRUE(Call(session_.channel, kMatmul, SmallMatmul(), well).status.ok());
  EXPECT_EQ(Floats(well.d()), (std::vector<float>{19, 22, 43, 50}));
}

}  // namespace
}  // namespace kernd::testing
