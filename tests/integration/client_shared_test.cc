// Shared memory of the client library against a real daemon: nobody has to know where tensors lie.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "kernd/client/client.h"
#include "tests/support/daemon.h"

namespace kernd::client {
namespace {

using kernd::testing::Daemon;

constexpr unsigned kSeed = 21;
constexpr char kShared[] = "kernd_memory_used_bytes{pool=\"shared\"}";
constexpr char kReceived[] = "kernd_copied_bytes_total{method=\"Compute/Matmul\"}";

void FillRandom(std::span<float> values, unsigned stream) {
  std::mt19937 random(kSeed + stream);
  std::normal_distribution<float> normal;
  for (float& x : values) x = normal(random);
}

class ClientSharedTest : public ::testing::Test {
 protected:
  ClientSharedTest() : socket_(::testing::TempDir() + "kernd_client_shared_" + std::to_string(getpid())) {
    daemon_ = Daemon::Start({"--shared-memory-socket", socket_, "--shared-memory-limit", "64MiB"});
  }
  ~ClientSharedTest() override { EXPECT_TRUE(daemon_->WaitForMetric(kShared, 0)); }
  Client Connect(ClientOptions options = {}) const {
    options.endpoint = daemon_->endpoint();
    return *Client::Connect(options);
  }

  const std::string socket_;
  std::unique_ptr<Daemon> daemon_;
};

TEST_F(ClientSharedTest, TensorsInItAgreeWithInlineOnes) {
  constexpr std::int64_t kN = 512, kBytes = kN * kN * 4;
  for (const Transfer transfer : {Transfer::kAuto, Transfer::kInline, Transfer::kStriped}) {
    ClientOptions options;
    options.transfer = transfer;
    const Client client = Connect(options);
    const absl::StatusOr<Session> session = client.OpenSession();
    ASSERT_TRUE(session.ok()) << session.status();
    const absl::StatusOr<SharedBuffer> buffer = session->Share(3 * kBytes);
    ASSERT_TRUE(buffer.ok()) << buffer.status();
    EXPECT_EQ(buffer->bytes().size(), std::size_t{3} * kBytes);
    const std::span<float> all = buffer->as<float>();
    const std::span<float> a = all.subspan(0, kN * kN), b = all.subspan(kN * kN, kN * kN);
    FillRandom(a, 1);
    FillRandom(b, 2);
    const std::vector<float> own_a(a.begin(), a.end()), own_b(b.begin(), b.end());
    const absl::StatusOr<MatmulReply> expected =
        session->Matmul({.a = View(own_a, {kN, kN}), .b = View(own_b, {kN, kN})});
    ASSERT_TRUE(expected.ok()) << expected.status();
    ASSERT_TRUE(daemon_->WaitForMetric("kernd_requests_in_flight", 0));
    const double before = daemon_->Metrics()[kReceived];

    MatmulArgs args = {.a = View(a, {kN, kN}), .b = View(b, {kN, kN})};
    const absl::StatusOr<MatmulReply> back = session->Matmul(args);
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(std::memcmp(back->d.bytes().data(), expected->d.bytes().data(), kBytes), 0) << "seed " << kSeed;
    args.d.into = buffer->bytes().subspan(2 * kBytes);
    const absl::StatusOr<MatmulReply> there = session->Matmul(args);
    ASSERT_TRUE(there.ok()) << there.status();
    EXPECT_EQ(there->d.bytes().data(), args.d.into.data());
    EXPECT_EQ(there->d.shape(), (std::vector<std::int64_t>{kN, kN}));
    EXPECT_EQ(std::memcmp(args.d.into.data(), expected->d.bytes().data(), kBytes), 0) << "seed " << kSeed;
    ASSERT_TRUE(daemon_->WaitForMetric("kernd_requests_in_flight", 0));
    EXPECT_EQ(daemon_->Metrics()[kReceived], before) << "no tensor was sent";

    // Mixed with memory of another kind, and into such.
    std::vector<float> d(kN * kN);
    args.a = View(own_a, {kN, kN});
    args.d.into = std::as_writable_bytes(std::span(d));
    ASSERT_TRUE(session->Matmul(args).ok());
    EXPECT_EQ(std::memcmp(d.data(), expected->d.bytes().data(), kBytes), 0);
  }
}

TEST_F(ClientSharedTest, AttentionAndItsTwoResults) {
  const Client client = Connect();
  const absl::StatusOr<Session> session = client.OpenSession();
  const absl::StatusOr<SharedBuffer> buffer = session->Share(65536);
  ASSERT_TRUE(buffer.ok()) << buffer.status();
  const std::span<float> x = buffer->as<float>().subspan(0, 2 * 16 * 8);
  FillRandom(x, 3);
  AttentionArgs args = {.q = View(x, {1, 2, 16, 8}), .k = View(x, {1, 2, 16, 8}), .v = View(x, {1, 2, 16, 8})};
  args.want_lse = true;
  const absl::StatusOr<AttentionReply> expected = session->Attention(args);
  ASSERT_TRUE(expected.ok()) << expected.status();
  args.o.into = buffer->bytes().subspan(8192, 1024);
  args.lse.into = buffer->bytes().subspan(16384, 128);
  const absl::StatusOr<AttentionReply> got = session->Attention(args);
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(std::memcmp(args.o.into.data(), expected->o.bytes().data(), 1024), 0);
  EXPECT_EQ(std::memcmp(args.lse.into.data(), expected->lse.bytes().data(), 128), 0);
}

// A place of another size is refused before a byte beside it is written.
TEST_F(ClientSharedTest, ResultsFitExactly) {
  const Client client = Connect();
  const absl::StatusOr<Session> session = client.OpenSession();
  const absl::StatusOr<SharedBuffer> buffer = session->Share(4096);
  ASSERT_TRUE(buffer.ok()) << buffer.status();
  const std::vector<float> x = {1, 2, 3, 4};
  for (const std::size_t bytes : {std::size_t{8}, std::size_t{24}}) {
    MatmulArgs args = {.a = View(x, {2, 2}), .b = View(x, {2, 2})};
    args.d.into = buffer->bytes().subspan(64, bytes);
    const absl::Status status = session->Matmul(args).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  }
  for (const float value : buffer->as<float>()) ASSERT_EQ(value, 0);
}

// What lies across its end, at half an element, or in another session's, is sent like any other memory.
TEST_F(ClientSharedTest, WhatIsNotWhollyInItTravels) {
  const Client client = Connect();
  const absl::StatusOr<Session> session = client.OpenSession(), other = client.OpenSession();
  const absl::StatusOr<SharedBuffer> buffer = session->Share(4096);
  ASSERT_TRUE(buffer.ok()) << buffer.status();
  const std::vector<float> one = {1};
  std::vector<float> x = {5};
  std::memcpy(buffer->bytes().data() + 2, x.data(), 4);
  const TensorView odd = {DataType::kF32, {1, 1}, buffer->bytes().subspan(2, 4)};
  EXPECT_EQ(session->Matmul({.a = odd, .b = View(one, {1, 1})})->d.values<float>()[0], 5);
  std::memcpy(buffer->bytes().data(), x.data(), 4);
  const TensorView first = {DataType::kF32, {1, 1}, buffer->bytes().subspan(0, 4)};
  EXPECT_EQ(other->Matmul({.a = first, .b = View(one, {1, 1})})->d.values<float>()[0], 5);
  EXPECT_EQ(client.Matmul({.a = first, .b = View(one, {1, 1})})->d.values<float>()[0], 5);
  MatmulArgs args = {.a = first, .b = View(one, {1, 1})};
  args.d.into = buffer->bytes().subspan(12, 4);
  EXPECT_EQ(session->Matmul(args)->d.values<float>()[0], 5);
}

TEST_F(ClientSharedTest, BuffersAreMovedAndGiveBack) {
  const Client client = Connect();
  std::optional<Session> session = *client.OpenSession();
  std::optional<SharedBuffer> a = *session->Share(1), b = *session->Share(8192);
  EXPECT_TRUE(daemon_->WaitForMetric(kShared, 3 * 4096));
  const std::byte* const data = a->bytes().data();
  *b = *std::move(a);
  a.reset();
  EXPECT_EQ(b->bytes().data(), data);
  EXPECT_EQ(b->bytes().size(), 1u);
  EXPECT_TRUE(daemon_->WaitForMetric(kShared, 4096)) << "what was there is gone";
  b.reset();
  EXPECT_TRUE(daemon_->WaitForMetric(kShared, 0));
  SharedBuffer outlives = *session->Share(4096);
  session.reset();
  EXPECT_TRUE(daemon_->WaitForMetric(kShared, 0)) << "it went with the session";
  outlives.bytes()[4095] = std::byte{1};
}

TEST_F(ClientSharedTest, ErrorsHaveTheirReasons) {
  const Client client = Connect();
  const absl::StatusOr<Session> session = client.OpenSession();
  EXPECT_EQ(session->Share(0).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(session->Share(std::int64_t{65} << 20).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(client.GetCapabilities()->shared_memory_socket, socket_);
  ClientOptions options;
  options.shared_memory_socket = socket_ + ".none";
  const Client lost = Connect(options);
  const absl::Status nobody = lost.OpenSession()->Share(4096).status();
  EXPECT_EQ(nobody.code(), absl::StatusCode::kUnavailable) << nobody;
  EXPECT_EQ(DetailsOf(nobody).reason, reason::kNotConnected);
  const auto off = Daemon::Start();
  options = {.endpoint = off->endpoint()};
  const Client remote = *Client::Connect(options);
  const absl::Status status = remote.OpenSession()->Share(4096).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_EQ(DetailsOf(status).reason, reason::kSharedMemoryOff);
}

}  // namespace
}  // namespace kernd::client
