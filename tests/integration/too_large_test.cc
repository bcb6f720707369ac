// Calls that can never fit: what the refusal proposes fits, and is the largest that does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/support/daemon.h"
#include "tests/support/raw_client.h"
#include "tests/support/requests.h"

namespace kernd::testing {
namespace {

using grpc::StatusCode;
using ::testing::HasSubstr;

constexpr char kPlan[] = "/kernd.v1.Compute/Plan";

v1::Tensor Spec(std::initializer_list<std::int64_t> shape) {
  v1::Tensor tensor;
  tensor.set_dtype(v1::DATA_TYPE_F32);
  for (const std::int64_t dim : shape) tensor.add_shape(dim);
  return tensor;
}

v1::PlanRequest Attention(std::int64_t batch, std::int64_t length) {
  v1::PlanRequest request;
  v1::AttentionOp& op = *request.add_steps()->mutable_attention();
  op.set_layout(v1::ATTENTION_LAYOUT_BHLD);
  *op.mutable_q() = *op.mutable_k() = *op.mutable_v() = Spec({batch, 2, length, 16});
  return request;
}

v1::PlanRequest Matmul(std::int64_t batch, std::int64_t rows) {
  v1::PlanRequest request;
  v1::MatmulOp& op = *request.add_steps()->mutable_matmul();
  *op.mutable_a() = Spec({batch, rows, 64});
  *op.mutable_b() = Spec({64, 32});
  // cuBLASLt's workspace is no even function of the problem: what the search then finds fits, and need not be the most.
  if (OnGpu()) op.mutable_kernel()->set_name("matmul_f32_sm75_simt");
  return request;
}

class TooLarge : public ::testing::Test {
 protected:
  void SetUp() override {
    daemon_ = Daemon::Start({MemoryLimit("64MiB")});
    ASSERT_NE(daemon_, nullptr);
    channel_ = Connect(daemon_->endpoint());
  }
  RawReply Plan(const v1::PlanRequest& request) { return RawCall(channel_, kPlan, request.SerializeAsString()); }
  // The size that the refusal of `request` proposes; 0, with a failure, where it does not.
  std::int64_t Proposed(const v1::PlanRequest& request, const std::string& dimension) {
    const RawReply reply = Plan(request);
    EXPECT_EQ(reply.status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_EQ(reply.reason, "TOO_LARGE");
    const auto found = reply.metadata.find("largest_" + dimension);
    if (found == reply.metadata.end()) {
      ADD_FAILURE() << reply.status.error_message();
      return 0;
    }
    EXPECT_THAT(reply.status.error_message(), HasSubstr(" would fit"));
    EXPECT_THAT(reply.status.error_message(), HasSubstr(found->second));
    return std::stoll(found->second);
  }

  std::unique_ptr<Daemon> daemon_;
  std::shared_ptr<grpc::Channel> channel_;
};

TEST_F(TooLarge, TheLargestBatchFitsAndOneMoreDoesNot) {
  const std::int64_t batch = Proposed(Attention(10'000, 128), "batch");
  EXPECT_TRUE(Plan(Attention(batch, 128)).status.ok()) << batch;
  EXPECT_FALSE(Plan(Attention(batch + 1, 128)).status.ok()) << batch;
}

TEST_F(TooLarge, TheLongestSequenceFitsAndOneMoreDoesNot) {
  const std::int64_t length = Proposed(Attention(5, 1 << 20), "length");
  EXPECT_TRUE(Plan(Attention(1, length)).status.ok()) << length;
  EXPECT_FALSE(Plan(Attention(1, length + 1)).status.ok()) << length;
}

TEST_F(TooLarge, MatmulByBatchAndByRows) {
  const std::int64_t batch = Proposed(Matmul(10'000, 64), "batch");
  EXPECT_TRUE(Plan(Matmul(batch, 64)).status.ok()) << batch;
  EXPECT_FALSE(Plan(Matmul(batch + 1, 64)).status.ok()) << batch;
  const std::int64_t rows = Proposed(Matmul(3, 1 << 20), "rows");
  EXPECT_TRUE(Plan(Matmul(1, rows)).status.ok()) << rows;
  EXPECT_FALSE(Plan(Matmul(1, rows + 1)).status.ok()) << rows;
}

// A few bytes of shapes must not make the daemon hold half a gigabyte.
TEST_F(TooLarge, StepsShareTheBoundOfSequences) {
  v1::PlanRequest request;
  for (int i = 0; i < 64; ++i) {
    v1::AttentionOp& op = *request.add_steps()->mutable_attention();
    op.set_layout(v1::ATTENTION_LAYOUT_BHLD);
    *op.mutable_q() = *op.mutable_k() = *op.mutable_v() = Spec({1 << 17, 1, 0, 8});
  }
  const std::int64_t before = daemon_->PeakResidentBytes();
  const RawReply reply = Plan(request);
  EXPECT_EQ(reply.status.error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(reply.field, "steps[1].attention");
  EXPECT_THAT(reply.status.error_message(), HasSubstr("at most 131072 sequences in all steps of a call"));
  EXPECT_LT(daemon_->PeakResidentBytes() - before, 100 << 20);
  request.mutable_steps()->DeleteSubrange(1, 63);
  EXPECT_TRUE(Plan(request).status.ok()) << Plan(request).status.error_message();
}

}  // namespace
}  // namespace kernd::testing
