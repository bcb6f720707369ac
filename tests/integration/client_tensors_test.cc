// Sessions, resident tensors and large calls of the client library against a real daemon.
#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <random>
#include <vector>

#include "absl/time/clock.h"
#include "kernd/client/client.h"
#include "tests/support/daemon.h"

namespace kernd::client {
namespace {

using kernd::testing::Daemon;

constexpr std::int64_t kMiB = std::int64_t{1} << 20;
constexpr unsigned kSeed = 20;

std::vector<float> Random(std::int64_t size, unsigned stream) {
  std::mt19937 random(kSeed + stream);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(size));
  for (float& x : values) x = normal(random);
  return values;
}

Client Connect(const Daemon& daemon, Transfer transfer) {
  ClientOptions options;
  options.endpoint = daemon.endpoint();
  options.transfer = transfer;
  options.stripe_channels = 4;
  absl::StatusOr<Client> client = Client::Connect(options);
  EXPECT_TRUE(client.ok()) << client.status();
  return *std::move(client);
}

bool SameBits(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && a.bytes().size() == b.bytes().size() &&
         std::memcmp(a.bytes().data(), b.bytes().data(), a.bytes().size()) == 0;
}

class ClientTensorsTest : public ::testing::Test {
 protected:
  const std::unique_ptr<Daemon> daemon_ = Daemon::Start();
  const std::int64_t n_ = 1024;
  const std::vector<float> a_ = Random(n_ * n_, 1), b_ = Random(n_ * n_, 2);
  const MatmulArgs product_ = {.a = View(a_, {n_, n_}), .b = View(b_, {n_, n_})};
};

// The way of the tensors changes no bit of the result.
TEST_F(ClientTensorsTest, InlineStripedAndResidentAgree) {
  const absl::StatusOr<MatmulReply> inline_reply = Connect(*daemon_, Transfer::kInline).Matmul(product_);
  ASSERT_TRUE(inline_reply.ok()) << inline_reply.status();
  const Client client = Connect(*daemon_, Transfer::kStriped);
  for (int i = 0; i < 3; ++i) {
    const absl::StatusOr<MatmulReply> striped = client.Matmul(product_);
    ASSERT_TRUE(striped.ok()) << striped.status();
    EXPECT_TRUE(SameBits(striped->d, inline_reply->d)) << "call " << i << ", seed " << kSeed;
  }
  const absl::StatusOr<Session> session = client.OpenSession();
  ASSERT_TRUE(session.ok()) << session.status();
  ASSERT_TRUE(session->Put(1, View(b_, {n_, n_})).ok());
  MatmulArgs args = product_;
  args.b = ResidentTensor{.id = 1, .dtype = DataType::kF32, .shape = {n_, n_}};
  args.d.resident = 2;
  const absl::StatusOr<MatmulReply> kept = session->Matmul(args);
  ASSERT_TRUE(kept.ok()) << kept.status();
  const absl::StatusOr<Tensor> d = session->Get(2);
  ASSERT_TRUE(d.ok()) << d.status();
  EXPECT_TRUE(SameBits(*d, inline_reply->d)) << "seed " << kSeed;
  // The library deletes its own when a call has its reply, and nobody waits for that.
  absl::StatusOr<SessionContents> contents = session->List();
  for (int tries = 0; contents.ok() && contents->tensors.size() > 2 && tries < 2000; ++tries) {
    absl::SleepFor(absl::Milliseconds(5));
    contents = session->List();
  }
  ASSERT_TRUE(contents.ok()) << contents.status();
  EXPECT_EQ(contents->tensors.size(), 2u) << "the library's own are gone";
}

TEST_F(ClientTensorsTest, AViewOfAResidentTensor) {
  const Client client = Connect(*daemon_, Transfer::kAuto);
  const absl::StatusOr<Session> session = client.OpenSession();
  ASSERT_TRUE(session.ok()) << session.status();
  ASSERT_TRUE(session->Put(1, View(b_, {n_, n_})).ok());
  const std::vector<float> one = {1};
  // Columns 5 to 8 of row 3.
  const absl::StatusOr<MatmulReply> reply = session->Matmul(
      {.a = View(one, {1, 1}),
       .b = ResidentTensor{
           .id = 1, .dtype = DataType::kF32, .shape = {1, 4}, .offset = 3 * n_ + 5, .strides = {n_, 1}}});
  ASSERT_TRUE(reply.ok()) << reply.status();
  for (std::size_t i = 0; i < 4; ++i)
    EXPECT_EQ(reply->d.values<float>()[i], b_[static_cast<std::size_t>(3 * n_ + 5) + i]);
}

TEST_F(ClientTensorsTest, LargeTensorsComeBackWhole) {
  const Client client = Connect(*daemon_, Transfer::kStriped);
  const absl::StatusOr<Session> session = client.OpenSession();
  ASSERT_TRUE(session.ok()) << session.status();
  for (const std::int64_t size : {std::int64_t{0}, std::int64_t{1}, kMiB / 4, 7 * kMiB + 3}) {
    const std::vector<float> values = Random(size, 3);
    const absl::Status put = session->Put(5, View(values, {size}));
    ASSERT_TRUE(put.ok()) << put << ", " << size;
    const absl::StatusOr<Tensor> back = session->Get(5);
    ASSERT_TRUE(back.ok()) << back.status() << ", " << size;
    EXPECT_EQ(back->bytes().size(), values.size() * sizeof(float));
    EXPECT_TRUE(std::memcmp(back->bytes().data(), values.data(), back->bytes().size()) == 0) << size;
  }
}

// Operands find room in the library's session, the result does not, as it has for itself what a session may have.
TEST_F(ClientTensorsTest, ResultsWithoutRoomInTheSessionComeInTheReply) {
  const std::unique_ptr<Daemon> daemon = Daemon::Start({"--session-quota", "24MiB"});
  ASSERT_NE(daemon, nullptr);
  const std::int64_t size = 2560, depth = 1024;  // 10 MiB, 10 MiB and 25 MiB
  const std::vector<float> a = Random(size * depth, 4), b = Random(depth * size, 5);
  const MatmulArgs product = {.a = View(a, {size, depth}), .b = View(b, {depth, size})};
  const absl::StatusOr<MatmulReply> automatic = Connect(*daemon, Transfer::kAuto).Matmul(product);
  ASSERT_TRUE(automatic.ok()) << automatic.status();
  EXPECT_TRUE(SameBits(automatic->d, Connect(*daemon, Transfer::kInline).Matmul(product)->d)) << "seed " << kSeed;
  const absl::Status striped = Connect(*daemon, Transfer::kStriped).Matmul(product).status();
  EXPECT_EQ(DetailsOf(striped).field, "matmul.d.resident.id") << striped;
}

TEST_F(ClientTensorsTest, ErrorsHaveTheirReasons) {
  const Client client = Connect(*daemon_, Transfer::kAuto);
  const absl::StatusOr<Session> session = client.OpenSession({.quota_bytes = kMiB});
  ASSERT_TRUE(session.ok()) << session.status();
  EXPECT_EQ(session->quota_bytes(), kMiB);
  EXPECT_EQ(session->Get(9).status().code(), absl::StatusCode::kNotFound);
  const absl::Status large = session->Put(1, View(a_, {n_, n_}));
  EXPECT_EQ(large.code(), absl::StatusCode::kResourceExhausted) << large;
  EXPECT_EQ(session->List()->tensors.size(), 0u);
  const Session unknown = client.AttachSession(std::string(16, 'x'));
  EXPECT_EQ(DetailsOf(unknown.List().status()).reason, reason::kSessionNotFound);
  const Session old = client.AttachSession(std::string(16, 'x'), session->server_epoch() + 1);
  EXPECT_EQ(DetailsOf(old.List().status()).reason, reason::kServerRestarted);
}

}  // namespace
}  // namespace kernd::client
