// What a body may cost: declared, undeclared, lying, compressed, broken, and no message at all. The daemon's memory
// stays within its budgets, and others are served meanwhile.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <random>
#include <thread>

#include "tests/support/daemon.h"
#include "tests/support/raw_client.h"
#include "tests/support/requests.h"

namespace kernd::testing {
namespace {

using grpc::StatusCode;

constexpr char kMatmul[] = "/kernd.v1.Compute/Matmul";
constexpr std::int64_t kMiB = std::int64_t{1} << 20;
constexpr std::int64_t kBodyBudget = 64 * kMiB;
constexpr std::int64_t kQuota = kBodyBudget + kBodyBudget / 2;  // server/main.cc

// Threads as on a large machine: some give memory back while gRPC makes room on others.
std::unique_ptr<Daemon> StartSmall() {
  return Daemon::Start(
      {"--body-budget", "64MiB", "--default-body-bytes", "8MiB", "--max-message-bytes", "1GiB", "--io-threads", "8"});
}

// What a call ends with that sends its headers and, instead of a message, the end of the stream, or nothing at all.
enum class Ending { kHalfClose, kSilence };
grpc::Status CallWithoutMessage(const Daemon& daemon, Ending ending) {
  grpc::GenericStub stub(Connect(daemon.endpoint()));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  grpc::CompletionQueue queue;
  void* tag = nullptr;
  bool ok = false;
  const auto stream = stub.PrepareCall(&context, kMatmul, &queue);
  stream->StartCall(nullptr);
  queue.Next(&tag, &ok);
  if (ending == Ending::kHalfClose) {
    stream->WritesDone(nullptr);
    queue.Next(&tag, &ok);
  }
  grpc::Status status;
  stream->Finish(&status, nullptr);
  queue.Next(&tag, &ok);
  return status;
}

bool SmallCallWorks(const Daemon& daemon) {
  v1::MatmulReply reply;
  return Call(Connect(daemon.endpoint()), kMatmul, SmallMatmul(), reply).status.ok();
}

// A connected TCP socket to "127.0.0.1:port", or -1.
int ConnectTcp(const std::string& endpoint) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(std::stoi(endpoint.substr(endpoint.find(':') + 1))));
  inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) return fd;
  close(fd);
  return -1;
}

TEST(Body, DeclaredTooLargeIsRefusedOnItsHeaders) {
  const auto daemon = StartSmall();
  ASSERT_NE(daemon, nullptr);
  ASSERT_TRUE(SmallCallWorks(*daemon));
  const std::int64_t before = daemon->PeakResidentBytes();
  const std::string body(512 * kMiB, '\0');
  const RawReply reply = RawCall(Connect(daemon->endpoint()), kMatmul, body,
                                 {.metadata = {{"kernd-body-bytes", std::to_string(body.size())}}});
  EXPECT_EQ(reply.status.error_code(), StatusCode::RESOURCE_EXHAUSTED) << reply.status.error_message();
  EXPECT_EQ(reply.reason, "TOO_LARGE");
  EXPECT_EQ(reply.metadata.at("needed_bytes"), std::to_string(body.size()));
  EXPECT_LT(daemon->PeakResidentBytes() - before, 20 * kMiB);
  EXPECT_TRUE(SmallCallWorks(*daemon));
}

TEST(Body, DeclarationThatIsNoNumber) {
  const auto daemon = StartSmall();
  ASSERT_NE(daemon, nullptr);
  for (const char* text : {"", "-1", "12x", "1e3", "99999999999999999999"}) {
    const RawReply reply =
        RawCall(Connect(daemon->endpoint()), kMatmul, "", {.metadata = {{"kernd-body-bytes", text}}});
    EXPECT_EQ(reply.status.error_code(), StatusCode::INVALID_ARGUMENT) << text;
    EXPECT_EQ(reply.field, "kernd-body-bytes");
  }
}

// What a body that lies about its size may do to the calls of others, by server/README.md.
bool PushedAside(const RawReply& reply) {
  return reply.status.error_code() == StatusCode::UNAVAILABLE ||
         (reply.status.error_code() == StatusCode::RESOURCE_EXHAUSTED && reply.reason.empty());
}

// A body that says nothing of its size, and one that says too little: both are stopped by the quota, and a neighbour
// that repeats what was pushed aside goes on being served.
TEST(Body, UndeclaredOrLyingBodyIsBounded) {
  for (const auto& metadata :
       {std::map<std::string, std::string>{}, std::map<std::string, std::string>{{"kernd-body-bytes", "1024"}}}) {
    const auto daemon = StartSmall();
    ASSERT_NE(daemon, nullptr);
    ASSERT_TRUE(SmallCallWorks(*daemon));
    const std::int64_t before = daemon->ResidentBytes();
    std::atomic<bool> stop = false;
    std::atomic<int> good = 0, bad = 0;
    std::thread neighbour([&] {
      const auto channel = Connect(daemon->endpoint());
      while (!stop) {
        v1::MatmulReply reply;
        RawReply raw;
        for (int attempt = 0; attempt < 4; ++attempt) {
          raw = Call(channel, kMatmul, SmallMatmul(), reply);
          if (!PushedAside(raw)) break;
        }
        if (raw.status.ok()) {
          ++good;
        } else if (bad++ == 0) {
          ADD_FAILURE() << "neighbour: " << raw.status.error_code() << " " << raw.status.error_message();
        }
      }
    });
    const RawReply reply =
        RawCall(Connect(daemon->endpoint()), kMatmul, std::string(512 * kMiB, '\0'), {.metadata = metadata});
    stop = true;
    neighbour.join();
    EXPECT_EQ(reply.status.error_code(), StatusCode::RESOURCE_EXHAUSTED) << reply.status.error_message();
    EXPECT_LT(daemon->PeakResidentBytes() - before, kQuota + 100 * kMiB);
    EXPECT_GT(good, 0);
    EXPECT_EQ(bad, 0);
    EXPECT_TRUE(SmallCallWorks(*daemon));
    EXPECT_EQ(daemon->Stop(), 0) << daemon->Log();
  }
}

TEST(Body, OverTheMessageLimit) {
  const auto daemon = Daemon::Start({"--max-message-bytes", "1MiB"});
  ASSERT_NE(daemon, nullptr);
  const RawReply reply = RawCall(Connect(daemon->endpoint()), kMatmul, std::string(2 * kMiB, '\0'));
  EXPECT_EQ(reply.status.error_code(), StatusCode::RESOURCE_EXHAUSTED) << reply.status.error_message();
  EXPECT_TRUE(SmallCallWorks(*daemon));
}

TEST(Body, CompressedIsRefusedBeforeItIsInflated) {
  const auto daemon = StartSmall();
  ASSERT_NE(daemon, nullptr);
  ASSERT_TRUE(SmallCallWorks(*daemon));
  const std::int64_t before = daemon->PeakResidentBytes();
  grpc::GenericStub stub(Connect(daemon->endpoint()));
  grpc::ClientContext context;
  context.set_compression_algorithm(GRPC_COMPRESS_GZIP);
  grpc::CompletionQueue queue;
  const grpc::Slice zeros(std::string(256 * kMiB, '\0'));
  const auto call = stub.PrepareUnaryCall(&context, kMatmul, grpc::ByteBuffer(&zeros, 1), &queue);
  call->StartCall();
  grpc::ByteBuffer answer;
  grpc::Status status;
  call->Finish(&answer, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  EXPECT_EQ(status.error_code(), StatusCode::UNIMPLEMENTED) << status.error_message();
  EXPECT_LT(daemon->PeakResidentBytes() - before, 20 * kMiB);
  EXPECT_TRUE(SmallCallWorks(*daemon));
}

TEST(Body, NoMessageAtAll) {
  const auto daemon = StartSmall();
  ASSERT_NE(daemon, nullptr);
  const grpc::Status status = CallWithoutMessage(*daemon, Ending::kHalfClose);
  EXPECT_EQ(status.error_code(), StatusCode::INVALID_ARGUMENT) << status.error_message();
}

// Calls that send their headers and then nothing hold a place of the budget until they are cancelled.
TEST(Body, HalfSentCallsHoldTheBudgetAndGiveItBack) {
  const auto daemon = StartSmall();
  ASSERT_NE(daemon, nullptr);
  const auto channel = Connect(daemon->endpoint());
  grpc::GenericStub stub(channel);
  grpc::CompletionQueue queue;
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::GenericClientAsyncReaderWriter>> streams;
  void* tag = nullptr;
  bool ok = false;
  for (int i = 0; i < 8; ++i) {  // 8 x the default of 8 MiB: all of the budget
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    streams.push_back(stub.PrepareCall(contexts.back().get(), kMatmul, &queue));
    streams.back()->StartCall(nullptr);
    queue.Next(&tag, &ok);
  }
  RawReply reply;
  for (int tries = 0; tries < 1000; ++tries) {  // until all eight have arrived
    reply = RawCall(channel, kMatmul, SmallMatmul().SerializeAsString());
    if (!reply.status.ok()) break;
  }
  EXPECT_EQ(reply.status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(reply.reason, "BODY_BUDGET_FULL");
  EXPECT_TRUE(reply.retry_after_s.has_value());
  for (const auto& context : contexts) context->TryCancel();
  for (const auto& stream : streams) {
    grpc::Status status;
    stream->Finish(&status, nullptr);
    queue.Next(&tag, &ok);
  }
  bool served = false;
  for (int tries = 0; tries < 1000 && !served; ++tries) {
    served = RawCall(channel, kMatmul, SmallMatmul().SerializeAsString()).status.ok();
    if (!served) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_TRUE(served);
  EXPECT_TRUE(daemon->WaitForMetric("kernd_body_budget_used_bytes", 0));
  EXPECT_TRUE(daemon->WaitForMetric("kernd_requests_in_flight", 0));
}

// Many small fields: parsed, they would take tens of times their size.
TEST(Body, SmallFieldsDoNotMultiply) {
  const auto daemon = Daemon::Start();
  ASSERT_NE(daemon, nullptr);
  ASSERT_TRUE(SmallCallWorks(*daemon));
  const auto channel = Connect(daemon->endpoint());
  const std::int64_t before = daemon->PeakResidentBytes();
  std::string unknown;  // field 1001, a hint, of one byte
  for (int i = 0; i < 16 << 20; i += 3) unknown += "\xc8\x3e\x01";
  const RawReply hints = RawCall(channel, kMatmul, unknown);
  EXPECT_EQ(hints.reason, "INVALID_FIELD") << hints.status.error_message();  // it has nothing else
  v1::AttentionRequest lengths;
  for (int i = 0; i < 9 << 20; ++i) lengths.mutable_attention()->add_q_lengths(1);
  const RawReply many = RawCall(channel, "/kernd.v1.Compute/Attention", lengths.SerializeAsString());
  EXPECT_EQ(many.status.error_code(), StatusCode::INVALID_ARGUMENT) << many.status.error_message();
  EXPECT_EQ(many.reason, "MALFORMED_MESSAGE") << many.status.error_message();
  std::string steps;
  for (int i = 0; i < 8 << 20; ++i) steps += std::string("\x12\x00", 2);
  const RawReply plan = RawCall(channel, "/kernd.v1.Compute/Plan", steps);
  EXPECT_EQ(plan.status.error_code(), StatusCode::RESOURCE_EXHAUSTED) << plan.status.error_message();
  EXPECT_EQ(plan.reason, "TOO_LARGE");
  EXPECT_LT(daemon->PeakResidentBytes() - before, 100 * kMiB);
  EXPECT_TRUE(SmallCallWorks(*daemon));
}

// Headers without a body are cut off after --receive-stall, and what they held is free.
TEST(Body, StalledBodiesAreCutOff) {
  const auto daemon =
      Daemon::Start({"--receive-stall", "300ms", "--body-budget", "64MiB", "--default-body-bytes", "1MiB"});
  ASSERT_NE(daemon, nullptr);
  const grpc::Status status = CallWithoutMessage(*daemon, Ending::kSilence);
  EXPECT_NE(status.error_code(), StatusCode::DEADLINE_EXCEEDED) << "the daemon ends it, not the client";
  EXPECT_FALSE(status.ok());
  EXPECT_TRUE(daemon->WaitForMetric("kernd_body_budget_used_bytes", 0));
  EXPECT_TRUE(daemon->WaitForMetric("kernd_requests_in_flight", 0));
}

TEST(Body, RandomBytesOnThePort) {
  const auto daemon = StartSmall();
  ASSERT_NE(daemon, nullptr);
  std::mt19937 random(11);
  for (int i = 0; i < 50; ++i) {
    const int fd = ConnectTcp(daemon->endpoint());
    ASSERT_GE(fd, 0);
    std::string noise(1 + random() % 4096, '\0');
    for (char& c : noise) c = static_cast<char>(random());
    if (i % 2 == 1) noise = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + noise;
    EXPECT_GE(send(fd, noise.data(), noise.size(), MSG_NOSIGNAL), 0);
    close(fd);
  }
  EXPECT_TRUE(SmallCallWorks(*daemon));
}

// The ordinary gRPC listener stays dead after this.
TEST(Body, DescriptorsExhaustedAndFreedAgain) {
  const auto daemon = StartSmall();
  ASSERT_NE(daemon, nullptr);
  const rlimit few = {.rlim_cur = 64, .rlim_max = 64};
  ASSERT_EQ(prlimit(daemon->pid(), RLIMIT_NOFILE, &few, nullptr), 0);
  std::vector<int> idle;
  for (int i = 0; i < 100; ++i) {
    const int fd = ConnectTcp(daemon->endpoint());
    if (fd >= 0) idle.push_back(fd);
  }
  EXPECT_GT(idle.size(), 64u);
  for (const int fd : idle) close(fd);
  bool served = false;
  for (int tries = 0; tries < 200 && !served; ++tries) served = SmallCallWorks(*daemon);
  EXPECT_TRUE(served);
}

}  // namespace
}  // namespace kernd::testing
