// Calls through one session, for suites whose tests share a daemon.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <initializer_list>
#include <string>

#include "kernd/v1/compute.pb.h"
#include "tests/support/raw_client.h"
#include "tests/support/requests.h"
#include "tests/support/session_client.h"

namespace kernd::testing {

inline constexpr char kMatmul[] = "/kernd.v1.Compute/Matmul";
inline constexpr char kAttention[] = "/kernd.v1.Compute/Attention";
inline constexpr char kPlan[] = "/kernd.v1.Compute/Plan";
inline constexpr char kCopiedByMatmul[] = "kernd_copied_bytes_total{method=\"Compute/Matmul\"}";

class SessionCase : public ::testing::Test {
 protected:
  // Opens a session there, for this test.
  explicit SessionCase(const std::string& endpoint) : session_(endpoint) {}
  ~SessionCase() override { session_.Close(); }

  // D = A B, in the session.
  v1::MatmulRequest Matmul(const v1::Tensor& a, const v1::Tensor& b) const {
    v1::MatmulRequest request;
    request.mutable_options()->set_session_id(session_.opened.session_id());
    *request.mutable_matmul()->mutable_a() = a;
    *request.mutable_matmul()->mutable_b() = b;
    return request;
  }
  v1::MatmulReply Run(const v1::MatmulRequest& request) const {
    v1::MatmulReply reply;
    const RawReply raw = Call(session_.channel, kMatmul, request, reply);
    EXPECT_TRUE(raw.status.ok()) << raw.status.error_message();
    return reply;
  }
  RawReply Refused(const v1::MatmulRequest& request) const {
    v1::MatmulReply reply;
    return Call(session_.channel, kMatmul, request, reply);
  }
  static void ExpectRefused(const RawReply& reply, grpc::StatusCode code, const std::string& reason,
                            const std::string& field) {
    EXPECT_EQ(reply.status.error_code(), code) << reply.status.error_message();
    EXPECT_EQ(reply.reason, reason) << reply.status.error_message();
    EXPECT_EQ(reply.field, field) << reply.status.error_message();
  }

  SessionClient session_;
};

}  // namespace kernd::testing
