// Sessions of the client: their life, and tensors on their way to them and back.
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <optional>
#include <stop_token>
#include <thread>
#include <vector>

#include "kernd/client/client.h"
#include "tests/unit/client_fake_tensors.h"

namespace kernd::client {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

std::vector<std::uint8_t> Pattern(std::int64_t size, unsigned seed) {
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(size));
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>((i >> 8) * 131 + i * 7 + seed);
  return bytes;
}

bool Same(std::span<const std::byte> got, std::span<const std::uint8_t> want) {
  const std::span<const std::byte> bytes = std::as_bytes(want);
  return std::equal(got.begin(), got.end(), bytes.begin(), bytes.end());
}

ClientOptions Options(const std::string& endpoint, Transfer transfer = Transfer::kStriped, int stripes = 4) {
  ClientOptions options;
  options.endpoint = endpoint;
  options.transfer = transfer;
  options.stripe_channels = stripes;
  options.retry.initial_backoff = absl::ZeroDuration();
  return options;
}

class SessionTest : public testing::Test {
 protected:
  Client Connect(Transfer transfer = Transfer::kStriped, int stripes = 4) {
    absl::StatusOr<Client> client = Client::Connect(Options(daemon_.endpoint(), transfer, stripes));
    EXPECT_TRUE(client.ok()) << client.status();
    return *std::move(client);
  }
  Session Open(const Client& client, const SessionOptions& options = {}) {
    absl::StatusOr<Session> session = client.OpenSession(options);
    EXPECT_TRUE(session.ok()) << session.status();
    return *std::move(session);
  }

  FakeTensors tensors_;
  FakeDaemon daemon_{&tensors_};
};

TEST_F(SessionTest, WishesArriveAndWhatWasGrantedComesBack) {
  tensors_.quota_bytes = 12345;
  const Client client = Connect();
  const Session session =
      Open(client, {.lease = absl::Milliseconds(90'500), .quota_bytes = 5000, .label = "weights of a model"});
  const v1::OpenSessionRequest request = tensors_.seen().opened.at(0);
  EXPECT_EQ(request.lease().seconds(), 90);
  EXPECT_EQ(request.lease().nanos(), 500'000'000);
  EXPECT_EQ(request.quota_bytes(), 5000);
  EXPECT_EQ(request.label(), "weights of a model");
  EXPECT_EQ(session.id(), "session-10000001");
  EXPECT_EQ(session.server_epoch(), 7u);
  EXPECT_EQ(session.endpoint(), daemon_.endpoint());
  EXPECT_EQ(session.lease(), absl::Minutes(10));
  EXPECT_EQ(session.quota_bytes(), 12345);
}

TEST_F(SessionTest, ClosesWithItsHandleUnlessReleased) {
  const Client client = Connect();
  {
    Session session = Open(client);
    Session moved = std::move(session);
    EXPECT_TRUE(moved.Put(1, View(std::vector<float>{1, 2}, {2})).ok());
    EXPECT_EQ(tensors_.seen().closed, 0);
  }
  EXPECT_EQ(tensors_.seen().closed, 1);
  EXPECT_EQ(tensors_.num_tensors(), 0u);
  std::string id;
  {
    Session session = Open(client);
    id = session.id();
    EXPECT_TRUE(session.Put(2, View(std::vector<float>{3}, {})).ok());
    session.Release();
  }
  EXPECT_EQ(tensors_.seen().closed, 1);
  Session again = client.AttachSession(id);
  const absl::StatusOr<Tensor> tensor = again.Get(2);
  ASSERT_TRUE(tensor.ok()) << tensor.status();
  EXPECT_EQ(tensor->values<float>()[0], 3);
  EXPECT_TRUE(again.Close().ok());
  EXPECT_TRUE(again.Close().ok()) << "gone already";
  EXPECT_EQ(tensors_.seen().closed, 2);
}

struct Way {
  Transfer transfer;
  int stripes;
};

void PrintTo(const Way& way, std::ostream* out) {
  *out << (way.transfer == Transfer::kInline ? "inline, " : "striped, ") << way.stripes;
}

class TransferTest : public SessionTest, public testing::WithParamInterface<Way> {};

// Around the size of a chunk, and more chunks than streams.
TEST_P(TransferTest, TensorsGoAndComeBackWhole) {
  const Client client = Connect(GetParam().transfer, GetParam().stripes);
  const Session session = Open(client);
  std::uint64_t id = 0;
  for (const std::int64_t size : {std::int64_t{0}, std::int64_t{1}, kMiB - 1, kMiB, kMiB + 1, 9 * kMiB + 12345}) {
    const auto bytes = Pattern(size, 3 * static_cast<unsigned>(++id));
    const absl::Status put = session.Put(id, ViewAs(DataType::kF8E4M3, bytes, {1, size}));
    ASSERT_TRUE(put.ok()) << put << ", " << size << " bytes";
    const absl::StatusOr<Tensor> whole = session.Get(id);
    ASSERT_TRUE(whole.ok()) << whole.status() << ", " << size << " bytes";
    EXPECT_EQ(whole->dtype(), DataType::kF8E4M3);
    EXPECT_EQ(whole->shape(), (std::vector<std::int64_t>{1, size}));
    EXPECT_TRUE(Same(whole->bytes(), bytes)) << size << " bytes";
    for (const std::int64_t begin : {std::int64_t{0}, std::int64_t{1}, kMiB - 1, kMiB, 2 * kMiB + 7}) {
      for (const std::int64_t length : {std::int64_t{0}, std::int64_t{1}, kMiB, 5 * kMiB + 1, size - begin}) {
        if (length < 0 || begin + length > size) continue;
        std::vector<std::uint8_t> part(static_cast<std::size_t>(length) + 2, 0xee);
        const absl::Status got =
            session.Get(id, begin, std::as_writable_bytes(std::span(part).subspan(1, part.size() - 2)));
        ASSERT_TRUE(got.ok()) << got << ", " << length << " bytes from " << begin << " on of " << size;
        EXPECT_TRUE(std::equal(part.begin() + 1, part.end() - 1, bytes.begin() + begin)) << length << " from " << begin;
        EXPECT_EQ(part.front(), 0xee);
        EXPECT_EQ(part.back(), 0xee);
      }
    }
  }
  FakeTensors::Seen seen = tensors_.seen();
  EXPECT_LE(seen.largest_message, static_cast<std::size_t>(kMiB + 64)) << "4 MiB is what servers take by default";
  if (GetParam().transfer == Transfer::kInline || GetParam().stripes == 1) {
    EXPECT_EQ(seen.put_headers.size(), id) << "a stream for each upload";
    return;
  }
  // Whether a second lane finds chunks left is a matter of speed, but not every time.
  const auto bytes = Pattern(9 * kMiB, 1);
  std::vector<std::uint8_t> back(bytes.size());
  const auto several = [&] {
    return seen.put_headers.size() > id && seen.put_peers.size() > 1 && seen.get_peers.size() > 1;
  };
  for (int tries = 0; tries < 200 && !several(); ++tries, seen = tensors_.seen()) {
    ASSERT_TRUE(session.Put(++id, ViewAs(DataType::kF8E4M3, bytes, {9 * kMiB})).ok());
    ASSERT_TRUE(session.Get(id, 0, std::as_writable_bytes(std::span(back))).ok());
    ASSERT_TRUE(session.Delete({id}).ok());
  }
  EXPECT_TRUE(several()) << seen.put_headers.size() << " streams of " << id << " uploads, " << seen.put_peers.size()
                         << " connections for them and " << seen.get_peers.size() << " for downloads";
}

INSTANTIATE_TEST_SUITE_P(Ways, TransferTest,
                         testing::Values(Way{Transfer::kInline, 4}, Way{Transfer::kStriped, 1},
                                         Way{Transfer::kStriped, 4}));

TEST_F(SessionTest, ARangeBeyondTheEndIsRefused) {
  const Client client = Connect();
  const Session session = Open(client);
  ASSERT_TRUE(session.Put(1, View(std::vector<float>{1, 2}, {2})).ok());
  std::vector<std::byte> into(5);
  EXPECT_EQ(session.Get(1, 4, into).code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(DetailsOf(session.Get(1, -1, into)).field, "offset_bytes");
  EXPECT_EQ(session.Get(2).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(DetailsOf(session.Put(1, {DataType::kF32, {3}, into})).field, "tensor");
}

TEST_F(SessionTest, AllStreamsOfAnUploadHaveOneVersionAndTheNextAHigherOne) {
  const Client client = Connect();
  const Session session = Open(client);
  const auto bytes = Pattern(6 * kMiB, 1), others = Pattern(6 * kMiB, 2);
  ASSERT_TRUE(session.Put(1, ViewAs(DataType::kU8, bytes, {6 * kMiB})).ok());
  const std::uint64_t version = tensors_.seen().put_headers.at(0).version();
  EXPECT_GT(version, 0u);
  for (const v1::PutHeader& header : tensors_.seen().put_headers) EXPECT_EQ(header.version(), version);
  const std::size_t before = tensors_.seen().put_headers.size();
  ASSERT_TRUE(session.Put(1, ViewAs(DataType::kU8, others, {6 * kMiB})).ok());
  EXPECT_GT(tensors_.seen().put_headers.at(before).version(), version);
  EXPECT_TRUE(Same(session.Get(1)->bytes(), others)) << "the second upload is not taken for a retry of the first";
}

TEST_F(SessionTest, DeleteAndList) {
  const Client client = Connect();
  const Session session = Open(client);
  for (const std::uint64_t id : {5, 6, 7}) ASSERT_TRUE(session.Put(id, View(std::vector<float>{1, 2, 3}, {3})).ok());
  ASSERT_TRUE(session.Delete({5, 7}).ok());
  const absl::StatusOr<SessionContents> contents = session.List();
  ASSERT_TRUE(contents.ok()) << contents.status();
  ASSERT_EQ(contents->tensors.size(), 1u);
  EXPECT_EQ(contents->tensors[0].id, 6u);
  EXPECT_EQ(contents->tensors[0].dtype, DataType::kF32);
  EXPECT_EQ(contents->tensors[0].shape, std::vector<std::int64_t>{3});
  EXPECT_EQ(contents->tensors[0].state, TensorState::kReady);
  EXPECT_EQ(contents->tensors[0].bytes, 12);
  EXPECT_EQ(contents->tensors[0].device, "cpu");
  EXPECT_EQ(contents->used_bytes, 12);
  EXPECT_EQ(contents->lease_left, absl::Seconds(599));
}

TEST_F(SessionTest, ARestartedDaemonIsToldFromAnUnknownSession) {
  const Client client = Connect();
  const Session session = Open(client);
  const Session never = client.AttachSession("nobody knows it");
  tensors_.Restart();
  EXPECT_EQ(DetailsOf(session.Get(1).status()).reason, reason::kServerRestarted);
  EXPECT_EQ(DetailsOf(session.Put(1, View(std::vector<float>{1}, {1}))).reason, reason::kServerRestarted);
  EXPECT_EQ(DetailsOf(session.List().status()).reason, reason::kServerRestarted);
  EXPECT_EQ(DetailsOf(never.List().status()).reason, "SESSION_NOT_FOUND");
}

TEST_F(SessionTest, TheDaemonThatOwnsTheSessionIsDialled) {
  FakeTensors elsewhere;
  FakeDaemon owner(&elsewhere);
  tensors_.endpoint = owner.endpoint();
  const Client client = Connect();
  absl::StatusOr<Session> session = client.OpenSession();
  ASSERT_TRUE(session.ok());
  EXPECT_EQ(session->endpoint(), owner.endpoint());
  EXPECT_EQ(session->List().status().code(), absl::StatusCode::kNotFound) << "the other one has not opened it";
  EXPECT_EQ(tensors_.seen().closed, 0);
}

TEST_F(SessionTest, UnixSocketsToo) {
  const std::string path =
      (std::filesystem::temp_directory_path() / ("kernd-session." + std::to_string(::getpid()))).string();
  FakeTensors tensors;
  const FakeDaemon daemon(&tensors, "unix:" + path);
  const absl::StatusOr<Client> client = Client::Connect(Options(daemon.endpoint()));
  ASSERT_TRUE(client.ok()) << client.status();
  const Session session = Open(*client);
  const auto bytes = Pattern(5 * kMiB + 3, 9);
  ASSERT_TRUE(session.Put(1, ViewAs(DataType::kU8, bytes, {5 * kMiB + 3})).ok());
  EXPECT_TRUE(Same(session.Get(1)->bytes(), bytes));
}

// --- faults ----------------------------------------------------------------------------------------------------------

TEST_F(SessionTest, ABrokenUploadStreamIsSentAgainUnderItsVersion) {
  std::atomic<int> to_break = 3;
  tensors_.on_put = [&](grpc::ServerContext&, const v1::PutRequest&, int index) {
    return index == 2 && to_break-- > 0 ? grpc::Status(grpc::UNAVAILABLE, "broken") : grpc::Status::OK;
  };
  const Client client = Connect();
  const Session session = Open(client);
  const auto bytes = Pattern(16 * kMiB, 4);
  const absl::Status put = session.Put(1, ViewAs(DataType::kU8, bytes, {16 * kMiB}));
  ASSERT_TRUE(put.ok()) << put;
  EXPECT_TRUE(Same(session.Get(1)->bytes(), bytes));
  EXPECT_LT(to_break, 1) << "nothing was broken";
  const FakeTensors::Seen seen = tensors_.seen();
  EXPECT_EQ(seen.put_offsets.size(), 16u) << "each chunk was taken once";
  for (const v1::PutHeader& header : seen.put_headers) EXPECT_EQ(header.version(), seen.put_headers[0].version());
}

TEST_F(SessionTest, ABrokenDownloadGoesOnWhereItWas) {
  std::atomic<int> to_break = 2;
  const Client client = Connect(Transfer::kStriped, 2);
  const Session session = Open(client);
  const auto bytes = Pattern(12 * kMiB, 5);
  ASSERT_TRUE(session.Put(1, ViewAs(DataType::kU8, bytes, {12 * kMiB})).ok());
  tensors_.on_get = [&](grpc::ServerContext&, const v1::GetRequest&, int index) {
    return index == 2 && to_break-- > 0 ? grpc::Status(grpc::UNAVAILABLE, "broken") : grpc::Status::OK;
  };
  std::vector<std::uint8_t> got(bytes.size());
  const absl::Status status = session.Get(1, 0, std::as_writable_bytes(std::span(got)));
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(got, bytes);
  // Each of two ranges begins at a multiple of 6 MiB, and a stream had brought two chunks when it broke.
  int resumed = 0;
  for (const v1::GetRequest& get : tensors_.seen().gets) {
    EXPECT_EQ(get.offset_bytes() % (2 * kMiB), 0) << get.offset_bytes();
    resumed += get.offset_bytes() % (6 * kMiB) == 0 ? 0 : 1;
  }
  EXPECT_EQ(resumed, 2);
}

TEST_F(SessionTest, AnUploadThatIsRefusedLeavesNothing) {
  tensors_.quota_bytes = 4 * kMiB;
  const Client client = Connect();
  const Session session = Open(client);
  const auto bytes = Pattern(8 * kMiB, 6);
  const absl::Status put = session.Put(1, ViewAs(DataType::kU8, bytes, {8 * kMiB}));
  EXPECT_EQ(put.code(), absl::StatusCode::kResourceExhausted) << put;
  EXPECT_EQ(DetailsOf(put).reason, "QUOTA_FULL");
  EXPECT_EQ(tensors_.num_tensors(), 0u);
}

TEST_F(SessionTest, AnUploadThatRanOutOfTimeDoesNotHitTheNext) {
  tensors_.on_put = [](grpc::ServerContext& context, const v1::PutRequest&, int index) {
    while (index == 2 && !context.IsCancelled()) std::this_thread::yield();
    return index == 2 ? grpc::Status::CANCELLED : grpc::Status::OK;
  };
  std::optional<Client> client = Connect();
  std::optional<Session> session = Open(*client);
  const auto bytes = Pattern(16 * kMiB, 7);
  CallOptions options;
  options.timeout = absl::Milliseconds(500);
  const absl::Status put = session->Put(1, ViewAs(DataType::kU8, bytes, {16 * kMiB}), options);
  EXPECT_EQ(put.code(), absl::StatusCode::kDeadlineExceeded) << put;
  tensors_.on_put = nullptr;
  ASSERT_TRUE(session->Put(1, ViewAs(DataType::kU8, bytes, {16 * kMiB})).ok());
  session->Release();
  session.reset();
  client.reset();  // waits for what was to be done later
  EXPECT_EQ(tensors_.num_tensors(), 1u);
}

TEST_F(SessionTest, StopEndsAnUpload) {
  std::stop_source stop;
  tensors_.on_put = [&stop](grpc::ServerContext& context, const v1::PutRequest&, int index) {
    if (index < 2) return grpc::Status::OK;
    stop.request_stop();
    while (!context.IsCancelled()) std::this_thread::yield();
    return grpc::Status::CANCELLED;
  };
  const Client client = Connect();
  const Session session = Open(client);
  const auto bytes = Pattern(16 * kMiB, 8);
  CallOptions options;
  options.stop = stop.get_token();
  EXPECT_EQ(session.Put(1, ViewAs(DataType::kU8, bytes, {16 * kMiB}), options).code(), absl::StatusCode::kCancelled);
}

TEST_F(SessionTest, ADaemonThatDiesInTheMiddleIsATypedError) {
  auto daemon = std::make_unique<FakeDaemon>(&tensors_);
  std::atomic<bool> half = false, dying = false;
  tensors_.on_put = [&](grpc::ServerContext& context, const v1::PutRequest&, int index) {
    if (index < 2) return grpc::Status::OK;
    half = true;
    half.notify_all();
    while (!context.IsCancelled() && !dying) std::this_thread::yield();
    return grpc::Status(grpc::UNAVAILABLE, "dying");
  };
  ClientOptions options = Options(daemon->endpoint());
  options.retry.max_attempts = 2;
  const absl::StatusOr<Client> client = Client::Connect(options);
  ASSERT_TRUE(client.ok());
  std::optional<Session> session = Open(*client);
  const auto bytes = Pattern(16 * kMiB, 9);
  absl::Status put;
  {
    const std::jthread call([&] { put = session->Put(1, ViewAs(DataType::kU8, bytes, {16 * kMiB})); });
    half.wait(false);
    dying = true;
    daemon.reset();
  }
  // This one cancels what runs when it ends; one that is killed just goes.
  EXPECT_TRUE(absl::IsUnavailable(put) || absl::IsCancelled(put)) << put;
  session.reset();  // returns, though nobody is there
}

}  // namespace
}  // namespace kernd::client
