// Calls whose operands and results are tensors of a session.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <thread>

#include "tests/support/daemon.h"
#include "tests/support/pending_call.h"
#include "tests/support/session_case.h"

namespace kernd::testing {
namespace {

using grpc::StatusCode;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kResident[] = "kernd_memory_used_bytes{pool=\"resident\"}";

// `tensor` without its data: in the session, from element `offset` on.
v1::Tensor At(v1::Tensor tensor, std::uint64_t id, std::int64_t offset = 0,
              std::initializer_list<std::int64_t> strides = {}) {
  tensor.mutable_resident()->set_id(id);
  tensor.mutable_resident()->set_offset(offset);
  for (const std::int64_t stride : strides) tensor.add_strides(stride);
  return tensor;
}

class TensorsComputeTest : public SessionCase {
 protected:
  static void SetUpTestSuite() { daemon_ = Daemon::Start().release(); }
  static void TearDownTestSuite() {
    EXPECT_TRUE(daemon_->WaitForMetric(kResident, 0)) << "every test gave back what it held";
    EXPECT_TRUE(daemon_->WaitForMetric("kernd_memory_used_bytes{pool=\"memory\"}", 0));
    EXPECT_EQ(daemon_->Stop(), 0);
    delete daemon_;
  }
  TensorsComputeTest() : SessionCase(daemon_->endpoint()) {}

  void Put(std::uint64_t id, const v1::Tensor& tensor) {
    v1::PutHeader header = session_.Header(id, 0);
    header.set_dtype(tensor.dtype());
    *header.mutable_shape() = tensor.shape();
    const RawReply put = session_.PutAll(header, tensor.data());
    ASSERT_TRUE(put.status.ok()) << put.status.error_message();
  }

  static inline Daemon* daemon_ = nullptr;
};

TEST_F(TensorsComputeTest, ResidentOperandsGiveTheBitsOfInlineOnes) {
  const v1::Tensor a = F32({300, 200}), b = F32({200, 100});
  Put(1, a);
  Put(2, b);
  const std::string expected = Run(Matmul(a, b)).d().data();
  ASSERT_EQ(expected.size(), 300u * 100u * 4u);
  ASSERT_TRUE(daemon_->WaitForMetric("kernd_requests_in_flight", 0));
  const double copied = daemon_->Metrics().at(kCopiedByMatmul);
  const v1::MatmulReply resident = Run(Matmul(At(a, 1), At(b, 2)));
  EXPECT_TRUE(resident.d().data() == expected);
  EXPECT_EQ(resident.memory().input_bytes(), 0);
  EXPECT_EQ(resident.memory().output_bytes(), OnGpu() ? (300 * 100 * 4 + 255) / 256 * 256 : 300 * 100 * 4);
  EXPECT_EQ(resident.memory().naive_bytes(), (300 * 200 + 200 * 100 + 300 * 100) * 4);
  ASSERT_TRUE(daemon_->WaitForMetric("kernd_requests_in_flight", 0));
  EXPECT_EQ(daemon_->Metrics().at(kCopiedByMatmul), copied) << "nothing moved";
  EXPECT_TRUE(Run(Matmul(a, At(b, 2))).d().data() == expected) << "mixed";
}

TEST_F(TensorsComputeTest, ViewsAreSlicesOfATensor) {
  // Of a 4x6 tensor: columns 1 and 2 of rows 1 to 3.
  v1::Tensor whole = F32({4, 6});
  const std::vector<float> x = Floats(whole);
  Put(1, whole);
  v1::Tensor part = F32({3, 2}, {x[7], x[8], x[13], x[14], x[19], x[20]});
  const v1::Tensor b = F32({2, 2}, {1, 2, 3, 4});
  const std::string expected = Run(Matmul(part, b)).d().data();
  EXPECT_TRUE(Run(Matmul(At(part, 1, 7, {6, 1}), b)).d().data() == expected);
  // Every row the same one, and a view of a shape of its own.
  v1::Tensor repeated = F32({3, 2}, {x[7], x[8], x[7], x[8], x[7], x[8]});
  EXPECT_TRUE(Run(Matmul(At(repeated, 1, 7, {0, 1}), b)).d().data() == Run(Matmul(repeated, b)).d().data());
  v1::Tensor reshaped = F32({6, 2}, {x.begin(), x.begin() + 12});
  EXPECT_TRUE(Run(Matmul(At(reshaped, 1), b)).d().data() == Run(Matmul(reshaped, b)).d().data());
}

TEST_F(TensorsComputeTest, PackedQueriesKeysAndValuesAreThreeViews) {
  constexpr std::int64_t kBatch = 2, kLength = 5, kHeads = 3, kDim = 8;
  const v1::Tensor packed = F32({kBatch, kLength, 3, kHeads, kDim});
  const std::vector<float> x = Floats(packed);
  Put(1, packed);
  v1::AttentionRequest inline_request, resident_request;
  for (v1::AttentionRequest* request : {&inline_request, &resident_request}) {
    request->mutable_attention()->set_layout(v1::ATTENTION_LAYOUT_BLHD);
    request->mutable_options()->set_session_id(session_.opened.session_id());
  }
  int which = 0;
  for (v1::Tensor* (v1::AttentionOp::*field)() :
       {&v1::AttentionOp::mutable_q, &v1::AttentionOp::mutable_k, &v1::AttentionOp::mutable_v}) {
    std::vector<float> values;
    for (std::int64_t row = 0; row < kBatch * kLength; ++row) {
      const auto from = x.begin() + (row * 3 + which) * kHeads * kDim;
      values.insert(values.end(), from, from + kHeads * kDim);
    }
    const v1::Tensor part = F32({kBatch, kLength, kHeads, kDim}, values);
    *(inline_request.mutable_attention()->*field)() = part;
    *(resident_request.mutable_attention()->*field)() =
        At(part, 1, which * kHeads * kDim, {kLength * 3 * kHeads * kDim, 3 * kHeads * kDim, kDim, 1});
    ++which;
  }
  v1::AttentionReply expected, got;
  ASSERT_TRUE(Call(session_.channel, kAttention, inline_request, expected).status.ok());
  const RawReply raw = Call(session_.channel, kAttention, resident_request, got);
  ASSERT_TRUE(raw.status.ok()) << raw.status.error_message();
  EXPECT_TRUE(got.o().data() == expected.o().data());
}

TEST_F(TensorsComputeTest, ResultsStayForTheNextCall) {
  const v1::Tensor a = F32({64, 32}), b = F32({32, 16}), c = F32({16, 8});
  v1::MatmulRequest first = Matmul(a, b);
  const std::string inline_d = Run(first).d().data();
  first.mutable_matmul()->mutable_d()->mutable_resident()->set_id(9);
  const v1::MatmulReply kept = Run(first);
  EXPECT_EQ(kept.d().dtype(), v1::DATA_TYPE_F32);
  EXPECT_THAT(kept.d().shape(), ElementsAre(64, 16));
  EXPECT_EQ(kept.d().data(), "");
  EXPECT_EQ(kept.memory().output_bytes(), 0);
  EXPECT_TRUE(session_.Get(9).body == inline_d);
  EXPECT_EQ(session_.info.state(), v1::TENSOR_STATE_READY);
  // The next call reads it, and puts its own result in the same place.
  v1::Tensor d = F32({64, 16});
  v1::MatmulRequest second = Matmul(At(d, 9), c);
  const std::string expected = Run(second).d().data();
  second.mutable_matmul()->mutable_d()->mutable_resident()->set_id(9);
  Run(second);
  EXPECT_TRUE(session_.Get(9).body == expected);
  // A call that fails leaves what was there.
  second.mutable_matmul()->mutable_a()->mutable_resident()->set_id(1234);
  EXPECT_EQ(Refused(second).reason, "TENSOR_NOT_FOUND");
  EXPECT_TRUE(session_.Get(9).body == expected);
  // Attention: one result here, one there.
  v1::AttentionRequest attention = SmallAttention();
  attention.mutable_options()->set_session_id(session_.opened.session_id());
  attention.mutable_attention()->set_want_lse(true);
  v1::AttentionReply both, split;
  ASSERT_TRUE(Call(session_.channel, kAttention, attention, both).status.ok());
  attention.mutable_attention()->mutable_o()->mutable_resident()->set_id(10);
  ASSERT_TRUE(Call(session_.channel, kAttention, attention, split).status.ok());
  EXPECT_EQ(split.o().data(), "");
  EXPECT_TRUE(split.lse().data() == both.lse().data());
  EXPECT_TRUE(session_.Get(10).body == both.o().data());
}

TEST_F(TensorsComputeTest, AResultIsAVersionLaterThanWhatWasThere) {
  v1::MatmulRequest request = Matmul(F32({4, 4}), F32({4, 4}));
  request.mutable_matmul()->mutable_d()->mutable_resident()->set_id(9);
  Run(request);
  const std::string result = session_.Get(9).body;
  // An upload that knows nothing of it must not take it for its own.
  v1::PutHeader header = session_.Header(9, 64);
  header.set_dtype(v1::DATA_TYPE_F32);
  header.clear_shape();
  header.add_shape(4);
  header.add_shape(4);
  EXPECT_EQ(session_.PutAll(header, std::string(64, 'x')).reason, "OLD_VERSION");
  EXPECT_TRUE(session_.Get(9).body == result);
  header.set_version(7);
  EXPECT_TRUE(session_.PutAll(header, std::string(64, 'x')).status.ok());
  EXPECT_EQ(session_.Get(9).body, std::string(64, 'x'));
  EXPECT_EQ(session_.info.version(), 7u);
  Run(request);
  EXPECT_TRUE(session_.Get(9).body == result);
  EXPECT_EQ(session_.info.version(), 8u);
  EXPECT_EQ(session_.PutAll(header, std::string(64, 'x')).reason, "OLD_VERSION");
  // Ranges that are asked for apart are of one version, or refused.
  v1::GetRequest range;
  range.set_session_id(session_.opened.session_id());
  range.set_id(9);
  range.set_version(8);
  EXPECT_TRUE(session_.Get(range).status.ok());
  range.set_version(7);
  const RawReply other = session_.Get(range);
  EXPECT_EQ(other.status.error_code(), StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(other.reason, "OLD_VERSION");
}

TEST_F(TensorsComputeTest, TwoResultsCannotBeOneTensor) {
  v1::AttentionRequest request = SmallAttention();
  request.mutable_options()->set_session_id(session_.opened.session_id());
  request.mutable_attention()->set_want_lse(true);
  request.mutable_attention()->mutable_o()->mutable_resident()->set_id(3);
  request.mutable_attention()->mutable_lse()->mutable_resident()->set_id(3);
  v1::AttentionReply reply;
  const RawReply refused = Call(session_.channel, kAttention, request, reply);
  EXPECT_EQ(refused.status.error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(refused.field, "attention.lse.resident.id");
}

// A process may have 65,530 mappings; one that has them all cannot allocate, nor give back.
TEST_F(TensorsComputeTest, ManySmallTensorsAreNotManyMappings) {
  v1::MatmulRequest request = Matmul(F32({1, 1}), F32({1, 1}));
  for (int id = 0; id < 3000; ++id) {
    request.mutable_matmul()->mutable_d()->mutable_resident()->set_id(static_cast<std::uint64_t>(id));
    Run(request);
  }
  std::ifstream maps("/proc/" + std::to_string(daemon_->pid()) + "/maps");
  EXPECT_LT(std::count(std::istreambuf_iterator<char>(maps), std::istreambuf_iterator<char>(), '\n'), 1500);
}

// Nothing to add up, and much to write: not for the thread that brings other calls.
TEST_F(TensorsComputeTest, LargeResultsOfNothingAreNotComputedInline) {
  v1::MatmulRequest request = Matmul(F32({4096, 0}), F32({0, 4096}));
  request.mutable_matmul()->mutable_d()->mutable_resident()->set_id(1);
  const v1::MatmulReply reply = Run(request);
  EXPECT_GT(reply.timing().queue_us(), 0) << "it was not queued";
}

TEST_F(TensorsComputeTest, ResultsThatDoNotFitAreRefusedBeforeTheyAreComputed) {
  v1::OpenSessionRequest modest;
  modest.set_quota_bytes(4096);
  SessionClient small(daemon_->endpoint(), modest);
  v1::MatmulRequest request = Matmul(F32({64, 8}), F32({8, 64}));
  request.mutable_options()->set_session_id(small.opened.session_id());
  request.mutable_matmul()->mutable_d()->mutable_resident()->set_id(1);
  EXPECT_EQ(Refused(request).reason, "TOO_LARGE");
  ASSERT_TRUE(small.PutAll(2, TensorBytes(4096 - kTensorRecord)).status.ok());
  *request.mutable_matmul()->mutable_a() = F32({8, 8});
  const RawReply full = Refused(request);
  EXPECT_EQ(full.reason, "QUOTA_FULL");
  EXPECT_EQ(full.field, "matmul.d.resident.id") << "not some other memory";
  v1::ListReply list;
  ASSERT_TRUE(small.List(list).status.ok());
  EXPECT_EQ(list.tensors_size(), 1);
  EXPECT_EQ(list.used_bytes(), 4096);
  small.Close();
}

TEST_F(TensorsComputeTest, PlansSeeWhatIsThereAlready) {
  const v1::Tensor a = F32({64, 32}), b = F32({32, 16});
  Put(1, a);
  v1::PlanRequest request;
  request.mutable_options()->set_session_id(session_.opened.session_id());
  v1::MatmulOp& op = *request.add_steps()->mutable_matmul();
  op.mutable_a()->set_dtype(v1::DATA_TYPE_F32);
  op.mutable_a()->add_shape(64);
  op.mutable_a()->add_shape(32);
  *op.mutable_b() = b;
  v1::PlanReply reply;
  ASSERT_TRUE(Call(session_.channel, kPlan, request, reply).status.ok());
  EXPECT_EQ(reply.memory().input_bytes(), (64 * 32 + 32 * 16) * 4);
  op.mutable_a()->mutable_resident()->set_id(1);
  op.mutable_d()->mutable_resident()->set_id(2);
  ASSERT_TRUE(Call(session_.channel, kPlan, request, reply).status.ok());
  EXPECT_EQ(reply.memory().input_bytes(), 32 * 16 * 4);
  EXPECT_EQ(reply.memory().output_bytes(), 0);
  EXPECT_EQ(session_.Get(2).reason, "TENSOR_NOT_FOUND") << "a plan makes nothing";
}

TEST_F(TensorsComputeTest, EveryRuleOfResidentOperands) {
  const v1::Tensor b = F32({2, 2});
  Put(1, F32({4, 6}));
  const v1::Tensor part = F32({3, 2});
  struct Bad {
    const char* name;
    StatusCode code;
    const char* reason;
    const char* field;
    std::function<void(v1::MatmulRequest&)> spoil;
  };
  const auto with_a = [&](const v1::Tensor& a) {
    return [a](v1::MatmulRequest& r) { *r.mutable_matmul()->mutable_a() = a; };
  };
  const std::vector<Bad> cases = {
      {"no session", StatusCode::INVALID_ARGUMENT, "INVALID_FIELD", "options.session_id",
       [](auto& r) { r.mutable_options()->clear_session_id(), r.mutable_options()->clear_placement(); }},
      {"a session that never was", StatusCode::NOT_FOUND, "SESSION_NOT_FOUND", "options.session_id",
       [](auto& r) { r.mutable_options()->set_session_id(std::string(16, 'x')); }},
      {"half a session id", StatusCode::INVALID_ARGUMENT, "INVALID_FIELD", "options.session_id",
       [](auto& r) { r.mutable_options()->set_session_id("12345678"); }},
      {"no such tensor", StatusCode::NOT_FOUND, "TENSOR_NOT_FOUND", "matmul.a.resident.id", with_a(At(part, 2))},
      {"another type", StatusCode::INVALID_ARGUMENT, "INVALID_FIELD", "matmul.a.dtype",
       [&](auto& r) {
         *r.mutable_matmul()->mutable_a() = At(part, 1);
         r.mutable_matmul()->mutable_a()->set_dtype(v1::DATA_TYPE_F64);
       }},
      {"one element too far", StatusCode::OUT_OF_RANGE, "OUT_OF_RANGE", "matmul.a.resident.offset",
       with_a(At(part, 1, 19))},
      {"rows too far apart", StatusCode::OUT_OF_RANGE, "OUT_OF_RANGE", "matmul.a.resident.offset",
       with_a(At(part, 1, 0, {12, 1}))},
      {"a negative offset", StatusCode::OUT_OF_RANGE, "OUT_OF_RANGE", "matmul.a.resident.offset",
       with_a(At(part, 1, -1))},
      {"an offset that wraps", StatusCode::OUT_OF_RANGE, "OUT_OF_RANGE", "matmul.a.resident.offset",
       with_a(At(part, 1, INT64_MAX))},
      {"a negative stride", StatusCode::INVALID_ARGUMENT, "INVALID_FIELD", "matmul.a.strides",
       with_a(At(part, 1, 0, {-2, 1}))},
      {"elements apart", StatusCode::INVALID_ARGUMENT, "INVALID_FIELD", "matmul.a.strides",
       with_a(At(part, 1, 0, {6, 2}))},
      {"too few strides", StatusCode::INVALID_ARGUMENT, "INVALID_FIELD", "matmul.a.strides",
       with_a(At(part, 1, 0, {1}))},
      {"a result with an offset", StatusCode::INVALID_ARGUMENT, "INVALID_FIELD", "matmul.d.resident.offset",
       [](auto& r) { r.mutable_matmul()->mutable_d()->mutable_resident()->set_offset(1); }},
      {"placed with a tensor that is none", StatusCode::NOT_FOUND, "TENSOR_NOT_FOUND", "options.placement.with_tensor",
       [](auto& r) { r.mutable_options()->mutable_placement()->set_with_tensor(2); }},
  };
  for (const Bad& bad : cases) {
    SCOPED_TRACE(bad.name);
    v1::MatmulRequest request = Matmul(At(part, 1, 18), b);
    request.mutable_options()->mutable_placement()->set_with_tensor(1);
    bad.spoil(request);
    const RawReply reply = Refused(request);
    EXPECT_EQ(reply.status.error_code(), bad.code) << reply.status.error_message();
    EXPECT_EQ(reply.reason, bad.reason);
    EXPECT_EQ(reply.field, bad.field);
    EXPECT_THAT(reply.status.error_message(), HasSubstr(bad.field));
  }
  v1::MatmulRequest good = Matmul(At(part, 1, 18), b);
  good.mutable_options()->mutable_placement()->set_with_tensor(1);
  EXPECT_EQ(Floats(Run(good).d()).size(), 6u) << "the last elements";
  // One that is still being filled.
  v1::PutHeader header = session_.Header(5, 24);
  header.set_dtype(v1::DATA_TYPE_F32);
  header.set_shape(0, 6);
  const auto put = session_.Put(header);
  ASSERT_TRUE(put->Send(0, std::string(8, '\0')));
  v1::MatmulRequest early = Matmul(At(part, 5), b);
  RawReply reply = Refused(early);
  while (reply.reason == "TENSOR_NOT_FOUND") reply = Refused(early);  // the header may be on its way
  EXPECT_EQ(reply.reason, "NOT_READY");
  EXPECT_EQ(reply.field, "matmul.a.resident.id");
  EXPECT_TRUE(reply.retry_after_s.has_value());
}

TEST_F(TensorsComputeTest, TensorsThatAreDeletedUnderACallLiveUntilItEnds) {
  // A call of seconds whose keys and values are deleted, and replaced, while it runs.
  const v1::Tensor x = LongOperand();
  const std::size_t bytes = x.data().size();
  Put(1, x);
  v1::AttentionRequest request;
  request.mutable_options()->set_session_id(session_.opened.session_id());
  v1::AttentionOp& op = *request.mutable_attention();
  op.set_layout(v1::ATTENTION_LAYOUT_BHLD);
  *op.mutable_q() = *op.mutable_k() = *op.mutable_v() = x;
  v1::AttentionReply expected, got;
  ASSERT_TRUE(Call(session_.channel, kAttention, request, expected).status.ok());
  *op.mutable_k() = *op.mutable_v() = At(x, 1);
  RawReply raw;
  std::thread call([&] { raw = Call(Connect(daemon_->endpoint()), kAttention, request, got); });
  EXPECT_TRUE(daemon_->WaitForMetric("kernd_requests_in_flight", 1));
  v1::ListReply list;
  const auto users = [&] {
    session_.List(list);
    return list.tensors(0).users();
  };
  while (users() != 2) {  // K and V
  }
  ASSERT_TRUE(session_.Delete({1}).status.ok());
  EXPECT_EQ(session_.freed_bytes, kTensorRecord);
  v1::Tensor other = x;
  other.set_data(std::string(bytes, '\xff'));  // NaN
  Put(1, other);
  ASSERT_TRUE(session_.List(list).status.ok());
  EXPECT_EQ(list.used_bytes(), 2 * bytes + kTensorRecord) << "the old one is charged as long as it is used";
  call.join();
  ASSERT_TRUE(raw.status.ok()) << raw.status.error_message();
  EXPECT_TRUE(got.o().data() == expected.o().data());
  EXPECT_TRUE(daemon_->WaitForMetric(kResident, static_cast<double>(bytes + kTensorRecord)));
}

TEST_F(TensorsComputeTest, NoSessionExpiresUnderItsCall) {
  const auto daemon = Daemon::Start({"--session-lease", "1s"});
  ASSERT_NE(daemon, nullptr);
  SessionClient busy(daemon->endpoint());
  v1::AttentionRequest request = EndlessCall();
  request.mutable_options()->set_session_id(busy.opened.session_id());
  PendingCall call(busy.channel, request);
  ASSERT_TRUE(WaitUntilItRuns(*daemon));
  SessionClient idle(daemon->endpoint());  // its lease ends after that of the other one would
  EXPECT_TRUE(daemon->WaitForMetric("kernd_sessions_expired_total", 1));
  EXPECT_EQ(idle.Get(1).reason, "SESSION_NOT_FOUND");
  EXPECT_EQ(busy.Get(1).reason, "TENSOR_NOT_FOUND") << "the session is there";
  call.Cancel();
  call.Finish();
  EXPECT_TRUE(daemon->WaitForMetric("kernd_sessions_expired_total", 2)) << "and ends when nothing is under way";
}

TEST_F(TensorsComputeTest, OneTensorIsReadByManyCallsAtOnce) {
  const v1::Tensor a = F32({33, 64}), b = F32({64, 64});
  Put(1, b);
  const std::string expected = Run(Matmul(a, b)).d().data();
  std::vector<std::thread> callers;
  for (int t = 0; t < 4; ++t) {
    callers.emplace_back([&] {
      const auto channel = Connect(daemon_->endpoint());
      for (int i = 0; i < 25; ++i) {
        v1::MatmulReply reply;
        const RawReply raw = Call(channel, kMatmul, Matmul(a, At(b, 1)), reply);
        EXPECT_TRUE(raw.status.ok()) << raw.status.error_message();
        EXPECT_TRUE(reply.d().data() == expected);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
}

}  // namespace
}  // namespace kernd::testing
