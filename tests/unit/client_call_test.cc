// Calls of the library against a daemon in this process that answers what each test tells it to.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <numeric>
#include <set>
#include <stop_token>
#include <thread>
#include <vector>

#include "kernd/client/client.h"
#include "tests/unit/client_fake_daemon.h"

namespace kernd::client {
namespace {

constexpr absl::Duration kForever = absl::Hours(10);  // longer than any test

Client Connect(const std::string& endpoint, RetryPolicy retry = {}, int channels = 1) {
  ClientOptions options;
  options.endpoint = endpoint;
  options.retry = retry;
  options.channels = channels;
  absl::StatusOr<Client> client = Client::Connect(options);
  EXPECT_TRUE(client.ok()) << client.status();
  return *std::move(client);
}

// Tries again at once, unless told otherwise.
RetryPolicy AtOnce() {
  RetryPolicy retry;
  retry.initial_backoff = absl::ZeroDuration();
  return retry;
}

// Would wait for ever, unless told otherwise.
RetryPolicy Never() {
  RetryPolicy retry;
  retry.initial_backoff = retry.max_backoff = kForever;
  return retry;
}

MatmulArgs SmallMatmul() {
  static const std::vector<float> values = {1, 2, 3, 4};
  MatmulArgs args;
  args.a = args.b = View(values, {2, 2});
  return args;
}

grpc::Status EchoA(grpc::ServerContext&, const v1::MatmulRequest& request, v1::MatmulReply& reply) {
  *reply.mutable_d() = request.matmul().a();
  return grpc::Status::OK;
}

TEST(CallTest, TensorsArriveWholeAndTheirSizeIsAnnounced) {
  FakeDaemon daemon;
  std::string announced;
  std::size_t arrived = 0;
  daemon.matmul = [&](grpc::ServerContext& context, const v1::MatmulRequest& request, v1::MatmulReply& reply) {
    const auto found = context.client_metadata().find("kernd-body-bytes");
    if (found != context.client_metadata().end()) announced.assign(found->second.data(), found->second.size());
    arrived = request.ByteSizeLong();
    return EchoA(context, request, reply);
  };
  const Client client = Connect(daemon.endpoint());
  // Around the size up to which bytes are copied, and past several HTTP/2 windows.
  for (const std::int64_t elements : {0, 1, 1023, 1024, 1025, 100'000, 5'000'000}) {
    std::vector<std::int32_t> a(static_cast<std::size_t>(elements));
    std::iota(a.begin(), a.end(), 7);
    MatmulArgs args;
    args.a = View(a, {1, elements});
    args.b = View(a, {elements, 1});
    const absl::StatusOr<MatmulReply> reply = client.Matmul(args);
    ASSERT_TRUE(reply.ok()) << reply.status() << ", elements " << elements;
    EXPECT_EQ(announced, std::to_string(arrived)) << elements;
    const std::span<const std::int32_t> d = reply->d.values<std::int32_t>();
    EXPECT_TRUE(std::equal(d.begin(), d.end(), a.begin(), a.end())) << elements;
  }
}

TEST(CallTest, ManyThreadsOverSeveralConnections) {
  FakeDaemon daemon;
  std::mutex mutex;
  std::set<std::string> peers;
  daemon.matmul = [&](grpc::ServerContext& context, const v1::MatmulRequest& request, v1::MatmulReply& reply) {
    const std::lock_guard lock(mutex);
    peers.insert(context.peer());
    return EchoA(context, request, reply);
  };
  const Client client = Connect(daemon.endpoint(), {}, /*channels=*/3);
  std::atomic<int> good = 0;
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&client, &good, t] {
        for (int i = 0; i < 25; ++i) {
          const std::vector<float> a(5000 + 100 * t, static_cast<float>(i));
          MatmulArgs args;
          args.a = args.b = View(a, {1, std::ssize(a)});
          const absl::StatusOr<MatmulReply> reply = client.Matmul(args);
          if (reply.ok() && reply->d.values<float>().size() == a.size() && reply->d.values<float>()[0] == a[0]) ++good;
        }
      });
    }
  }
  EXPECT_EQ(good, 100);
  EXPECT_EQ(peers.size(), 3u);
}

// Fails `failures` times with `refusal`, then succeeds; returns the number of attempts.
int Attempts(int failures, const grpc::Status& refusal, const RetryPolicy& retry, absl::Status* status,
             const char* pushback = nullptr, absl::Duration timeout = absl::Seconds(60)) {
  FakeDaemon daemon;
  std::atomic<int> attempts = 0;
  daemon.matmul = [&](grpc::ServerContext& context, const v1::MatmulRequest& request, v1::MatmulReply& reply) {
    if (++attempts > failures) return EchoA(context, request, reply);
    if (pushback != nullptr) context.AddTrailingMetadata("grpc-retry-pushback-ms", pushback);
    return refusal;
  };
  *status = Connect(daemon.endpoint(), retry).Matmul(SmallMatmul(), {.timeout = timeout}).status();
  return attempts;
}

TEST(RetryCallTest, UnavailableTwiceThenWell) {
  absl::Status status;
  EXPECT_EQ(Attempts(2, grpc::Status(grpc::UNAVAILABLE, "starting"), AtOnce(), &status), 3);
  EXPECT_TRUE(status.ok()) << status;
}

TEST(RetryCallTest, EndsWithTheAttempts) {
  absl::Status status;
  EXPECT_EQ(Attempts(100, grpc::Status(grpc::UNAVAILABLE, "starting"), AtOnce(), &status), 4);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(status.message(), "starting");
  EXPECT_EQ(DetailsOf(status).reason, "") << "the daemon answered: the connection stands";
}

TEST(RetryCallTest, RetryInfoGoesBeforeBackoff) {
  absl::Status status;
  EXPECT_EQ(Attempts(1, Refusal(grpc::UNAVAILABLE, "starting", "STARTING", "", 1), Never(), &status), 2);
  EXPECT_TRUE(status.ok()) << status;
}

// The waits are short enough for a client that begins them all the same to fail here, rather than to hang.
TEST(RetryCallTest, AWaitPastTheDeadlineIsNotBegun) {
  constexpr absl::Duration kTimeout = absl::Seconds(4);
  absl::Status status;
  EXPECT_EQ(
      Attempts(1, Refusal(grpc::UNAVAILABLE, "draining", "DRAINING", "", 5000), AtOnce(), &status, nullptr, kTimeout),
      1);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(DetailsOf(status).reason, "DRAINING");
  EXPECT_EQ(DetailsOf(status).retry_after, absl::Seconds(5));
  RetryPolicy slow;
  slow.initial_backoff = slow.max_backoff = absl::Seconds(10);
  EXPECT_EQ(Attempts(1, grpc::Status(grpc::UNAVAILABLE, "starting"), slow, &status, nullptr, kTimeout), 1);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
}

TEST(CallTest, AConnectionMayBeAwaited) {
  FakeDaemon daemon;
  EXPECT_TRUE(Connect(daemon.endpoint(), {}, /*channels=*/3).AwaitConnection(kForever).ok());
  const absl::Status refused = Connect("unix:/nonexistent/kernd.sock").AwaitConnection(kForever);
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable) << refused;
  EXPECT_EQ(DetailsOf(refused).reason, "NOT_CONNECTED");
}

TEST(RetryCallTest, Pushback) {
  absl::Status status;
  const grpc::Status refusal(grpc::UNAVAILABLE, "starting");
  EXPECT_EQ(Attempts(1, refusal, Never(), &status, "0"), 2);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(Attempts(1, refusal, AtOnce(), &status, "-1"), 1);
  EXPECT_EQ(Attempts(1, refusal, AtOnce(), &status, "soon"), 1);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
}

TEST(RetryCallTest, AFullDaemonOnlyWhenAskedFor) {
  absl::Status status;
  const grpc::Status full = Refusal(grpc::RESOURCE_EXHAUSTED, "full", "QUEUE_FULL", "", 0);
  EXPECT_EQ(Attempts(1, full, AtOnce(), &status), 1);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  RetryPolicy retry = AtOnce();
  retry.on_resource_exhausted = true;
  EXPECT_EQ(Attempts(1, full, retry, &status), 2);
  EXPECT_TRUE(status.ok()) << status;
}

TEST(CallTest, TheDaemonsErrorArrivesWithItsDetails) {
  absl::Status status;
  EXPECT_EQ(
      Attempts(1, Refusal(grpc::INVALID_ARGUMENT, "matmul.a.shape is [2,2]: no", "INVALID_FIELD", "matmul.a.shape"),
               AtOnce(), &status),
      1);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "matmul.a.shape is [2,2]: no");
  EXPECT_EQ(DetailsOf(status).field, "matmul.a.shape");
  EXPECT_EQ(DetailsOf(status).metadata.at("limit_bytes"), "1024");
}

TEST(CallTest, TheDeadlineEndsACallThatHangs) {
  FakeDaemon daemon;
  daemon.matmul = [](grpc::ServerContext& context, const v1::MatmulRequest&, v1::MatmulReply&) {
    while (!context.IsCancelled()) std::this_thread::yield();
    return grpc::Status::CANCELLED;
  };
  const Client client = Connect(daemon.endpoint());
  CallOptions options;
  options.timeout = absl::Milliseconds(100);
  const absl::Status status = client.Matmul(SmallMatmul(), options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_EQ(DetailsOf(status).reason, "") << "the connection stands";
}

TEST(CallTest, StopEndsACallAndAWait) {
  FakeDaemon daemon;
  std::stop_source stop;
  daemon.matmul = [&stop](grpc::ServerContext& context, const v1::MatmulRequest&, v1::MatmulReply&) {
    stop.request_stop();
    while (!context.IsCancelled()) std::this_thread::yield();
    return grpc::Status::CANCELLED;
  };
  daemon.attention = [](grpc::ServerContext&, const v1::AttentionRequest&, v1::AttentionReply&) {
    return grpc::Status(grpc::UNAVAILABLE, "starting");
  };
  const Client client = Connect(daemon.endpoint(), Never());
  CallOptions options;
  options.stop = stop.get_token();
  EXPECT_EQ(client.Matmul(SmallMatmul(), options).status().code(), absl::StatusCode::kCancelled);

  std::stop_source later;
  options.stop = later.get_token();
  options.timeout = 2 * kForever;
  AttentionArgs args;
  args.q = args.k = args.v = SmallMatmul().a;
  absl::Status status;
  {
    const std::jthread call([&] { status = client.Attention(args, options).status(); });
    later.request_stop();
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
}

TEST(CallTest, NoDaemonIsATypedError) {
  RetryPolicy retry = AtOnce();
  retry.max_attempts = 2;
  const absl::Status status = Connect("unix:/nonexistent/kernd.sock", retry).Matmul(SmallMatmul()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_EQ(DetailsOf(status).reason, "NOT_CONNECTED");
  EXPECT_NE(status.message().find("unix:/nonexistent/kernd.sock"), absl::string_view::npos) << status;
}

TEST(CallTest, WrongOptionsAreNamed) {
  const auto field = [](const ClientOptions& options) { return DetailsOf(Client::Connect(options).status()).field; };
  EXPECT_EQ(field({}), "");
  EXPECT_EQ(field({.endpoint = ""}), "endpoint");
  EXPECT_EQ(field({.timeout = absl::ZeroDuration()}), "timeout");
  EXPECT_EQ(field({.channels = 0}), "channels");
  EXPECT_EQ(field({.channels = 65}), "channels");
  EXPECT_EQ(field({.stall_timeout = absl::ZeroDuration()}), "stall_timeout");
  EXPECT_EQ(field({.stall_timeout = absl::InfiniteDuration()}), "stall_timeout");
  EXPECT_EQ(field({.stripe_channels = 0}), "stripe_channels");
  EXPECT_EQ(field({.stripe_channels = 65}), "stripe_channels");
  EXPECT_EQ(field({.stripe_threshold_bytes = -1}), "stripe_threshold_bytes");

  FakeDaemon daemon;
  daemon.matmul = EchoA;
  const Client client = Connect(daemon.endpoint());
  const auto call = [&client](const CallOptions& options) {
    return DetailsOf(client.Matmul(SmallMatmul(), options).status()).field;
  };
  EXPECT_EQ(call({.metadata = {{"x-tenant.id_1", "some text"}}}), "");
  EXPECT_EQ(call({.timeout = -absl::Seconds(1)}), "timeout");
  // gRPC stops the program over each of these.
  EXPECT_EQ(call({.metadata = {{"", "x"}}}), "metadata");
  EXPECT_EQ(call({.metadata = {{"Upper", "x"}}}), "metadata");
  EXPECT_EQ(call({.metadata = {{"a b", "x"}}}), "metadata");
  EXPECT_EQ(call({.metadata = {{"grpc-timeout", "x"}}}), "metadata");
  EXPECT_EQ(call({.metadata = {{"key", "a\nb"}}}), "metadata.key");
}

// Address space that is reserved and never touched: were the client to read it, the test would crash.
TEST(CallTest, MoreThanAMessageCanHoldIsRefusedBeforeSending) {
  constexpr std::size_t kBytes = std::size_t{2} << 30;
  void* memory = ::mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  MatmulArgs args = SmallMatmul();
  args.a = {DataType::kI8, {1, static_cast<std::int64_t>(kBytes)}, {static_cast<const std::byte*>(memory), kBytes}};
  const absl::StatusOr<Client> client =
      Client::Connect({.endpoint = "unix:/nonexistent/kernd.sock", .transfer = Transfer::kInline});
  const absl::Status status = client->Matmul(args).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_EQ(DetailsOf(status).reason, "TOO_LARGE");
  ::munmap(memory, kBytes);
}

TEST(CallTest, HealthCapabilitiesKernelsAndPlan) {
  FakeDaemon daemon;
  daemon.health = [](grpc::ServerContext&, const grpc::health::v1::HealthCheckRequest& request,
                     grpc::health::v1::HealthCheckResponse& reply) {
    using Response = grpc::health::v1::HealthCheckResponse;
    if (request.service() == "unknown") return grpc::Status(grpc::NOT_FOUND, "unknown");
    reply.set_status(request.service().empty() ? Response::SERVING : Response::NOT_SERVING);
    return grpc::Status::OK;
  };
  daemon.capabilities = [](grpc::ServerContext&, const v1::GetCapabilitiesRequest&, v1::GetCapabilitiesReply& reply) {
    reply.set_backend("cpu");
    v1::DeviceInfo& device = *reply.add_devices();
    device.set_uuid("cpu");
    device.set_tier(v1::DeviceInfo::TIER_CPU);
    device.set_processors(2);
    v1::OperationSupport& row = *reply.add_operations();
    row.set_operation("attention");
    row.set_dtype(v1::DATA_TYPE_F8E5M2);
    row.set_reason("no");
    reply.mutable_limits()->set_max_message_bytes(INT32_MAX);
    return grpc::Status::OK;
  };
  daemon.kernels = [](grpc::ServerContext&, const v1::ListKernelsRequest&, v1::ListKernelsReply& reply) {
    v1::Kernel& kernel = *reply.add_kernels();
    kernel.set_name("k");
    kernel.add_dtypes(v1::DATA_TYPE_BF16);
    return grpc::Status::OK;
  };
  daemon.plan = [](grpc::ServerContext&, const v1::PlanRequest& request, v1::PlanReply& reply) {
    reply.add_steps()->mutable_kernel()->set_name(request.steps(0).has_attention() ? "attention" : "matmul");
    return grpc::Status::OK;
  };
  const Client client = Connect(daemon.endpoint());
  EXPECT_EQ(*client.Health(), HealthStatus::kServing);
  EXPECT_EQ(*client.Health("x"), HealthStatus::kNotServing);
  EXPECT_EQ(client.Health("unknown").status().code(), absl::StatusCode::kNotFound);
  const absl::StatusOr<Capabilities> capabilities = client.GetCapabilities();
  ASSERT_TRUE(capabilities.ok()) << capabilities.status();
  ASSERT_EQ(capabilities->devices.size(), 1u);
  EXPECT_EQ(capabilities->devices[0].tier, Tier::kCpu);
  EXPECT_EQ(capabilities->devices[0].processors, 2);
  EXPECT_EQ(capabilities->operations.at(0).dtype, DataType::kF8E5M2);
  EXPECT_FALSE(capabilities->operations.at(0).supported);
  EXPECT_EQ(capabilities->max_message_bytes, INT32_MAX);
  EXPECT_EQ(client.ListKernels()->at(0).dtypes.at(0), DataType::kBF16);
  EXPECT_EQ(client.Plan(SmallMatmul())->kernel.name, "matmul");
  AttentionArgs attention;
  attention.q = attention.k = attention.v = SmallMatmul().a;
  EXPECT_EQ(client.Plan(attention)->kernel.name, "attention");
}

// An HTTP/2 peer that opens every window and then never reads: the client's bytes stay in its socket.
class StuckPeer {
 public:
  StuckPeer() : listener_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(::listen(listener_, 8), 0);
    socklen_t size = sizeof address;
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    endpoint_ = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
    thread_ = std::thread([this] { Serve(); });
  }
  ~StuckPeer() {
    ::shutdown(listener_, SHUT_RDWR);
    thread_.join();
    ::close(listener_);
    for (const int connection : connections_) ::close(connection);
  }

  const std::string& endpoint() const { return endpoint_; }

 private:
  void Serve() {
    for (int connection; (connection = ::accept(listener_, nullptr, nullptr)) >= 0;) {
      connections_.push_back(connection);
      // SETTINGS: stream window 2^31 - 1, frames of 2^24 - 1; WINDOW_UPDATE of the connection.
      const unsigned char frames[] = {0, 0,    12,   4,    0, 0, 0, 0, 0, 0, 4, 0x7f, 0xff, 0xff, 0xff, 0, 5,
                                      0, 0xff, 0xff, 0xff, 0, 0, 4, 8, 0, 0, 0, 0,    0,    0x7f, 0,    0, 0};
      EXPECT_EQ(::send(connection, frames, sizeof frames, MSG_NOSIGNAL), static_cast<ssize_t>(sizeof frames));
    }
  }

  int listener_;
  std::string endpoint_;
  std::vector<int> connections_;
  std::thread thread_;
};

// The deadline passes while the transport still holds the operands. The call must not return before they are free:
// under AddressSanitizer a transport that reads them later fails the test.
TEST(CallTest, OperandsAreFreeWhenTheCallReturnsWhateverThePeerDoes) {
  // gRPC's shutdown, when its last object goes, waits for a poller that may sleep for ten seconds: let one stay.
  static const auto* const stays = new grpc::CompletionQueue();
  ASSERT_NE(stays, nullptr);
  StuckPeer peer;
  ClientOptions connect;
  connect.endpoint = peer.endpoint();
  connect.stall_timeout = absl::Milliseconds(200);
  const absl::StatusOr<Client> client = Client::Connect(connect);
  ASSERT_TRUE(client.ok()) << client.status();
  std::vector<float> a(4 << 20, 1.0f);
  MatmulArgs args;
  args.a = args.b = View(a, {1, std::ssize(a)});
  CallOptions options;
  options.timeout = absl::Milliseconds(100);
  EXPECT_EQ(client->Matmul(args, options).status().code(), absl::StatusCode::kDeadlineExceeded);
}

}  // namespace
}  // namespace kernd::client
