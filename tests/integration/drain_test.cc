// SIGTERM: what is served during the delay, what ends when, and how the daemon leaves.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "grpc/health/v1/health.grpc.pb.h"
#include "tests/support/daemon.h"
#include "tests/support/paths.h"
#include "tests/support/pending_call.h"
#include "tests/support/raw_client.h"
#include "tests/support/requests.h"
#include "tests/support/session_client.h"

namespace kernd::testing {
namespace {

namespace health = grpc::health::v1;
using grpc::StatusCode;
using health::HealthCheckResponse;
using ::testing::HasSubstr;

constexpr char kMatmul[] = "/kernd.v1.Compute/Matmul";

StatusCode Check(health::Health::Stub& stub, const std::string& service, HealthCheckResponse& response) {
  grpc::ClientContext context;
  health::HealthCheckRequest request;
  request.set_service(service);
  return stub.Check(&context, request, &response).error_code();
}

TEST(Drain, WatchesSeeTheDrainAndEnd) {
  const auto daemon = Daemon::Start({"--drain-delay", "200ms"});
  ASSERT_NE(daemon, nullptr);
  const auto stub = health::Health::NewStub(Connect(daemon->endpoint()));
  grpc::ClientContext known_context, unknown_context;
  health::HealthCheckRequest request;
  HealthCheckResponse response;
  const auto known = stub->Watch(&known_context, request);
  request.set_service("no.such.Service");
  const auto unknown = stub->Watch(&unknown_context, request);
  ASSERT_TRUE(known->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVING);
  ASSERT_TRUE(unknown->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVICE_UNKNOWN);
  daemon->Signal(SIGTERM);
  ASSERT_TRUE(known->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::NOT_SERVING);
  EXPECT_FALSE(known->Read(&response));
  EXPECT_EQ(known->Finish().error_code(), StatusCode::UNAVAILABLE);
  EXPECT_FALSE(unknown->Read(&response));
  EXPECT_EQ(unknown->Finish().error_code(), StatusCode::UNAVAILABLE);
  EXPECT_EQ(daemon->Wait(10), 0);
}

TEST(Drain, DrainTakesCallsDuringTheDelayAndFinishesWhatIsInFlight) {
  const auto daemon = Daemon::Start({"--drain-delay", "1s", OneAtATime()});
  ASSERT_NE(daemon, nullptr);
  const auto channel = Connect(daemon->endpoint());
  const v1::AttentionRequest long_call = LongCall();  // now: the delay is short
  daemon->Signal(SIGTERM);
  for (int i = 0; i < 1000 && HttpGet(daemon->http(), "/readyz").first == 200; ++i) {
  }
  EXPECT_EQ(HttpGet(daemon->http(), "/readyz").first, 503);
  EXPECT_EQ(HttpGet(daemon->http(), "/healthz").first, 200);
  v1::MatmulReply reply;
  EXPECT_TRUE(Call(channel, kMatmul, SmallMatmul(), reply).status.ok()) << "calls are taken during the delay";
  std::vector<std::unique_ptr<PendingCall>> calls;
  for (int i = 0; i < 4; ++i) calls.push_back(std::make_unique<PendingCall>(channel, long_call));
  ASSERT_TRUE(daemon->WaitForMetric("kernd_requests_in_flight", 4));
  for (const auto& call : calls) EXPECT_TRUE(call->Finish().ok()) << call->Finish().error_message();
  EXPECT_EQ(daemon->Wait(20), 0);
}

// A connection without a call, of a client that does nothing for it, does not hold the drain.
TEST(Drain, IdleConnectionsDoNotHoldTheDrain) {
  const auto daemon = Daemon::Start({"--drain-timeout", "60s"});
  ASSERT_NE(daemon, nullptr);
  const auto channel = Connect(daemon->endpoint());
  v1::MatmulReply reply;
  ASSERT_TRUE(Call(channel, kMatmul, SmallMatmul(), reply).status.ok());
  EXPECT_EQ(daemon->Stop(), 0);
}

// The daemon itself ends watches, with a status that says why, while calls are in flight and their connection is up; a
// watch that would be left to end with its connection holds the drain up, and its client learns nothing.
TEST(Drain, WatchesEndWhileTheirConnectionServesOn) {
  const auto daemon = Daemon::Start({OneAtATime(), "--drain-timeout", "300s"});
  ASSERT_NE(daemon, nullptr);
  const auto channel = Connect(daemon->endpoint());
  const auto stub = health::Health::NewStub(channel);
  HealthCheckResponse response;
  PendingCall endless(channel, EndlessCall());
  ASSERT_TRUE(daemon->WaitForMetric("kernd_requests_in_flight", 1));
  // The deadline only ends a watch that nobody else ends.
  const auto watch = [&](grpc::ClientContext& context) {
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
    return stub->Watch(&context, health::HealthCheckRequest());
  };
  const auto expect_end = [&](grpc::ClientReader<HealthCheckResponse>& reader) {
    EXPECT_FALSE(reader.Read(&response));
    const grpc::Status status = reader.Finish();
    EXPECT_EQ(status.error_code(), StatusCode::UNAVAILABLE);
    EXPECT_EQ(status.error_message(), "kernd is draining");
    EXPECT_EQ(Explained(status).reason, "DRAINING");
    EXPECT_TRUE(Explained(status).retry_after_s.has_value());
  };
  grpc::ClientContext early_context, late_context;
  const auto early = watch(early_context);
  ASSERT_TRUE(early->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVING);
  daemon->Signal(SIGTERM);
  ASSERT_TRUE(early->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::NOT_SERVING);
  expect_end(*early);

  // The same connection: checks are answered, a watch that comes now learns the status and ends, calls are refused with
  // a reason, and the one in flight goes on until its client has enough.
  EXPECT_EQ(Check(*stub, "liveness", response), StatusCode::OK);
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVING);
  EXPECT_EQ(Check(*stub, "", response), StatusCode::OK);
  EXPECT_EQ(response.status(), HealthCheckResponse::NOT_SERVING);
  const auto late = watch(late_context);
  ASSERT_TRUE(late->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::NOT_SERVING);
  expect_end(*late);
  EXPECT_EQ(RawCall(channel, kMatmul, SmallMatmul().SerializeAsString()).reason, "DRAINING");
  EXPECT_TRUE(daemon->WaitForMetric("kernd_requests_in_flight", 1));  // a call is counted after its answer
  endless.Cancel();
  EXPECT_EQ(endless.Finish().error_code(), StatusCode::CANCELLED);
  EXPECT_EQ(daemon->Wait(20), 0) << daemon->Log();
}

// A refusal is of use only with its reason, for which its connection must be up a while longer: not only calls that
// come in the drain's time are told, but those that come when nothing is in flight any more as well, uploads among
// them.
TEST(Drain, CallsThatComeAtTheEndAreToldWhy) {
  const auto daemon = Daemon::Start();
  ASSERT_NE(daemon, nullptr);
  SessionClient session(daemon->endpoint());
  const std::string data = TensorBytes(1000);
  ASSERT_TRUE(session.PutAll(1, data).status.ok());
  daemon->Signal(SIGTERM);
  RawReply reply;
  while ((reply = session.PutAll(1, data)).status.ok()) {
  }
  for (int i = 0; i < 5; ++i) {
    ASSERT_EQ(reply.reason, "DRAINING") << "call " << i << ": " << reply.status.error_message();
    ASSERT_TRUE(reply.retry_after_s.has_value());
    reply = session.PutAll(1, data);
  }
  EXPECT_EQ(daemon->Wait(20), 0) << "clients that do not wait are not waited for";
}

// Calls that do not end in time are cancelled: exit code 1, and no abort, whatever stage they are in.
TEST(Drain, ADrainThatRunsOutOfTimeEndsInOrder) {
  const auto daemon = Daemon::Start({OneAtATime(), "--drain-timeout", "200ms"});
  ASSERT_NE(daemon, nullptr);
  const auto channel = Connect(daemon->endpoint());
  PendingCall running(channel, EndlessCall()), queued(channel, EndlessCall());
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  const auto headers_only = stub.PrepareCall(&context, kMatmul, &queue);
  headers_only->StartCall(nullptr);
  ASSERT_TRUE(daemon->WaitForMetric("kernd_requests_in_flight", 3));
  EXPECT_EQ(daemon->Stop(), 1);
  EXPECT_FALSE(running.Finish().ok());
  EXPECT_FALSE(queued.Finish().ok());
}

// A kernel that cannot be stopped outlives the drain's time, the cancellation and the connection: the daemon waits for
// it, and its call still ends on a completion queue that is open.
TEST(Drain, ADrainWaitsForAKernelThatCannotBeStopped) {
  const auto daemon = Daemon::Start({OneAtATime(), "--drain-timeout", "1ms"});
  ASSERT_NE(daemon, nullptr);
  const auto channel = Connect(daemon->endpoint());
  v1::MatmulRequest request;  // 32 MiB, one product of 34 billion multiplications
  *request.mutable_matmul()->mutable_a() = F32({4096, 1024});
  *request.mutable_matmul()->mutable_b() = F32({1024, 8192});
  PendingCall call(channel, request, std::chrono::seconds(60), kMatmul);
  ASSERT_TRUE(WaitUntilItRuns(*daemon));
  EXPECT_EQ(daemon->Stop(), 1) << daemon->Log();
  EXPECT_FALSE(call.Finish().ok());
  EXPECT_THAT(daemon->Log(), HasSubstr("stopped"));
}

// As long as it lives, a child of this process is process 1 of a namespace of its own, as in a container. This process
// can begin no threads meanwhile.
class PidNamespace {
 public:
  PidNamespace() : old_(open("/proc/self/ns/pid", O_RDONLY | O_CLOEXEC)), made_(unshare(CLONE_NEWPID) == 0) {}
  ~PidNamespace() {
    EXPECT_TRUE(!made_ || setns(old_, CLONE_NEWPID) == 0);
    close(old_);
  }

  bool made() const { return made_; }

 private:
  const int old_;
  const bool made_;
};

bool WorksInANamespace(const std::string& command) {
  const PidNamespace own;
  return std::system(("(" + command + ") >/dev/null 2>&1").c_str()) == 0;
}

void ExpectASecondSignalEndsIt(Daemon& daemon) {
  daemon.Signal(SIGTERM);
  for (int i = 0; i < 1000 && HttpGet(daemon.http(), "/readyz").first == 200; ++i) {
  }
  EXPECT_EQ(HttpGet(daemon.http(), "/readyz").first, 503);
  daemon.Signal(SIGTERM);
  EXPECT_EQ(daemon.Wait(10), 128 + SIGTERM) << daemon.Log();
}

TEST(Drain, ASecondSignalEndsAtOnce) {
  const auto daemon = Daemon::Start({"--drain-delay", "60s"});
  ASSERT_NE(daemon, nullptr);
  ExpectASecondSignalEndsIt(*daemon);
}

// The kernel keeps signals without a handler from process 1.
TEST(Drain, ASecondSignalEndsProcessOneAtOnce) {
  if (!PidNamespace().made()) GTEST_SKIP() << "SKIPPED: needs the right to make a PID namespace";
  std::vector<std::string> own_proc = {"unshare", "--mount-proc"};
  if (!WorksInANamespace("unshare --mount-proc true")) own_proc.clear();
  // CUDA looks itself up in /proc. A GPU that there is not is looked for once it has started.
  if (OnGpu() && (own_proc.empty() ||
                  !WorksInANamespace("! unshare --mount-proc env -u KERND_TEST_BACKEND " + ProgramPath("kernd") +
                                     " --backend cuda --gpu-device 1000 2>&1 | grep cudaErrorOperatingSystem"))) {
    GTEST_SKIP() << "SKIPPED: CUDA does not start in a PID namespace here";
  }
  std::unique_ptr<Daemon> daemon;
  {
    const PidNamespace own;
    daemon = Daemon::Start({"--drain-delay", "60s"}, /*wait_ready=*/true, own_proc);
  }
  ASSERT_NE(daemon, nullptr);
  ExpectASecondSignalEndsIt(*daemon);
}

}  // namespace
}  // namespace kernd::testing
