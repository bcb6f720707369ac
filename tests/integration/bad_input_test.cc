// Every input is hostile: each kind of bad request gets the right code with field, value and rule, the daemon goes on,
// and what it held is given back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <random>

#include "tests/support/daemon.h"
#include "tests/support/raw_client.h"
#include "tests/support/requests.h"

namespace kernd::testing {
namespace {

using grpc::StatusCode;
using ::testing::HasSubstr;

constexpr char kMatmul[] = "/kernd.v1.Compute/Matmul";
constexpr char kAttention[] = "/kernd.v1.Compute/Attention";

class BadInput : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    daemon_ = Daemon::Start().release();
    ASSERT_NE(daemon_, nullptr);
    channel_ = Connect(daemon_->endpoint());
  }
  static void TearDownTestSuite() {
    channel_.reset();
    if (daemon_ != nullptr) {
      EXPECT_EQ(daemon_->Stop(), 0);
    }
    delete daemon_;
  }

  // The daemon serves, and holds nothing.
  void TearDown() override {
    v1::MatmulReply reply;
    EXPECT_TRUE(Call(channel_, kMatmul, SmallMatmul(), reply).status.ok());
    EXPECT_THAT(Floats(reply.d()), ::testing::ElementsAre(19, 22, 43, 50));
    for (const char* gauge : {"kernd_memory_used_bytes{pool=\"memory\"}", "kernd_body_budget_used_bytes",
                              "kernd_requests_in_flight", "kernd_queue_depth"}) {
      EXPECT_TRUE(daemon_->WaitForMetric(gauge, 0)) << gauge << " is " << daemon_->Metrics().at(gauge);
    }
  }

  void ExpectRefused(const char* path, const google::protobuf::Message& request, StatusCode code,
                     const std::string& field, const std::string& message) {
    SCOPED_TRACE(request.ShortDebugString().substr(0, 300));
    const RawReply reply = RawCall(channel_, path, request.SerializeAsString());
    EXPECT_EQ(reply.status.error_code(), code) << reply.status.error_message();
    EXPECT_EQ(reply.field, field);
    EXPECT_THAT(reply.status.error_message(), HasSubstr(message));
    EXPECT_FALSE(reply.reason.empty());
  }

  void ExpectMatmulRefused(const std::function<void(v1::MatmulOp&)>& spoil, StatusCode code, const std::string& field,
                           const std::string& message) {
    v1::MatmulRequest request = SmallMatmul();
    spoil(*request.mutable_matmul());
    ExpectRefused(kMatmul, request, code, field, message);
  }

  void ExpectAttentionRefused(const std::function<void(v1::AttentionOp&)>& spoil, StatusCode code,
                              const std::string& field, const std::string& message) {
    v1::AttentionRequest request = SmallAttention();
    spoil(*request.mutable_attention());
    ExpectRefused(kAttention, request, code, field, message);
  }

  static Daemon* daemon_;
  static std::shared_ptr<grpc::Channel> channel_;
};

Daemon* BadInput::daemon_ = nullptr;
std::shared_ptr<grpc::Channel> BadInput::channel_;

TEST_F(BadInput, WrongByteCounts) {
  for (const std::size_t bytes : {0u, 1u, 15u, 17u, 32u}) {
    ExpectMatmulRefused([&](v1::MatmulOp& op) { op.mutable_a()->set_data(std::string(bytes, 'x')); },
                        StatusCode::INVALID_ARGUMENT, "matmul.a.data",
                        std::to_string(bytes) + " bytes: F32[2,2] is 16 bytes");
  }
}

TEST_F(BadInput, NoData) {
  ExpectMatmulRefused([](v1::MatmulOp& op) { op.mutable_b()->clear_place(); }, StatusCode::INVALID_ARGUMENT,
                      "matmul.b.data", "0 bytes");
}

TEST_F(BadInput, Shapes) {
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  const auto with_shape = [](std::vector<std::int64_t> shape) {
    return [shape](v1::MatmulOp& op) {
      op.mutable_a()->clear_shape();
      for (const std::int64_t dim : shape) op.mutable_a()->add_shape(dim);
    };
  };
  ExpectMatmulRefused(with_shape({-2, 2}), StatusCode::INVALID_ARGUMENT, "matmul.a.shape",
                      "[-2,2]: no dimension may be negative");
  ExpectMatmulRefused(with_shape({kMax, 2}), StatusCode::INVALID_ARGUMENT, "matmul.a.shape", "must be below 2^63");
  ExpectMatmulRefused(with_shape({std::int64_t{1} << 32, std::int64_t{1} << 32}), StatusCode::INVALID_ARGUMENT,
                      "matmul.a.shape", "below 2^63");
  ExpectMatmulRefused(with_shape({std::numeric_limits<std::int64_t>::min(), 1}), StatusCode::INVALID_ARGUMENT,
                      "matmul.a.shape", "negative");
  ExpectMatmulRefused(with_shape(std::vector<std::int64_t>(9, 1)), StatusCode::INVALID_ARGUMENT, "matmul.a.shape",
                      "at most 8 dimensions");
  ExpectMatmulRefused(with_shape(std::vector<std::int64_t>(10000, 1)), StatusCode::INVALID_ARGUMENT, "matmul.a.shape",
                      "at most 8 dimensions");
  ExpectMatmulRefused(with_shape({4}), StatusCode::INVALID_ARGUMENT, "matmul.a.shape", "at least two dimensions");
  ExpectMatmulRefused(with_shape({4, 1}), StatusCode::INVALID_ARGUMENT, "matmul.b.shape", "its K is 2");
}

// The operands are empty and the result would be enormous.
TEST_F(BadInput, ResultTooLarge) {
  v1::MatmulRequest request;
  *request.mutable_matmul()->mutable_a() = F32({std::int64_t{1} << 40, 0});
  *request.mutable_matmul()->mutable_b() = F32({0, std::int64_t{1} << 40});
  ExpectRefused(kMatmul, request, StatusCode::INVALID_ARGUMENT, "matmul.d.shape", "below 2^63");
  *request.mutable_matmul()->mutable_a() = F32({std::int64_t{1} << 20, 0});
  *request.mutable_matmul()->mutable_b() = F32({0, std::int64_t{1} << 20});
  const RawReply reply = RawCall(channel_, kMatmul, request.SerializeAsString());
  EXPECT_EQ(reply.status.error_code(), StatusCode::RESOURCE_EXHAUSTED) << reply.status.error_message();
  EXPECT_EQ(reply.reason, "TOO_LARGE");
  EXPECT_FALSE(reply.retry_after_s.has_value()) << "it can never fit: trying again is in vain";
}

TEST_F(BadInput, ManySequencesOfNothing) {
  ExpectAttentionRefused(
      [](v1::AttentionOp& op) {
        *op.mutable_q() = F32({std::int64_t{1} << 40, 1, 1, 0});
        *op.mutable_k() = *op.mutable_v() = F32({std::int64_t{1} << 40, 1, 0, 0});
        op.set_scale(1);
      },
      StatusCode::UNIMPLEMENTED, "attention.q.shape", "sequences a call");
}

// A few bytes that name endless loops over nothing.
TEST_F(BadInput, ShapesOfNothing) {
  const auto call = [&](std::initializer_list<std::int64_t> q, std::initializer_list<std::int64_t> kv, bool want_lse) {
    v1::AttentionRequest request;
    v1::AttentionOp& op = *request.mutable_attention();
    op.set_layout(v1::ATTENTION_LAYOUT_BHLD);
    op.set_scale(1);
    op.set_want_lse(want_lse);
    *op.mutable_q() = F32(q, {});
    *op.mutable_k() = *op.mutable_v() = F32(kv, {});
    return RawCall(channel_, kAttention, request.SerializeAsString()).status.error_code();
  };
  constexpr std::int64_t kMany = std::int64_t{1} << 40;
  EXPECT_EQ(call({1, 1, 1 << 30, 0}, {1, 1, 1 << 30, 0}, false), StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(call({1, 1, kMany, 0}, {1, 1, 0, 0}, false), StatusCode::OK);
  EXPECT_EQ(call({1, 1, 1, 0}, {1, 1, kMany * (1 << 22), 0}, true), StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(call({1 << 17, kMany, 0, 0}, {1 << 17, kMany, 1, 0}, true), StatusCode::OK);
  EXPECT_EQ(call({1 << 20, kMany, 0, 0}, {1 << 20, kMany, 0, 0}, false), StatusCode::UNIMPLEMENTED);
}

TEST_F(BadInput, DataTypes) {
  ExpectMatmulRefused([](v1::MatmulOp& op) { op.mutable_a()->set_dtype(v1::DATA_TYPE_UNSPECIFIED); },
                      StatusCode::INVALID_ARGUMENT, "matmul.a.dtype", "unset");
  ExpectMatmulRefused([](v1::MatmulOp& op) { op.mutable_a()->set_dtype(static_cast<v1::DataType>(77)); },
                      StatusCode::INVALID_ARGUMENT, "matmul.a.dtype", "77");
  ExpectMatmulRefused(
      [](v1::MatmulOp& op) {
        op.mutable_a()->set_dtype(v1::DATA_TYPE_I32);
        op.mutable_b()->set_dtype(v1::DATA_TYPE_I32);
      },
      StatusCode::UNIMPLEMENTED, "matmul.a.dtype", "I32");
  ExpectMatmulRefused([](v1::MatmulOp& op) { op.mutable_d()->set_dtype(v1::DATA_TYPE_F64); }, StatusCode::UNIMPLEMENTED,
                      "matmul.output_dtype", "F64");
  ExpectMatmulRefused([](v1::MatmulOp& op) { op.set_activation(static_cast<v1::Activation>(9)); },
                      StatusCode::INVALID_ARGUMENT, "matmul.activation", "9");
}

TEST_F(BadInput, MissingOperands) {
  ExpectMatmulRefused([](v1::MatmulOp& op) { op.clear_a(); }, StatusCode::INVALID_ARGUMENT, "matmul.a", "absent");
  ExpectMatmulRefused([](v1::MatmulOp& op) { op.set_beta(0.5); }, StatusCode::INVALID_ARGUMENT, "matmul.c",
                      "beta is 0.5");
  ExpectAttentionRefused([](v1::AttentionOp& op) { op.clear_v(); }, StatusCode::INVALID_ARGUMENT, "attention.v",
                         "absent");
  ExpectAttentionRefused([](v1::AttentionOp& op) { op.clear_layout(); }, StatusCode::INVALID_ARGUMENT,
                         "attention.layout", "unset");
  ExpectRefused(kMatmul, v1::MatmulRequest(), StatusCode::INVALID_ARGUMENT, "matmul", "absent");
  ExpectRefused(kAttention, v1::AttentionRequest(), StatusCode::INVALID_ARGUMENT, "attention", "absent");
}

TEST_F(BadInput, AttentionRules) {
  ExpectAttentionRefused(
      [](v1::AttentionOp& op) {
        *op.mutable_k() = *op.mutable_v() = F32({1, 3, 5, 8});
      },
      StatusCode::INVALID_ARGUMENT, "attention.k.shape", "Q's 4 heads must be a multiple of its 3");
  ExpectAttentionRefused(
      [](v1::AttentionOp& op) {
        *op.mutable_k() = F32({1, 2, 5, 7});
      },
      StatusCode::INVALID_ARGUMENT, "attention.k.shape", "head_dim must be Q's, 8");
  for (const double scale : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
    ExpectAttentionRefused([&](v1::AttentionOp& op) { op.set_scale(scale); }, StatusCode::INVALID_ARGUMENT,
                           "attention.scale", "must be finite");
  }
  ExpectAttentionRefused([](v1::AttentionOp& op) { op.set_softcap(0); }, StatusCode::INVALID_ARGUMENT,
                         "attention.softcap", "positive");
  ExpectAttentionRefused([](v1::AttentionOp& op) { op.set_window_left(-1); }, StatusCode::INVALID_ARGUMENT,
                         "attention.window_left", "-1");
  ExpectAttentionRefused(
      [](v1::AttentionOp& op) {
        *op.mutable_k() = *op.mutable_v() = F32({1, 2, 6, 8});
        op.set_causal(true);
      },
      StatusCode::INVALID_ARGUMENT, "attention.alignment", "5 queries and 6 keys");
  ExpectAttentionRefused([](v1::AttentionOp& op) { op.add_kv_lengths(6); }, StatusCode::INVALID_ARGUMENT,
                         "attention.kv_lengths[0]", "0..5");
  ExpectAttentionRefused([](v1::AttentionOp& op) { op.add_sinks(1); }, StatusCode::INVALID_ARGUMENT, "attention.sinks",
                         "4 query heads");
}

TEST_F(BadInput, ZeroSizesAreLegal) {
  v1::MatmulRequest request;
  v1::MatmulReply reply;
  *request.mutable_matmul()->mutable_a() = F32({3, 0});
  *request.mutable_matmul()->mutable_b() = F32({0, 2});
  ASSERT_TRUE(Call(channel_, kMatmul, request, reply).status.ok());
  EXPECT_THAT(Floats(reply.d()), ::testing::Each(0.0f));
  EXPECT_EQ(reply.d().data().size(), 24u);
  *request.mutable_matmul()->mutable_a() = F32({0, 5});
  *request.mutable_matmul()->mutable_b() = F32({5, 2});
  ASSERT_TRUE(Call(channel_, kMatmul, request, reply).status.ok());
  EXPECT_EQ(reply.d().data(), "");
  EXPECT_EQ(reply.d().place_case(), v1::Tensor::kData);

  v1::AttentionRequest attention = SmallAttention();
  v1::AttentionReply attended;
  attention.mutable_attention()->set_want_lse(true);
  *attention.mutable_attention()->mutable_k() = *attention.mutable_attention()->mutable_v() = F32({1, 2, 0, 8});
  ASSERT_TRUE(Call(channel_, kAttention, attention, attended).status.ok());
  EXPECT_THAT(Floats(attended.o()), ::testing::Each(0.0f));
  EXPECT_THAT(Floats(attended.lse()), ::testing::Each(-INFINITY));
}

TEST_F(BadInput, UnknownFields) {
  // Field 900 of the request, of the options, and of a tensor; then a hint.
  const std::string field_900 = "\xa0\x38\x01";
  const auto refused = [&](const std::string& body, const std::string& where) {
    const RawReply reply = RawCall(channel_, kMatmul, body);
    EXPECT_EQ(reply.status.error_code(), StatusCode::UNIMPLEMENTED);
    EXPECT_EQ(reply.reason, "UNKNOWN_FIELD");
    EXPECT_THAT(reply.status.error_message(), HasSubstr("field 900 of " + where + " "));
    EXPECT_EQ(reply.metadata.at("field_number"), "900");
  };
  refused(SmallMatmul().SerializeAsString() + field_900, "MatmulRequest");
  v1::MatmulRequest request = SmallMatmul();
  request.mutable_options()->GetReflection()->MutableUnknownFields(request.mutable_options())->AddVarint(900, 1);
  refused(request.SerializeAsString(), "options");
  request = SmallMatmul();
  v1::Tensor* tensor = request.mutable_matmul()->mutable_b();
  tensor->GetReflection()->MutableUnknownFields(tensor)->AddLengthDelimited(900, "x");
  refused(request.SerializeAsString(), "matmul.b");

  request = SmallMatmul();
  tensor = request.mutable_matmul()->mutable_b();
  tensor->GetReflection()->MutableUnknownFields(tensor)->AddVarint(1000, 1);
  EXPECT_TRUE(RawCall(channel_, kMatmul, request.SerializeAsString()).status.ok()) << "fields from 1000 on are hints";
}

TEST_F(BadInput, MalformedMessages) {
  std::mt19937 random(7);
  const std::string good = SmallMatmul().SerializeAsString();
  for (const std::string& body : {std::string("\xff\xff\xff\xff"), good.substr(0, good.size() - 3),
                                  std::string(100, '\x0a'), std::string("\x0a\xff\xff\xff\xff\x0f")}) {
    const RawReply reply = RawCall(channel_, kMatmul, body);
    EXPECT_EQ(reply.status.error_code(), StatusCode::INVALID_ARGUMENT) << reply.status.error_message();
    EXPECT_EQ(reply.reason, "MALFORMED_MESSAGE");
  }
  // Any byte changed: an answer of some kind, never a crash, UNKNOWN or INTERNAL.
  for (std::size_t i = 0; i < good.size(); ++i) {
    std::string body = good;
    body[i] = static_cast<char>(random());
    const RawReply reply = RawCall(channel_, kMatmul, body);
    EXPECT_THAT(reply.status.error_code(),
                ::testing::AnyOf(StatusCode::OK, StatusCode::INVALID_ARGUMENT, StatusCode::UNIMPLEMENTED,
                                 StatusCode::RESOURCE_EXHAUSTED, StatusCode::NOT_FOUND))
        << "byte " << i << ": " << reply.status.error_message();
  }
  EXPECT_EQ(RawCall(channel_, kMatmul, "").status.error_code(), StatusCode::INVALID_ARGUMENT);
}

TEST_F(BadInput, OptionsOfTheCall) {
  v1::MatmulRequest request = SmallMatmul();
  request.mutable_options()->set_request_id(std::string(129, 'x'));
  ExpectRefused(kMatmul, request, StatusCode::INVALID_ARGUMENT, "options.request_id", "129 bytes");
  request.mutable_options()->set_request_id("two\nlines");
  ExpectRefused(kMatmul, request, StatusCode::INVALID_ARGUMENT, "options.request_id", "printable");
  request.mutable_options()->Clear();
  request.mutable_options()->set_priority(101);
  ExpectRefused(kMatmul, request, StatusCode::INVALID_ARGUMENT, "options.priority", "101");
  request.mutable_options()->Clear();
  request.mutable_options()->mutable_placement()->set_device_uuid("GPU-none");
  ExpectRefused(kMatmul, request, StatusCode::NOT_FOUND, "options.placement.device_uuid", OnGpu() ? "GPU-" : "cpu");
  request.mutable_options()->Clear();
  request.mutable_options()->set_session_id(std::string(16, 's'));
  ExpectRefused(kMatmul, request, StatusCode::NOT_FOUND, "options.session_id", "of no session");
}

TEST_F(BadInput, ForcedKernels) {
  ExpectMatmulRefused([](v1::MatmulOp& op) { op.mutable_kernel()->set_name("no_such_kernel"); },
                      StatusCode::INVALID_ARGUMENT, "matmul.kernel.name", "no_such_kernel");
  ExpectMatmulRefused([](v1::MatmulOp& op) { op.mutable_kernel()->mutable_tile()->set_m(128); },
                      StatusCode::INVALID_ARGUMENT, "matmul.kernel.tile", "128");
}

TEST_F(BadInput, WhatIsNotBuiltSaysSoByName) {
  for (const char* path : {"/kernd.v1.Compute/Run", "/kernd.v1.KvCache/Append", "/kernd.v1.KvCache/Create",
                           "/kernd.v1.KvCache/Describe"}) {
    const RawReply reply = RawCall(channel_, path, "");
    EXPECT_EQ(reply.status.error_code(), StatusCode::UNIMPLEMENTED) << path;
    EXPECT_EQ(reply.reason, "NOT_BUILT") << path;
    std::string name = std::string(path).substr(1);
    name.replace(name.find('/'), 1, ".");
    EXPECT_THAT(reply.status.error_message(), HasSubstr(name));
  }
  EXPECT_EQ(RawCall(channel_, "/kernd.v1.Compute/NoSuchMethod", "").status.error_code(), StatusCode::UNIMPLEMENTED);
  ExpectMatmulRefused([](v1::MatmulOp& op) { op.mutable_a()->mutable_shared()->set_region_id(1); },
                      StatusCode::INVALID_ARGUMENT, "options.session_id", "matmul.a.shared");
  ExpectMatmulRefused([](v1::MatmulOp& op) { op.mutable_a()->mutable_resident()->set_id(1); },
                      StatusCode::INVALID_ARGUMENT, "options.session_id", "matmul.a.resident");
}

TEST_F(BadInput, PlanSaysWhatTheCallWillHold) {
  v1::PlanRequest request;
  *request.add_steps()->mutable_attention() = SmallAttention().attention();
  for (auto* tensor : {request.mutable_steps(0)->mutable_attention()->mutable_q(),
                       request.mutable_steps(0)->mutable_attention()->mutable_k(),
                       request.mutable_steps(0)->mutable_attention()->mutable_v()}) {
    tensor->clear_place();
  }
  v1::PlanReply plan;
  ASSERT_TRUE(Call(channel_, "/kernd.v1.Compute/Plan", request, plan).status.ok());
  v1::AttentionReply reply;
  ASSERT_TRUE(Call(channel_, kAttention, SmallAttention(), reply).status.ok());
  EXPECT_EQ(plan.memory().peak_bytes(), reply.memory().peak_bytes());
  EXPECT_EQ(plan.steps(0).kernel().name(), reply.kernel().name());
  EXPECT_EQ(plan.memory().naive_bytes(), reply.memory().naive_bytes());
  EXPECT_THAT(
      std::vector<std::int64_t>(plan.steps(0).results(0).shape().begin(), plan.steps(0).results(0).shape().end()),
      ::testing::ElementsAre(1, 4, 5, 8));
  request.clear_steps();
  ExpectRefused("/kernd.v1.Compute/Plan", request, StatusCode::INVALID_ARGUMENT, "steps", "1 to 64");
}

TEST_F(BadInput, DeadlineInThePast) {
  const RawReply reply =
      RawCall(channel_, kMatmul, SmallMatmul().SerializeAsString(), {.timeout = std::chrono::milliseconds(-1)});
  EXPECT_EQ(reply.status.error_code(), StatusCode::DEADLINE_EXCEEDED);
}

}  // namespace
}  // namespace kernd::testing
