// How often the bytes of a tensor are moved between the network and the kernel.
#include <gtest/gtest.h>

#include "tests/support/daemon.h"
#include "tests/support/raw_client.h"
#include "tests/support/requests.h"

namespace kernd::testing {
namespace {

constexpr char kMatmul[] = "/kernd.v1.Compute/Matmul";
constexpr char kCopied[] = "kernd_copied_bytes_total{method=\"Compute/Matmul\"}";

TEST(DataPath, TensorsAreCopiedOnceInAndNeverOut) {
  const auto daemon = Daemon::Start({});
  ASSERT_NE(daemon, nullptr);
  v1::MatmulRequest request;
  *request.mutable_matmul()->mutable_a() = F32({512, 512});
  *request.mutable_matmul()->mutable_b() = F32({512, 512});
  v1::MatmulReply reply;
  ASSERT_TRUE(Call(Connect(daemon->endpoint()), kMatmul, request, reply).status.ok());
  EXPECT_EQ(reply.d().data().size(), 512u * 512u * 4u);
  ASSERT_TRUE(daemon->WaitForMetric(R"(kernd_requests_total{code="OK",method="Compute/Matmul"})", 1));
  // Both operands, each larger than a slice, are put together; the result is sent from where it was computed.
  EXPECT_EQ(daemon->Metrics().at(kCopied), 2 * 512 * 512 * 4);
}

}  // namespace
}  // namespace kernd::testing
