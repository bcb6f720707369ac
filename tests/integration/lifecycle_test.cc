// Start, readiness, load and cancellation; what the daemon says of itself. How it ends: drain_test.cc.
#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>
#include <string>

#include <thread>

#include "grpc/health/v1/health.grpc.pb.h"
#include "kernd/v1/device.pb.h"
#include "tests/support/daemon.h"
#include "tests/support/paths.h"
#include "tests/support/pending_call.h"
#include "tests/support/raw_client.h"
#include "tests/support/requests.h"

namespace kernd::testing {
namespace {

namespace health = grpc::health::v1;
using grpc::StatusCode;
using health::HealthCheckResponse;
using ::testing::HasSubstr;

constexpr char kMatmul[] = "/kernd.v1.Compute/Matmul";
constexpr char kAttention[] = "/kernd.v1.Compute/Attention";

StatusCode Check(health::Health::Stub& stub, const std::string& service, HealthCheckResponse& response) {
  grpc::ClientContext context;
  health::HealthCheckRequest request;
  request.set_service(service);
  return stub.Check(&context, request, &response).error_code();
}

TEST(Lifecycle, HealthAnswersByName) {
  const auto daemon = Daemon::Start();
  ASSERT_NE(daemon, nullptr);
  const auto stub = health::Health::NewStub(Connect(daemon->endpoint()));
  HealthCheckResponse response;
  for (const char* service :
       {"", "liveness", "kernd.v1.Compute", "kernd.v1.Device", "kernd.v1.Tensors", "kernd.v1.KvCache"}) {
    EXPECT_EQ(Check(*stub, service, response), StatusCode::OK) << service;
    EXPECT_EQ(response.status(), HealthCheckResponse::SERVING) << service;
  }
  EXPECT_EQ(Check(*stub, "no.such.Service", response), StatusCode::NOT_FOUND);
}

// A kernel that nobody waits for stops, and the next call runs.
TEST(Lifecycle, ARunningKernelStopsWhenItsClientLeaves) {
  const auto daemon = Daemon::Start({OneAtATime()});
  ASSERT_NE(daemon, nullptr);
  const auto channel = Connect(daemon->endpoint());
  {
    PendingCall endless(channel, EndlessCall());
    ASSERT_TRUE(WaitUntilItRuns(*daemon));
    endless.Cancel();
    EXPECT_EQ(endless.Finish().error_code(), StatusCode::CANCELLED);
  }
  EXPECT_TRUE(daemon->WaitForMetric("kernd_requests_in_flight", 0));
  PendingCall late(channel, EndlessCall(), std::chrono::milliseconds(300));
  EXPECT_EQ(late.Finish().error_code(), StatusCode::DEADLINE_EXCEEDED);
  PendingCall next(channel, LongCall());
  EXPECT_TRUE(next.Finish().ok());
  EXPECT_TRUE(daemon->WaitForMetric("kernd_memory_used_bytes{pool=\"memory\"}", 0));
}

TEST(Lifecycle, CallsBeyondTheQueueAreRefusedWithARetry) {
  const auto daemon = Daemon::Start({"--max-queued-calls", "2", OneAtATime()});
  ASSERT_NE(daemon, nullptr);
  const auto channel = Connect(daemon->endpoint());
  const v1::AttentionRequest longer = SelfAttention(LongerOperand());
  PendingCall first(channel, longer), second(channel, longer);
  ASSERT_TRUE(daemon->WaitForMetric("kernd_requests_in_flight", 2));
  ASSERT_TRUE(daemon->WaitForMetric("kernd_queue_depth", 1));
  const RawReply refused = RawCall(channel, kMatmul, SmallMatmul().SerializeAsString());
  EXPECT_EQ(refused.status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(refused.reason, "QUEUE_FULL");
  EXPECT_TRUE(refused.retry_after_s.has_value());
  EXPECT_TRUE(first.Finish().ok());
  EXPECT_TRUE(second.Finish().ok());
  EXPECT_TRUE(daemon->WaitForMetric("kernd_rejected_total{reason=\"QUEUE_FULL\"}", 1));
}

TEST(Lifecycle, MemoryThatIsFullNowIsRefusedWithARetryAndGivenBack) {
  // More than half of the limit: 2 MiB and a workspace, on a GPU 48 MiB.
  const v1::AttentionRequest large = OnGpu() ? SelfAttention(HeadsOfAGpu(12)) : LongCall();
  const int limit_mib = OnGpu() ? 64 : 3;
  const auto daemon = Daemon::Start({MemoryLimit(std::to_string(limit_mib) + "MiB"), OneAtATime()});
  ASSERT_NE(daemon, nullptr);
  const auto channel = Connect(daemon->endpoint());
  PendingCall first(channel, large);
  ASSERT_TRUE(WaitUntilItRuns(*daemon));
  const RawReply refused = RawCall(channel, kAttention, large.SerializeAsString());
  EXPECT_EQ(refused.status.error_code(), StatusCode::RESOURCE_EXHAUSTED) << refused.status.error_message();
  EXPECT_EQ(refused.reason, "MEMORY_FULL");
  EXPECT_TRUE(refused.retry_after_s.has_value());
  EXPECT_EQ(refused.metadata.at("limit_bytes"), std::to_string(limit_mib << 20));
  EXPECT_EQ(std::stoll(refused.metadata.at("needed_bytes")), std::stoll(refused.metadata.at("input_bytes")) +
                                                                 std::stoll(refused.metadata.at("output_bytes")) +
                                                                 std::stoll(refused.metadata.at("workspace_bytes")));
  EXPECT_TRUE(first.Finish().ok());
  EXPECT_TRUE(daemon->WaitForMetric("kernd_memory_used_bytes{pool=\"memory\"}", 0));
}

// A queued call whose client leaves, or whose deadline passes, is never computed and gives its place back at once.
TEST(Lifecycle, QueuedCallsThatNobodyWaitsForAreDropped) {
  const auto daemon = Daemon::Start({OneAtATime()});
  ASSERT_NE(daemon, nullptr);
  const auto channel = Connect(daemon->endpoint());
  PendingCall running(channel, LongCall());
  ASSERT_TRUE(daemon->WaitForMetric("kernd_requests_in_flight", 1));
  PendingCall cancelled(channel, LongCall());
  ASSERT_TRUE(daemon->WaitForMetric("kernd_queue_depth", 1));
  cancelled.Cancel();
  EXPECT_EQ(cancelled.Finish().error_code(), StatusCode::CANCELLED);
  EXPECT_TRUE(daemon->WaitForMetric("kernd_queue_depth", 0));
  PendingCall late(channel, LongCall(), std::chrono::milliseconds(100));
  EXPECT_EQ(late.Finish().error_code(), StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(running.Finish().ok());
  EXPECT_TRUE(daemon->WaitForMetric("kernd_requests_in_flight", 0));
  EXPECT_TRUE(daemon->WaitForMetric("kernd_memory_used_bytes{pool=\"memory\"}", 0));
  EXPECT_EQ(daemon->Stop(), 0);
  EXPECT_THAT(daemon->Log(), HasSubstr("CANCELLED"));
}

TEST(Lifecycle, APortThatIsTakenEndsTheStart) {
  const auto daemon = Daemon::Start();
  ASSERT_NE(daemon, nullptr);
  const std::string command =
      ProgramPath("kernd") + " --http-listen off --listen " + daemon->endpoint() + " 2>/dev/null";
  EXPECT_EQ(WEXITSTATUS(std::system(command.c_str())), 3);
  EXPECT_EQ(WEXITSTATUS(std::system((ProgramPath("kernd") + " --max-queued-calls 0 2>/dev/null").c_str())), 2);
  const std::string no_gpu = ProgramPath("kernd") + " --backend cuda --gpu-device 1000 2>/dev/null";
  EXPECT_THAT(WEXITSTATUS(std::system(no_gpu.c_str())), ::testing::AnyOf(4, 5)) << "no such GPU, or no driver";
}

TEST(Lifecycle, ServesOnAUnixSocketAndReplacesAStaleOne) {
  const std::string path = "/tmp/kernd-test-" + std::to_string(getpid()) + ".sock";
  for (const int signal_number : {SIGKILL, SIGTERM}) {  // the first leaves its file behind
    const auto daemon = Daemon::Start({"--listen", "unix:" + path});
    ASSERT_NE(daemon, nullptr);
    v1::MatmulReply reply;
    EXPECT_TRUE(Call(Connect("unix:" + path), kMatmul, SmallMatmul(), reply).status.ok());
    daemon->Signal(signal_number);
    daemon->Wait(10);
  }
  EXPECT_NE(access(path.c_str(), F_OK), 0) << "the socket file is gone after a clean end";
}

TEST(Lifecycle, AFileThatIsNoSocketIsLeftAlone) {
  const std::string path = "/tmp/kernd-test-" + std::to_string(getpid()) + ".file";
  std::ofstream(path) << "precious";
  const std::string command = ProgramPath("kernd") + " --http-listen off --listen unix:" + path + " 2>/dev/null";
  EXPECT_EQ(WEXITSTATUS(std::system(command.c_str())), 3);
  std::string content;
  std::ifstream(path) >> content;
  EXPECT_EQ(content, "precious");
  unlink(path.c_str());
}

TEST(Lifecycle, ReflectionAndChannelzAnswer) {
  const auto daemon = Daemon::Start();
  ASSERT_NE(daemon, nullptr);
  const auto channel = Connect(daemon->endpoint());
  // grpc.reflection.v1alpha.ServerReflectionRequest { list_services = 7: "" }
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  void* tag = nullptr;
  bool ok = false;
  const auto stream =
      stub.PrepareCall(&context, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", &queue);
  stream->StartCall(nullptr);
  queue.Next(&tag, &ok);
  const grpc::Slice list(std::string("\x3a\x00", 2));
  stream->Write(grpc::ByteBuffer(&list, 1), nullptr);
  queue.Next(&tag, &ok);
  grpc::ByteBuffer answer;
  stream->Read(&answer, nullptr);
  queue.Next(&tag, &ok);
  ASSERT_TRUE(ok);
  grpc::Slice slice;
  ASSERT_TRUE(answer.DumpToSingleSlice(&slice).ok());
  const std::string text(reinterpret_cast<const char*>(slice.begin()), slice.size());
  for (const char* service : {"kernd.v1.Compute", "kernd.v1.Tensors", "kernd.v1.KvCache", "kernd.v1.Device",
                              "grpc.health.v1.Health", "grpc.channelz.v1.Channelz"}) {
    EXPECT_THAT(text, HasSubstr(service));
  }
  context.TryCancel();
  grpc::Status status;
  stream->Finish(&status, nullptr);
  queue.Next(&tag, &ok);
  EXPECT_TRUE(RawCall(channel, "/grpc.channelz.v1.Channelz/GetServers", "").status.ok());
}

TEST(Lifecycle, CapabilitiesAndKernelsNameWhatRuns) {
  const auto daemon = Daemon::Start();
  ASSERT_NE(daemon, nullptr);
  const auto channel = Connect(daemon->endpoint());
  v1::GetCapabilitiesReply capabilities;
  ASSERT_TRUE(
      Call(channel, "/kernd.v1.Device/GetCapabilities", v1::GetCapabilitiesRequest(), capabilities).status.ok());
  EXPECT_EQ(capabilities.backend(), OnGpu() ? "cuda" : "cpu");
  ASSERT_EQ(capabilities.devices_size(), 1);
  EXPECT_EQ(capabilities.devices(0).tier() == v1::DeviceInfo::TIER_CPU, !OnGpu());
  EXPECT_GT(capabilities.devices(0).memory_total_bytes(), 0);
  EXPECT_NE(capabilities.server_epoch(), 0u);
  v1::ListKernelsReply kernels;
  ASSERT_TRUE(Call(channel, "/kernd.v1.Device/ListKernels", v1::ListKernelsRequest(), kernels).status.ok());
  // Whatever a call is served by is in the list, and can be forced.
  v1::MatmulReply reply;
  ASSERT_TRUE(Call(channel, kMatmul, SmallMatmul(), reply).status.ok());
  EXPECT_THAT(kernels.kernels(), ::testing::Contains(::testing::Property(&v1::Kernel::name, reply.kernel().name())));
  v1::MatmulRequest forced = SmallMatmul();
  forced.mutable_matmul()->mutable_kernel()->set_name(reply.kernel().name());
  ASSERT_TRUE(Call(channel, kMatmul, forced, reply).status.ok());
  EXPECT_EQ(reply.kernel().reason(), "forced");
}

TEST(Lifecycle, EveryCallIsLoggedAndCounted) {
  const auto daemon = Daemon::Start({"--log-format", "json"});
  ASSERT_NE(daemon, nullptr);
  const auto channel = Connect(daemon->endpoint());
  v1::MatmulRequest request = SmallMatmul();
  request.mutable_options()->set_request_id("my \"id\"");
  v1::MatmulReply reply;
  ASSERT_TRUE(Call(channel, kMatmul, request, reply).status.ok());
  request.mutable_matmul()->mutable_a()->set_data("short");
  EXPECT_FALSE(Call(channel, kMatmul, request, reply).status.ok());
  ASSERT_TRUE(daemon->WaitForMetric("kernd_requests_in_flight", 0));
  const auto metrics = daemon->Metrics();
  EXPECT_EQ(metrics.at("kernd_requests_total{code=\"OK\",method=\"Compute/Matmul\"}"), 1);
  EXPECT_EQ(metrics.at("kernd_requests_total{code=\"INVALID_ARGUMENT\",method=\"Compute/Matmul\"}"), 1);
  EXPECT_GT(metrics.at("kernd_request_bytes_total{method=\"Compute/Matmul\"}"), 64);
  EXPECT_EQ(metrics.at("kernd_stage_seconds_count{stage=\"kernel\"}"), 1);
  EXPECT_EQ(daemon->Stop(), 0);
  EXPECT_THAT(daemon->Log(), HasSubstr("my \\\"id\\\""));
  EXPECT_THAT(daemon->Log(), HasSubstr("a=F32[2,2] b=F32[2,2]"));
}

}  // namespace
}  // namespace kernd::testing
