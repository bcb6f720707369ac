// Calls with large tensors, which the client moves ahead of them without being asked, and calls with resident ones.
#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <thread>
#include <vector>

#include "kernd/client/client.h"
#include "tests/unit/client_fake_tensors.h"

namespace kernd::client {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

std::vector<float> Ramp(std::int64_t size, float from) {
  std::vector<float> values(static_cast<std::size_t>(size));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = from + static_cast<float>(i % 8191);
  return values;
}

bool Same(const Tensor& tensor, const std::vector<float>& want) {
  const std::span<const float> got = tensor.values<float>();
  return std::equal(got.begin(), got.end(), want.begin(), want.end());
}

// The fake's product is B, its O is V, its LSE is K.
class RelayTest : public testing::Test {
 protected:
  RelayTest() {
    daemon_.matmul = [this](grpc::ServerContext& context, const v1::MatmulRequest& request, v1::MatmulReply& reply) {
      ++num_calls_;
      matmul_ = request.matmul();
      v1::Tensor a, b;
      const std::string& session = request.options().session_id();
      if (const grpc::Status status = tensors_.Resolve(context, session, request.matmul().a(), &a); !status.ok()) {
        return status;
      }
      if (const grpc::Status status = tensors_.Resolve(context, session, request.matmul().b(), &b); !status.ok()) {
        return status;
      }
      if (!answer_.ok()) return answer_;
      if (request.matmul().d().has_resident() && !no_room_.ok()) return no_room_;
      tensors_.Keep(session, request.matmul().d(), b, reply.mutable_d());
      reply.mutable_kernel()->set_name("fake");
      return grpc::Status::OK;
    };
    daemon_.attention = [this](grpc::ServerContext& context, const v1::AttentionRequest& request,
                               v1::AttentionReply& reply) {
      const std::string& session = request.options().session_id();
      v1::Tensor k, v, mask;
      if (const grpc::Status status = tensors_.Resolve(context, session, request.attention().k(), &k); !status.ok()) {
        return status;
      }
      if (const grpc::Status status = tensors_.Resolve(context, session, request.attention().v(), &v); !status.ok()) {
        return status;
      }
      if (const grpc::Status status = tensors_.Resolve(context, session, request.attention().mask(), &mask);
          !status.ok()) {
        return status;
      }
      tensors_.Keep(session, request.attention().o(), v, reply.mutable_o());
      tensors_.Keep(session, request.attention().lse(), k, reply.mutable_lse());
      return grpc::Status::OK;
    };
  }

  std::optional<Client> Connect(Transfer transfer, std::int64_t threshold = 4 * kMiB) {
    ClientOptions options;
    options.endpoint = daemon_.endpoint();
    options.transfer = transfer;
    options.stripe_channels = 4;
    options.stripe_threshold_bytes = threshold;
    options.retry.initial_backoff = absl::ZeroDuration();
    absl::StatusOr<Client> client = Client::Connect(options);
    EXPECT_TRUE(client.ok()) << client.status();
    return *std::move(client);
  }
  MatmulArgs Product() const {
    return {.a = View(a_, {1, std::ssize(a_)}), .b = View(b_, {std::ssize(b_), 1}), .transpose_b = true};
  }
  // No tensor of the client's is at the daemon, now and when its session ended.
  void ExpectNothingLeft(std::optional<Client>& client, int sessions = 1) {
    client.reset();
    EXPECT_EQ(tensors_.num_tensors(), 0u);
    EXPECT_EQ(tensors_.seen().left_behind, 0u);
    EXPECT_EQ(tensors_.seen().closed, sessions);
  }

  const std::vector<float> a_ = Ramp(kMiB, 1), b_ = Ramp(kMiB, 2);  // 4 MiB each
  FakeTensors tensors_;
  std::atomic<int> num_calls_ = 0;
  v1::MatmulOp matmul_;
  grpc::Status answer_, no_room_;  // to every product; to those whose result is to stay
  FakeDaemon daemon_{&tensors_};
};

TEST_F(RelayTest, LargeTensorsTravelAheadAndNothingIsLeft) {
  std::optional<Client> client = Connect(Transfer::kAuto);
  for (int i = 0; i < 3; ++i) {
    const absl::StatusOr<MatmulReply> reply = client->Matmul(Product());
    ASSERT_TRUE(reply.ok()) << reply.status();
    EXPECT_TRUE(Same(reply->d, b_));
    EXPECT_EQ(reply->kernel.name, "fake");
    EXPECT_TRUE(matmul_.a().has_resident());
    EXPECT_TRUE(matmul_.b().has_resident());
    EXPECT_GE(matmul_.a().resident().id(), std::uint64_t{1} << 63);
  }
  EXPECT_EQ(tensors_.seen().opened.size(), 1u);
  EXPECT_GT(tensors_.seen().put_peers.size(), 1u);
  ExpectNothingLeft(client);
}

TEST_F(RelayTest, SmallTensorsDoNot) {
  std::optional<Client> client = Connect(Transfer::kAuto, /*threshold=*/16 * kMiB);
  EXPECT_TRUE(Same(client->Matmul(Product())->d, b_));
  EXPECT_TRUE(tensors_.seen().opened.empty());
  client = Connect(Transfer::kInline, 0);
  EXPECT_TRUE(Same(client->Matmul(Product())->d, b_));
  EXPECT_TRUE(tensors_.seen().opened.empty());
}

TEST_F(RelayTest, SmallTensorsOfALargeCallStayInIt) {
  std::optional<Client> client = Connect(Transfer::kAuto);
  MatmulArgs args = Product();
  const std::vector<float> small = {1, 2, 3};
  args.bias = View(small, {3});
  args.transpose_b = false;  // [1, K] times [K, 1]: one element
  ASSERT_TRUE(client->Matmul(args).ok());
  EXPECT_TRUE(matmul_.a().has_resident());
  EXPECT_EQ(matmul_.bias().data().size(), 12u);
  EXPECT_FALSE(matmul_.d().has_resident());
  ExpectNothingLeft(client);
}

TEST_F(RelayTest, ResultsAreDownloadedAlsoIntoTheCallersMemory) {
  std::optional<Client> client = Connect(Transfer::kStriped);
  std::vector<float> o(b_.size()), lse(a_.size());
  const std::vector<std::uint8_t> mask(64, 1);
  AttentionArgs args;
  args.q = args.v = View(b_, {1, 1, 1024, 1024});
  args.k = View(a_, {1, 1, 1024, 1024});
  args.mask = ViewAs(DataType::kBool, mask, {1, 1, 1, 64});
  args.want_lse = true;
  args.o.into = std::as_writable_bytes(std::span(o));
  const absl::StatusOr<AttentionReply> reply = client->Attention(args);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(static_cast<const void*>(reply->o.bytes().data()), o.data());
  EXPECT_EQ(o, b_);
  EXPECT_TRUE(Same(reply->lse, a_));
  args.o.into = args.o.into.first(8);
  const absl::Status status = client->Attention(args).status();
  EXPECT_EQ(DetailsOf(status).field, "attention.o.into") << status;
  ExpectNothingLeft(client);
}

TEST_F(RelayTest, AFailedCallLeavesNothing) {
  answer_ = Refusal(grpc::INTERNAL, "a kernel failed", "KERNEL_FAILED");
  std::optional<Client> client = Connect(Transfer::kStriped);
  EXPECT_EQ(client->Matmul(Product()).status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(num_calls_, 1);
  ExpectNothingLeft(client);
}

TEST_F(RelayTest, AViewOfTheWrongSizeIsNotSent) {
  std::optional<Client> client = Connect(Transfer::kStriped);
  MatmulArgs args = Product();
  args.b.shape = {3};
  EXPECT_EQ(DetailsOf(client->Matmul(args).status()).field, "matmul.b");
  EXPECT_TRUE(tensors_.seen().opened.empty());
}

TEST_F(RelayTest, WithoutRoomAutoGoesInlineAndStripedIsAnError) {
  tensors_.quota_bytes = 6 * kMiB;
  std::optional<Client> client = Connect(Transfer::kAuto);
  const absl::StatusOr<MatmulReply> reply = client->Matmul(Product());
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_TRUE(Same(reply->d, b_));
  EXPECT_FALSE(matmul_.a().has_resident());
  ExpectNothingLeft(client);
  client = Connect(Transfer::kStriped);
  EXPECT_EQ(DetailsOf(client->Matmul(Product()).status()).reason, "QUOTA_FULL");
  ExpectNothingLeft(client, 2);
}

TEST_F(RelayTest, WithoutRoomForResultsAutoGoesInlineAndStripedIsAnError) {
  for (const char* why : {"QUOTA_FULL", "MEMORY_FULL", "TOO_LARGE"}) {
    SCOPED_TRACE(why);
    no_room_ = Refusal(grpc::RESOURCE_EXHAUSTED, "no room for the result", why, "matmul.d.resident.id");
    std::optional<Client> client = Connect(Transfer::kAuto);
    const absl::StatusOr<MatmulReply> reply = client->Matmul(Product());
    ASSERT_TRUE(reply.ok()) << reply.status();
    EXPECT_TRUE(Same(reply->d, b_));
    EXPECT_FALSE(matmul_.a().has_resident());
    EXPECT_EQ(tensors_.num_tensors(), 0u) << "the operands were gone before the call was made again";
    absl::StatusOr<Session> session = client->OpenSession();
    ASSERT_TRUE(session.ok()) << session.status();
    EXPECT_TRUE(session->Matmul(Product()).ok()) << "in a session of the caller's as well";
    client = Connect(Transfer::kStriped);
    EXPECT_EQ(DetailsOf(client->Matmul(Product()).status()).reason, why);
  }
}

// What a call without a session would not find either is no reason to make it again.
TEST_F(RelayTest, OtherRefusalsAreNotRepeatedInline) {
  for (const auto& [why, field] : std::vector<std::pair<const char*, const char*>>{
           {"MEMORY_FULL", ""}, {"QUEUE_FULL", ""}, {"TOO_LARGE", ""}, {"QUOTA_FULL", "matmul.a.resident.id"}}) {
    answer_ = Refusal(grpc::RESOURCE_EXHAUSTED, "full", why, field);
    std::optional<Client> client = Connect(Transfer::kAuto);
    const int before = num_calls_;
    EXPECT_EQ(DetailsOf(client->Matmul(Product()).status()).reason, why);
    EXPECT_EQ(num_calls_, before + 1) << why;
  }
  answer_ = grpc::Status::OK;
  tensors_.on_put = [](grpc::ServerContext&, const v1::PutRequest&, int) {
    return Refusal(grpc::RESOURCE_EXHAUSTED, "full", "BODY_BUDGET_FULL");
  };
  std::optional<Client> client = Connect(Transfer::kAuto);
  const int before = num_calls_;
  EXPECT_EQ(DetailsOf(client->Matmul(Product()).status()).reason, "BODY_BUDGET_FULL");
  EXPECT_EQ(num_calls_, before);
}

TEST_F(RelayTest, RoomForOneCallIsRoomForOneAfterTheOther) {
  tensors_.quota_bytes = 8 * kMiB;
  std::optional<Client> client = Connect(Transfer::kStriped);
  for (int i = 0; i < 10; ++i) {
    const absl::Status status = client->Matmul(Product()).status();
    ASSERT_TRUE(status.ok()) << status << ", call " << i;
  }
  ExpectNothingLeft(client);
}

TEST_F(RelayTest, ADaemonWithoutResidentTensorsIsServedInlineAndAskedOnce) {
  for (const grpc::Status& refusal :
       {grpc::Status(grpc::UNIMPLEMENTED, "no"), Refusal(grpc::FAILED_PRECONDITION, "off", "RESIDENT_MEMORY_OFF"),
        Refusal(grpc::RESOURCE_EXHAUSTED, "too many sessions", "SESSIONS_FULL", "", 10)}) {
    tensors_.open_answer = refusal;
    const std::size_t before = tensors_.seen().opened.size();
    std::optional<Client> client = Connect(Transfer::kAuto);
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(Same(client->Matmul(Product())->d, b_)) << refusal.error_message();
    EXPECT_EQ(tensors_.seen().opened.size(), before + 1) << refusal.error_message();
    client = Connect(Transfer::kStriped);
    EXPECT_EQ(static_cast<int>(client->Matmul(Product()).status().code()), refusal.error_code());
  }
  FakeDaemon old;
  old.matmul = [](grpc::ServerContext&, const v1::MatmulRequest& request, v1::MatmulReply& reply) {
    *reply.mutable_d() = request.matmul().b();
    return grpc::Status::OK;
  };
  ClientOptions options;
  options.endpoint = old.endpoint();
  options.stripe_threshold_bytes = 0;
  EXPECT_TRUE(Same(Client::Connect(options)->Matmul(Product())->d, b_));
}

TEST_F(RelayTest, AfterARestartAnotherSessionIsOpened) {
  std::optional<Client> client = Connect(Transfer::kAuto);
  ASSERT_TRUE(client->Matmul(Product()).ok());
  tensors_.Restart();
  const absl::StatusOr<MatmulReply> reply = client->Matmul(Product());
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_TRUE(Same(reply->d, b_));
  EXPECT_EQ(tensors_.seen().opened.size(), 2u);
  ExpectNothingLeft(client);
}

TEST_F(RelayTest, ManyThreadsAtOnce) {
  std::optional<Client> client = Connect(Transfer::kAuto);
  std::atomic<int> good = 0;
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 6; ++t) {
      threads.emplace_back([&, t] {
        const std::vector<float> mine = Ramp(kMiB + t, static_cast<float>(100 * t));
        MatmulArgs args = Product();
        args.b = View(mine, {1, std::ssize(mine)});
        for (int i = 0; i < 4; ++i) {
          const absl::StatusOr<MatmulReply> reply = client->Matmul(args);
          if (reply.ok() && Same(reply->d, mine)) ++good;
        }
      });
    }
  }
  EXPECT_EQ(good, 24);
  EXPECT_EQ(tensors_.seen().opened.size(), 1u);
  ExpectNothingLeft(client);
}

// --- sessions of the caller ------------------------------------------------------------------------------------------

TEST_F(RelayTest, ResidentOperandsAndResults) {
  std::optional<Client> client = Connect(Transfer::kAuto);
  absl::StatusOr<Session> session = client->OpenSession();
  ASSERT_TRUE(session.ok()) << session.status();
  ASSERT_TRUE(session->Put(1, View(b_, {1024, 1024})).ok());
  const std::vector<float> small = {1, 2, 3, 4};
  MatmulArgs args;
  args.a = View(small, {2, 2});
  args.b = ResidentTensor{.id = 1, .dtype = DataType::kF32, .shape = {2, 512}, .offset = 7, .strides = {1024, 1}};
  args.d.resident = 9;
  const absl::StatusOr<MatmulReply> reply = session->Matmul(args);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(matmul_.b().resident().id(), 1u);
  EXPECT_EQ(matmul_.b().resident().offset(), 7);
  EXPECT_EQ(std::vector<std::int64_t>(matmul_.b().strides().begin(), matmul_.b().strides().end()),
            (std::vector<std::int64_t>{1024, 1}));
  EXPECT_EQ(matmul_.a().data().size(), 16u);
  EXPECT_EQ(matmul_.d().resident().id(), 9u);
  EXPECT_EQ(reply->d.shape(), (std::vector<std::int64_t>{2, 512}));
  EXPECT_TRUE(reply->d.bytes().empty());
  std::vector<float> kept(b_.size());
  ASSERT_TRUE(session->Get(9, 0, std::as_writable_bytes(std::span(kept))).ok());
  EXPECT_EQ(kept, b_);
  EXPECT_EQ(session->List()->tensors.size(), 2u);

  // Without a session there is nothing that they could be resident in.
  EXPECT_EQ(DetailsOf(client->Matmul(args).status()).field, "matmul.d");
  args.d = {};
  EXPECT_EQ(DetailsOf(client->Matmul(args).status()).field, "matmul.b");
}

TEST_F(RelayTest, LargeOperandsBesideResidentOnesTravelInTheSameSession) {
  std::optional<Client> client = Connect(Transfer::kAuto);
  absl::StatusOr<Session> session = client->OpenSession();
  ASSERT_TRUE(session.ok()) << session.status();
  ASSERT_TRUE(session->Put(1, View(b_, {1024, 1024})).ok());
  const absl::StatusOr<MatmulReply> reply = session->Matmul(
      {.a = View(a_, {1024, 1024}), .b = ResidentTensor{.id = 1, .dtype = DataType::kF32, .shape = {1024, 1024}}});
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_TRUE(Same(reply->d, b_));
  EXPECT_TRUE(matmul_.a().has_resident());
  EXPECT_EQ(tensors_.seen().opened.size(), 1u);
  session->Release();
  *session = client->AttachSession("another");
  session->Release();
  client.reset();
  session = absl::CancelledError();  // its helpers have done what was left to do
  EXPECT_EQ(tensors_.num_tensors(), 1u);
}

TEST_F(RelayTest, AnInlineResultIsReceivedIntoTheCallersMemory) {
  std::optional<Client> client = Connect(Transfer::kInline);
  std::vector<float> d(b_.size());
  MatmulArgs args = Product();
  args.d.into = std::as_writable_bytes(std::span(d));
  const absl::StatusOr<MatmulReply> reply = client->Matmul(args);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(d, b_);
  EXPECT_EQ(static_cast<const void*>(reply->d.bytes().data()), d.data());
  EXPECT_EQ(reply->d.shape(), (std::vector<std::int64_t>{std::ssize(b_), 1}));
  for (const std::size_t size : {d.size() - 1, std::size_t{1}}) {
    args.d.into = std::as_writable_bytes(std::span(d).first(size));
    const absl::Status status = client->Matmul(args).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_EQ(DetailsOf(status).field, "matmul.d.into") << status;
  }
}

}  // namespace
}  // namespace kernd::client
