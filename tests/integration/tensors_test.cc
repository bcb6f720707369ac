// Tensors that a client keeps in the daemon: put, got, listed, deleted, with the stubs that protoc makes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <thread>

#include "tests/support/daemon.h"
#include "tests/support/requests.h"
#include "tests/support/session_client.h"

namespace kernd::testing {
namespace {

using grpc::StatusCode;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Le;

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr char kResident[] = "kernd_memory_used_bytes{pool=\"resident\"}";

// One daemon for the tests that leave it as it was.
class TensorsTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { daemon_ = Daemon::Start({"--advertise", "10.1.2.3:50051"}).release(); }
  static void TearDownTestSuite() {
    EXPECT_TRUE(daemon_->WaitForMetric(kResident, 0)) << "every test gave back what it held";
    EXPECT_EQ(daemon_->Stop(), 0);
    delete daemon_;
  }
  void SetUp() override { ASSERT_NE(daemon_, nullptr); }
  ~TensorsTest() override { session_.Close(); }

  static Daemon* daemon_;
  SessionClient session_{daemon_->endpoint()};
};
Daemon* TensorsTest::daemon_ = nullptr;

TEST_F(TensorsTest, OpeningASessionTellsAllThatAClientNeeds) {
  EXPECT_EQ(session_.opened.session_id().size(), 16u);
  EXPECT_NE(session_.opened.server_epoch(), 0u);
  EXPECT_EQ(session_.opened.endpoint(), "10.1.2.3:50051");
  EXPECT_EQ(session_.opened.lease().seconds(), 600);
  EXPECT_GT(session_.opened.quota_bytes(), 0);
  v1::OpenSessionRequest modest;
  modest.mutable_lease()->set_seconds(30);
  modest.mutable_lease()->set_nanos(5);
  modest.set_quota_bytes(1000);
  SessionClient other(daemon_->endpoint(), modest);
  EXPECT_EQ(other.opened.lease().seconds(), 30);
  EXPECT_EQ(other.opened.lease().nanos(), 5);
  EXPECT_EQ(other.opened.quota_bytes(), 1000);
  EXPECT_NE(other.opened.session_id(), session_.opened.session_id());
  v1::OpenSessionRequest wrong;
  wrong.mutable_lease()->set_nanos(-1);
  EXPECT_EQ(SessionClient(daemon_->endpoint(), wrong).opening.field, "lease");
  wrong.Clear();
  wrong.set_quota_bytes(-1);
  EXPECT_EQ(SessionClient(daemon_->endpoint(), wrong).opening.field, "quota_bytes");
  wrong.Clear();
  wrong.set_label(std::string(129, 'x'));
  EXPECT_EQ(SessionClient(daemon_->endpoint(), wrong).opening.field, "label");
  EXPECT_TRUE(other.Close().status.ok());
}

TEST_F(TensorsTest, WhatIsPutIsGot) {
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{4096}, std::size_t{4097}, 5 * kMiB + 3}) {
    const std::string data = TensorBytes(bytes);
    const RawReply put = session_.PutAll(bytes, data);
    ASSERT_TRUE(put.status.ok()) << put.status.error_message();
    const RawReply got = session_.Get(bytes);
    ASSERT_TRUE(got.status.ok()) << got.status.error_message();
    EXPECT_TRUE(got.body == data) << bytes << " bytes";
    EXPECT_EQ(session_.info.id(), bytes);
    EXPECT_EQ(session_.info.bytes(), static_cast<std::int64_t>(bytes));
    EXPECT_EQ(session_.info.state(), v1::TENSOR_STATE_READY);
  }
  EXPECT_THAT(session_.messages, ElementsAre(2 * kMiB, 2 * kMiB, kMiB + 3)) << "chunks of 2 MiB unless told otherwise";
}

TEST_F(TensorsTest, TheTensorKeepsItsTypeAndShape) {
  v1::PutHeader header = session_.Header(1, 0);
  header.set_dtype(v1::DATA_TYPE_F16);
  header.clear_shape();
  for (const int dim : {2, 3, 4}) header.add_shape(dim);
  ASSERT_TRUE(session_.PutAll(header, TensorBytes(48)).status.ok());
  v1::PutHeader empty = session_.Header(2, 0);
  EXPECT_TRUE(session_.PutAll(empty, "").status.ok());
  ASSERT_TRUE(session_.Get(1).status.ok());
  EXPECT_EQ(session_.info.dtype(), v1::DATA_TYPE_F16);
  EXPECT_THAT(session_.info.shape(), ElementsAre(2, 3, 4));
  EXPECT_EQ(session_.info.users(), 1) << "this Get";
  ASSERT_TRUE(session_.Get(2).status.ok());
  EXPECT_THAT(session_.messages, ElementsAre(0)) << "the header comes even where there is no byte";
  v1::ListReply list;
  ASSERT_TRUE(session_.List(list).status.ok());
  ASSERT_EQ(list.tensors_size(), 2);
  EXPECT_EQ(list.tensors(0).id(), 1u);
  EXPECT_EQ(list.tensors(0).bytes(), 48);
  EXPECT_EQ(list.tensors(1).state(), v1::TENSOR_STATE_READY);
  EXPECT_EQ(list.used_bytes(), 512 + 2 * kTensorRecord);
  EXPECT_EQ(list.quota_bytes(), session_.opened.quota_bytes());
  EXPECT_THAT(list.lease_left().seconds(), AllOf(Le(600), ::testing::Gt(500)));
}

TEST_F(TensorsTest, RangesAreGotInChunksOfAnySize) {
  const std::string data = TensorBytes(3 * kMiB);
  ASSERT_TRUE(session_.PutAll(1, data).status.ok());
  v1::GetRequest request;
  request.set_session_id(session_.opened.session_id());
  request.set_id(1);
  for (const auto& [offset, length, chunk] : std::vector<std::array<std::int64_t, 3>>{
           {0, 0, 1000}, {5, 1, 0}, {7, 100'000, 33'333}, {3 * kMiB, 0, 0}, {3 * kMiB - 1, 1, 9}, {1, 0, 1LL << 60}}) {
    request.set_offset_bytes(offset);
    request.set_length_bytes(length);
    request.set_chunk_bytes(chunk);
    const RawReply got = session_.Get(request);
    const std::size_t bytes =
        length == 0 ? data.size() - static_cast<std::size_t>(offset) : static_cast<std::size_t>(length);
    EXPECT_TRUE(got.status.ok() && got.body == data.substr(static_cast<std::size_t>(offset), bytes))
        << offset << " " << length;
    EXPECT_THAT(session_.messages, Each(Le(chunk == 0 ? 2 << 20 : chunk)));
  }
  for (const auto& [offset, length] : std::vector<std::array<std::int64_t, 2>>{{3 * kMiB + 1, 0},
                                                                               {0, 3 * kMiB + 1},
                                                                               {1, 3 * kMiB},
                                                                               {INT64_MAX, 0},
                                                                               {1, INT64_MAX},
                                                                               {INT64_MAX, INT64_MAX}}) {
    request.set_offset_bytes(offset);
    request.set_length_bytes(length);
    const RawReply got = session_.Get(request);
    EXPECT_EQ(got.status.error_code(), StatusCode::OUT_OF_RANGE) << offset << " " << length;
    EXPECT_EQ(got.reason, "OUT_OF_RANGE");
  }
  request.set_offset_bytes(-1);
  EXPECT_EQ(session_.Get(request).field, "offset_bytes");
  request.set_offset_bytes(0);
  request.set_length_bytes(-1);
  EXPECT_EQ(session_.Get(request).field, "length_bytes");
  request.set_length_bytes(0);
  request.set_chunk_bytes(-1);
  EXPECT_EQ(session_.Get(request).field, "chunk_bytes");
}

TEST_F(TensorsTest, ChunksMayComeInAnyOrder) {
  const std::string data = TensorBytes(kMiB);
  constexpr std::size_t kChunk = 10'007;
  std::vector<std::size_t> offsets;
  for (std::size_t at = 0; at < data.size(); at += kChunk) offsets.push_back(at);
  const unsigned seed = std::random_device{}();
  std::shuffle(offsets.begin(), offsets.end(), std::mt19937(seed));
  const auto put = session_.Put(session_.Header(1, kMiB));
  for (const std::size_t at : offsets) ASSERT_TRUE(put->Send(static_cast<std::int64_t>(at), data.substr(at, kChunk)));
  const RawReply ended = put->Finish();
  EXPECT_TRUE(ended.status.ok()) << "seed " << seed << ": " << ended.status.error_message();
  EXPECT_EQ(put->reply.state(), v1::TENSOR_STATE_READY);
  EXPECT_EQ(put->reply.received_bytes(), static_cast<std::int64_t>(kMiB));
  EXPECT_TRUE(session_.Get(1).body == data) << "seed " << seed;
}

TEST_F(TensorsTest, StreamsOnSeveralConnectionsFillOneTensor) {
  const std::string data = TensorBytes(32 * kMiB);
  constexpr std::size_t kStreams = 4, kChunk = kMiB;
  const v1::PutHeader header = session_.Header(1, static_cast<std::int64_t>(data.size()));
  std::vector<std::thread> streams;
  for (std::size_t s = 0; s < kStreams; ++s) {
    streams.emplace_back([&, s] {
      const auto stub = v1::Tensors::NewStub(Connect(daemon_->endpoint()));  // a connection of its own
      PutStream put(*stub, header);
      for (std::size_t at = s * kChunk; at < data.size(); at += kStreams * kChunk) {
        EXPECT_TRUE(put.Send(static_cast<std::int64_t>(at), data.substr(at, kChunk)));
      }
      const RawReply ended = put.Finish();
      EXPECT_TRUE(ended.status.ok()) << ended.status.error_message();
    });
  }
  for (std::thread& stream : streams) stream.join();
  EXPECT_TRUE(session_.Get(1).body == data);
}

TEST_F(TensorsTest, ARepeatedPutIsOne) {
  const std::string data = TensorBytes(2 * kMiB);
  ASSERT_TRUE(session_.PutAll(1, data).status.ok());
  const auto again = session_.Put(session_.Header(1, static_cast<std::int64_t>(data.size())));
  ASSERT_TRUE(again->Send(0, TensorBytes(kMiB, 99)));
  ASSERT_TRUE(again->Finish().status.ok());
  EXPECT_EQ(again->reply.state(), v1::TENSOR_STATE_READY);
  EXPECT_EQ(again->reply.received_bytes(), static_cast<std::int64_t>(data.size()));
  EXPECT_TRUE(session_.Get(1).body == data) << "a READY tensor takes no bytes";
  // A higher version takes them, a lower one is too late.
  const std::string other = TensorBytes(100, 5);
  ASSERT_TRUE(session_.PutAll(session_.Header(1, 100, 7), other).status.ok());
  EXPECT_TRUE(session_.Get(1).body == other);
  const RawReply late = session_.PutAll(session_.Header(1, 100, 6), other);
  EXPECT_EQ(late.status.error_code(), StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(late.reason, "OLD_VERSION");
  EXPECT_EQ(late.field, "header.version");
}

TEST_F(TensorsTest, APutMayGoOnWhereAnotherBroke) {
  const std::string data = TensorBytes(kMiB);
  const v1::PutHeader header = session_.Header(1, kMiB);
  const auto first = session_.Put(header);
  ASSERT_TRUE(first->Send(0, data.substr(0, 1000)));
  ASSERT_TRUE(first->Finish().status.ok());
  EXPECT_EQ(first->reply.state(), v1::TENSOR_STATE_FILLING);
  EXPECT_EQ(first->reply.received_bytes(), 1000);
  const RawReply early = session_.Get(1);
  EXPECT_EQ(early.status.error_code(), StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(early.reason, "NOT_READY");
  EXPECT_TRUE(early.retry_after_s.has_value());
  const auto second = session_.Put(header);
  ASSERT_TRUE(second->Send(1000, data.substr(1000)));
  ASSERT_TRUE(second->Finish().status.ok());
  EXPECT_EQ(second->reply.state(), v1::TENSOR_STATE_READY);
  EXPECT_TRUE(session_.Get(1).body == data);
}

TEST_F(TensorsTest, DeletingFreesAndIsRepeatable) {
  ASSERT_TRUE(session_.PutAll(1, TensorBytes(1024)).status.ok());
  ASSERT_TRUE(session_.PutAll(2, TensorBytes(2048)).status.ok());
  ASSERT_TRUE(session_.Delete({1, 3}).status.ok());
  EXPECT_EQ(session_.freed_bytes, 1024 + kTensorRecord);
  ASSERT_TRUE(session_.Delete({1, 3}).status.ok());
  EXPECT_EQ(session_.freed_bytes, 0);
  EXPECT_EQ(session_.Get(1).reason, "TENSOR_NOT_FOUND");
  ASSERT_TRUE(session_.Close().status.ok());
  EXPECT_EQ(session_.freed_bytes, 2048 + kTensorRecord);
  EXPECT_EQ(session_.Get(2).reason, "SESSION_NOT_FOUND");
}

TEST_F(TensorsTest, LateStreamsOfADeletedUploadAreRefused) {
  const std::string data = TensorBytes(2 * kMiB);
  const v1::PutHeader header = session_.Header(1, 2 * kMiB, 5);
  const auto first = session_.Put(header);
  ASSERT_TRUE(first->Send(0, data.substr(0, kMiB)));
  v1::ListReply list;
  while (session_.List(list).status.ok() && list.tensors_size() == 0) {
  }
  ASSERT_TRUE(session_.Delete({1}).status.ok());
  const auto second = session_.Put(header);
  second->Send(kMiB, data.substr(kMiB));
  for (PutStream* stream : {second.get(), first.get()}) {
    stream->Send(kMiB, data.substr(kMiB));
    const RawReply late = stream->Finish();
    EXPECT_EQ(late.status.error_code(), StatusCode::NOT_FOUND) << late.status.error_message();
    EXPECT_EQ(late.reason, "TENSOR_NOT_FOUND");
  }
  ASSERT_TRUE(session_.List(list).status.ok());
  EXPECT_EQ(list.tensors_size(), 0);
  // Another upload under the same id is another matter.
  for (const std::uint64_t version : {0, 6}) {
    ASSERT_TRUE(session_.PutAll(session_.Header(1, 2 * kMiB, version), data).status.ok()) << version;
    EXPECT_TRUE(session_.Get(1).body == data);
  }
}

TEST_F(TensorsTest, ATensorThatIsDeletedWhileItIsReadIsReadToItsEnd) {
  const std::string data = TensorBytes(24 * kMiB);
  ASSERT_TRUE(session_.PutAll(1, data).status.ok());
  v1::GetRequest request;
  request.set_session_id(session_.opened.session_id());
  request.set_id(1);
  grpc::ClientContext context;
  const auto reader = session_.stub->Get(&context, request);
  v1::GetReply reply;
  ASSERT_TRUE(reader->Read(&reply));
  ASSERT_TRUE(session_.Delete({1}).status.ok());
  EXPECT_EQ(session_.freed_bytes, kTensorRecord) << "its bytes are in use";
  // Its id is free at once, and so is its name for another tensor.
  EXPECT_EQ(session_.Get(1).reason, "TENSOR_NOT_FOUND");
  ASSERT_TRUE(session_.PutAll(1, TensorBytes(24 * kMiB, 1)).status.ok());
  std::string body = reply.data();
  while (reader->Read(&reply)) body += reply.data();
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_TRUE(body == data);
  EXPECT_TRUE(daemon_->WaitForMetric(kResident, 24.0 * kMiB + kTensorRecord)) << "only the new one is left";
}

TEST_F(TensorsTest, TensorsAboveTheMessageLimitPass) {
  const auto small = Daemon::Start({"--max-message-bytes", "4MiB", "--body-budget", "64MiB"});
  ASSERT_NE(small, nullptr);
  SessionClient session(small->endpoint());
  const std::string data = TensorBytes(96 * kMiB);
  const std::int64_t before = small->ResidentBytes();
  ASSERT_TRUE(session.PutAll(1, data).status.ok());
  EXPECT_LT(small->PeakResidentBytes() - before, static_cast<std::int64_t>(data.size() + data.size() * 3 / 10))
      << "held once";
  EXPECT_TRUE(session.Get(1).body == data);
  ASSERT_TRUE(session.Close().status.ok());
  EXPECT_TRUE(small->WaitForMetric(kResident, 0));
  EXPECT_LT(small->ResidentBytes() - before, static_cast<std::int64_t>(data.size() / 2)) << "and given back";
}

TEST_F(TensorsTest, MetricsCountWhatIsKept) {
  const auto daemon = Daemon::Start();
  ASSERT_NE(daemon, nullptr);
  SessionClient session(daemon->endpoint());
  ASSERT_TRUE(session.PutAll(1, TensorBytes(1000)).status.ok());
  const auto put = session.Put(session.Header(2, 1000));
  ASSERT_TRUE(put->Send(0, TensorBytes(10)));
  EXPECT_TRUE(daemon->WaitForMetric("kernd_sessions", 1));
  EXPECT_TRUE(daemon->WaitForMetric("kernd_session_tensors", 2));
  EXPECT_TRUE(daemon->WaitForMetric("kernd_session_tensors_filling", 1));
  EXPECT_TRUE(daemon->WaitForMetric(kResident, 2048 + 2 * kTensorRecord));
  EXPECT_TRUE(daemon->WaitForMetric("kernd_memory_used_bytes{pool=\"memory\"}", 2048 + 2 * kTensorRecord))
      << "of the same memory as calls";
  EXPECT_TRUE(daemon->WaitForMetric("kernd_requests_total{code=\"OK\",method=\"Tensors/Put\"}", 1));
}

}  // namespace
}  // namespace kernd::testing
