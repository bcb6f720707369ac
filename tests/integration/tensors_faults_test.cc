// Sessions and uploads that go wrong: what is refused, what time ends, and that memory comes back every time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tests/support/daemon.h"
#include "tests/support/http2_client.h"
#include "tests/support/requests.h"
#include "tests/support/session_client.h"

namespace kernd::testing {
namespace {

using grpc::StatusCode;
using ::testing::HasSubstr;

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr char kResident[] = "kernd_memory_used_bytes{pool=\"resident\"}";
constexpr char kBodies[] = "kernd_body_budget_used_bytes";
constexpr char kInFlight[] = "kernd_requests_in_flight";

// But for the records of `failed` uploads.
void ExpectAsBefore(const Daemon& daemon, int failed = 0) {
  EXPECT_TRUE(daemon.WaitForMetric(kInFlight, 0));
  EXPECT_TRUE(daemon.WaitForMetric(kResident, static_cast<double>(failed * kTensorRecord)));
  EXPECT_TRUE(daemon.WaitForMetric(kBodies, 0));
}

bool SmallCallWorks(const Daemon& daemon) {
  v1::MatmulReply reply;
  return Call(Connect(daemon.endpoint()), "/kernd.v1.Compute/Matmul", SmallMatmul(), reply).status.ok();
}

// What a stream ends with whose first message is `first` and whose second is `second`.
RawReply PutMessages(SessionClient& session, const v1::PutRequest& first, const v1::PutRequest& second) {
  PutStream put(*session.stub, session.Header(1, 0));
  if (put.SendMessage(first)) put.SendMessage(second);
  return put.Finish();
}

struct BadPut {
  const char* name;
  StatusCode code;
  const char* reason;
  const char* field;
  std::function<void(v1::PutRequest& first, v1::PutRequest& second)> spoil;
};

TEST(TensorFaults, EveryRuleOfPut) {
  const auto daemon = Daemon::Start({"--session-quota", "1MiB"});
  ASSERT_NE(daemon, nullptr);
  const std::vector<BadPut> cases = {
      {"no header", StatusCode::INVALID_ARGUMENT, "INVALID_FIELD", "header",
       [](auto& first, auto&) { first.clear_header(); }},
      {"a second header", StatusCode::INVALID_ARGUMENT, "INVALID_FIELD", "header",
       [](auto& first, auto& second) { *second.mutable_header() = first.header(); }},
      {"no session", StatusCode::INVALID_ARGUMENT, "INVALID_FIELD", "header.session_id",
       [](auto& first, auto&) { first.mutable_header()->clear_session_id(); }},
      {"a session id that is too long", StatusCode::INVALID_ARGUMENT, "INVALID_FIELD", "header.session_id",
       [](auto& first, auto&) { first.mutable_header()->mutable_session_id()->push_back('x'); }},
      {"a session that never was", StatusCode::NOT_FOUND, "SESSION_NOT_FOUND", "header.session_id",
       [](auto& first, auto&) { first.mutable_header()->set_session_id(std::string(16, '\0')); }},
      {"no type", StatusCode::INVALID_ARGUMENT, "INVALID_FIELD", "header.dtype",
       [](auto& first, auto&) { first.mutable_header()->clear_dtype(); }},
      {"a negative dimension", StatusCode::INVALID_ARGUMENT, "INVALID_FIELD", "header.shape",
       [](auto& first, auto&) { first.mutable_header()->set_shape(0, -1); }},
      {"more bytes than 63 bits count", StatusCode::INVALID_ARGUMENT, "INVALID_FIELD", "header.shape",
       [](auto& first, auto&) {
         for (int i = 0; i < 4; ++i) first.mutable_header()->add_shape(std::int64_t{1} << 31);
       }},
      {"10^18 bytes", StatusCode::RESOURCE_EXHAUSTED, "TOO_LARGE", "",
       [](auto& first, auto&) { first.mutable_header()->set_shape(0, 1'000'000'000'000'000'000); }},
      {"another device", StatusCode::NOT_FOUND, "INVALID_FIELD", "header.placement.device_uuid",
       [](auto& first, auto&) { first.mutable_header()->mutable_placement()->set_device_uuid("GPU-7"); }},
      {"beside a tensor that is none", StatusCode::NOT_FOUND, "TENSOR_NOT_FOUND", "header.placement.with_tensor",
       [](auto& first, auto&) { first.mutable_header()->mutable_placement()->set_with_tensor(77); }},
      {"beyond the end", StatusCode::OUT_OF_RANGE, "OUT_OF_RANGE", "offset_bytes",
       [](auto&, auto& second) { second.set_offset_bytes(91); }},
      {"before the start", StatusCode::OUT_OF_RANGE, "OUT_OF_RANGE", "offset_bytes",
       [](auto&, auto& second) { second.set_offset_bytes(-1); }},
      {"far beyond the end", StatusCode::OUT_OF_RANGE, "OUT_OF_RANGE", "offset_bytes",
       [](auto&, auto& second) { second.set_offset_bytes(INT64_MAX); }},
      {"more than the tensor", StatusCode::OUT_OF_RANGE, "OUT_OF_RANGE", "offset_bytes",
       [](auto&, auto& second) { second.set_data(std::string(101, 'x')); }},
      {"overlapping", StatusCode::INVALID_ARGUMENT, "OVERLAP", "offset_bytes",
       [](auto&, auto& second) { second.set_offset_bytes(5); }},
  };
  SessionClient session(daemon->endpoint());
  for (const BadPut& bad : cases) {
    SCOPED_TRACE(bad.name);
    v1::PutRequest first, second;
    *first.mutable_header() = session.Header(1, 100);
    first.set_data(TensorBytes(10));
    second.set_offset_bytes(10);
    second.set_data(TensorBytes(10));
    bad.spoil(first, second);
    const RawReply reply = PutMessages(session, first, second);
    EXPECT_EQ(reply.status.error_code(), bad.code) << reply.status.error_message();
    EXPECT_EQ(reply.reason, bad.reason);
    EXPECT_EQ(reply.field, bad.field);
    EXPECT_THAT(reply.status.error_message(), HasSubstr(bad.field));
    session.Delete({1});
  }
  EXPECT_EQ(PutStream(*session.stub, session.Header(1, 1)).Finish().reason, "MALFORMED_MESSAGE") << "no message at all";
  ASSERT_TRUE(session.PutAll(1, TensorBytes(100)).status.ok());
  EXPECT_EQ(session.PutAll(session.Header(1, 101), "").field, "header.shape") << "another shape, same version";
  session.Close();
  ExpectAsBefore(*daemon);
  EXPECT_TRUE(SmallCallWorks(*daemon));
}

TEST(TensorFaults, MessagesOfAStreamAreLimited) {
  const auto daemon = Daemon::Start();
  ASSERT_NE(daemon, nullptr);
  SessionClient session(daemon->endpoint());
  const auto put = session.Put(session.Header(1, 64 * kMiB));
  put->Send(0, std::string(8 * kMiB, 'x'));
  const RawReply reply = put->Finish();
  EXPECT_EQ(reply.status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(reply.reason, "TOO_LARGE");
  EXPECT_EQ(reply.metadata.at("limit_bytes"), std::to_string(8 * kMiB));
  // The largest that passes, undeclared, and one that is larger than what was declared.
  ASSERT_TRUE(session.PutAll(session.Header(2, 16 * kMiB), TensorBytes(16 * kMiB), 8 * kMiB - 64).status.ok());
  PutStream declared(*session.stub, session.Header(3, 2 * kMiB), {.metadata = {{"kernd-body-bytes", "1000"}}});
  EXPECT_TRUE(declared.Send(0, TensorBytes(2 * kMiB)));
  EXPECT_TRUE(declared.Finish().status.ok());
  session.Close();
  ExpectAsBefore(*daemon);
}

TEST(TensorFaults, QuotasRefuseHalfOpenPutsAndHarmNobodyElse) {
  const auto daemon = Daemon::Start({MemoryLimit("256MiB"), "--resident-memory", "75%", "--session-quota", "64MiB"});
  ASSERT_NE(daemon, nullptr);
  SessionClient greedy(daemon->endpoint()), other(daemon->endpoint());
  std::vector<std::unique_ptr<PutStream>> half_open;
  for (std::uint64_t id = 0; id < 16; ++id) {
    half_open.push_back(greedy.Put(greedy.Header(id, 4 * kMiB - kTensorRecord)));
    ASSERT_TRUE(half_open.back()->Send(0, TensorBytes(100)));
  }
  EXPECT_TRUE(daemon->WaitForMetric(kResident, 64.0 * kMiB));
  const RawReply full = greedy.PutAll(99, "x");
  EXPECT_EQ(full.status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(full.reason, "QUOTA_FULL");
  EXPECT_FALSE(full.retry_after_s.has_value()) << "waiting does not help: the session itself must give something up";
  EXPECT_EQ(full.metadata.at("available_bytes"), "0");
  const std::string data = TensorBytes(64 * kMiB - kTensorRecord);
  ASSERT_TRUE(other.PutAll(1, data).status.ok());
  EXPECT_TRUE(other.Get(1).body == data);
  EXPECT_TRUE(SmallCallWorks(*daemon));
  // A third takes half of the rest; for a fourth there is too little now, and waiting may help.
  SessionClient third(daemon->endpoint()), fourth(daemon->endpoint());
  ASSERT_TRUE(third.PutAll(1, data.substr(0, 32 * kMiB)).status.ok());
  const RawReply too_little = fourth.PutAll(fourth.Header(1, 33 * kMiB), "x");
  EXPECT_EQ(too_little.reason, "MEMORY_FULL") << too_little.status.error_message();
  EXPECT_TRUE(too_little.retry_after_s.has_value());
  EXPECT_TRUE(SmallCallWorks(*daemon)) << "a quarter of the memory is for calls";
  for (const auto& put : half_open) EXPECT_TRUE(put->Finish().status.ok());
  for (SessionClient* session : {&greedy, &other, &third, &fourth}) EXPECT_TRUE(session->Close().status.ok());
  ExpectAsBefore(*daemon);
}

TEST(TensorFaults, MemoryOfClientsThatDieComesBack) {
  const auto daemon = Daemon::Start({"--fill-timeout", "200ms"});
  ASSERT_NE(daemon, nullptr);
  SessionClient session(daemon->endpoint());
  {
    const auto cancelled = session.Put(session.Header(1, 8 * kMiB));
    ASSERT_TRUE(cancelled->Send(0, TensorBytes(kMiB)));
    EXPECT_TRUE(daemon->WaitForMetric("kernd_session_tensors", 1));
  }
  {
    // The connection itself breaks, in the middle of a message.
    v1::PutRequest request;
    *request.mutable_header() = session.Header(2, 8 * kMiB);
    request.set_data(TensorBytes(1000));
    const std::string message = request.SerializeAsString();
    const auto client = Http2Client::Connect(daemon->endpoint());
    ASSERT_NE(client, nullptr);
    const std::string body = MessagePrefix(message.size()) + message + MessagePrefix(5000) + "half of it";
    ASSERT_TRUE(client->Send(CallHeaders(1, "/kernd.v1.Tensors/Put") +
                             Encode({.type = FrameType::kData, .stream = 1, .payload = body})));
    EXPECT_TRUE(daemon->WaitForMetric("kernd_session_tensors", 2));
  }
  EXPECT_TRUE(daemon->WaitForMetric("kernd_uploads_abandoned_total", 2));
  ExpectAsBefore(*daemon, 2);
  const RawReply failed = session.Get(1);
  EXPECT_EQ(failed.status.error_code(), StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(failed.reason, "FILL_FAILED");
  ASSERT_TRUE(session.PutAll(session.Header(1, 8 * kMiB), TensorBytes(8 * kMiB)).status.ok()) << "it may begin again";
  EXPECT_TRUE(session.Get(1).body == TensorBytes(8 * kMiB));
}

TEST(TensorFaults, StreamsWithoutMessagesAndReadersThatStallAreCutOff) {
  const auto daemon = Daemon::Start({"--receive-stall", "200ms", "--send-stall", "200ms", "--fill-timeout", "200ms"});
  ASSERT_NE(daemon, nullptr);
  SessionClient session(daemon->endpoint());
  ASSERT_TRUE(session.PutAll(1, TensorBytes(8 * kMiB)).status.ok());
  // Declared small, so that the time it is given is short.
  PutStream silent(*session.stub, session.Header(2, kMiB), {.metadata = {{"kernd-body-bytes", "1000"}}});
  ASSERT_TRUE(silent.Send(0, "x"));
  // Its window is that of HTTP/2, 64 KiB, and never grows.
  v1::GetRequest request;
  request.set_session_id(session.opened.session_id());
  request.set_id(1);
  request.set_chunk_bytes(kMiB / 2);
  const auto reader = Http2Client::Connect(daemon->endpoint());
  ASSERT_NE(reader, nullptr);
  ASSERT_TRUE(reader->Send(CallHeaders(1, "/kernd.v1.Tensors/Get") + CallBody(1, request.SerializeAsString())));
  EXPECT_TRUE(daemon->WaitForMetric("kernd_requests_total{code=\"CANCELLED\",method=\"Tensors/Get\"}", 1));
  EXPECT_TRUE(daemon->WaitForMetric("kernd_uploads_abandoned_total", 1));
  EXPECT_FALSE(silent.Finish().status.ok());
  session.Close();
  ExpectAsBefore(*daemon);
}

TEST(TensorFaults, ExpiredForeignAndReusedIds) {
  const auto daemon = Daemon::Start({"--session-lease", "1s"});
  ASSERT_NE(daemon, nullptr);
  SessionClient expired(daemon->endpoint());
  ASSERT_TRUE(expired.PutAll(1, TensorBytes(1000)).status.ok());
  EXPECT_TRUE(daemon->WaitForMetric("kernd_sessions_expired_total", 1));
  ExpectAsBefore(*daemon);
  v1::OpenSessionRequest long_lease;
  long_lease.mutable_lease()->set_seconds(1000);
  SessionClient mine(daemon->endpoint(), long_lease), theirs(daemon->endpoint(), long_lease);
  ASSERT_TRUE(mine.PutAll(1, TensorBytes(1000, 1)).status.ok());
  EXPECT_EQ(theirs.Get(1).reason, "TENSOR_NOT_FOUND") << "the id is of another session";
  EXPECT_EQ(expired.Get(1).reason, "SESSION_NOT_FOUND");
  ASSERT_TRUE(mine.Close().status.ok());
  EXPECT_EQ(mine.Get(1).reason, "SESSION_NOT_FOUND") << "a closed session's id is of no use any more";
  EXPECT_EQ(mine.Close().reason, "SESSION_NOT_FOUND");
  EXPECT_EQ(mine.PutAll(1, "x").reason, "SESSION_NOT_FOUND");
}

TEST(TensorFaults, ARestartIsToldToThoseWhoKnowTheEpoch) {
  const auto before = Daemon::Start();
  ASSERT_NE(before, nullptr);
  SessionClient session(before->endpoint());
  ASSERT_TRUE(session.opening.status.ok());
  ASSERT_EQ(before->Stop(), 0);
  const auto after = Daemon::Start();
  ASSERT_NE(after, nullptr);
  SessionClient fresh(after->endpoint());
  ASSERT_NE(fresh.opened.server_epoch(), session.opened.server_epoch());
  v1::GetRequest request;
  request.set_session_id(session.opened.session_id());
  const auto with_epoch = [&](const std::string& epoch) {
    return fresh.Get(request, {.metadata = {{"kernd-server-epoch", epoch}}});
  };
  const RawReply told = with_epoch(std::to_string(session.opened.server_epoch()));
  EXPECT_EQ(told.status.error_code(), StatusCode::NOT_FOUND);
  EXPECT_EQ(told.reason, "SERVER_RESTARTED");
  EXPECT_EQ(told.metadata.at("server_epoch"), std::to_string(fresh.opened.server_epoch()));
  EXPECT_EQ(with_epoch(std::to_string(fresh.opened.server_epoch())).reason, "SESSION_NOT_FOUND");
  EXPECT_EQ(with_epoch("yesterday").reason, "SESSION_NOT_FOUND");
  EXPECT_EQ(fresh.Get(request).reason, "SESSION_NOT_FOUND");
  const std::string old_id = session.opened.session_id();
  fresh.opened.set_session_id(old_id);
  EXPECT_EQ(fresh.Close({.metadata = {{"kernd-server-epoch", "1"}}}).reason, "SERVER_RESTARTED")
      << "unary calls as well";
  PutStream put(*fresh.stub, fresh.Header(1, 1), {.metadata = {{"kernd-server-epoch", "1"}}});
  put.SendHeader();
  EXPECT_EQ(put.Finish().reason, "SERVER_RESTARTED");
}

TEST(TensorFaults, DrainsLetStreamsEndAndCutOffThoseThatDoNot) {
  const auto patient = Daemon::Start({"--drain-timeout", "20s"});
  ASSERT_NE(patient, nullptr);
  {
    SessionClient session(patient->endpoint());
    const std::string data = TensorBytes(2 * kMiB);
    const auto put = session.Put(session.Header(1, 2 * kMiB));
    ASSERT_TRUE(put->Send(0, data.substr(0, kMiB)));
    EXPECT_TRUE(patient->WaitForMetric(kResident, 2.0 * kMiB + kTensorRecord));
    patient->Signal(SIGTERM);
    // New calls are refused; this one goes on.
    while (session.PutAll(2, "x").reason != "DRAINING") {
    }
    EXPECT_TRUE(put->Send(kMiB, data.substr(kMiB)));
    EXPECT_TRUE(put->Finish().status.ok());
    EXPECT_EQ(put->reply.state(), v1::TENSOR_STATE_READY);
    EXPECT_EQ(patient->Wait(20), 0);
  }
  const auto hasty = Daemon::Start({"--drain-timeout", "0s"});
  ASSERT_NE(hasty, nullptr);
  SessionClient session(hasty->endpoint());
  const auto put = session.Put(session.Header(1, 2 * kMiB));
  ASSERT_TRUE(put->Send(0, "x"));
  EXPECT_TRUE(hasty->WaitForMetric(kResident, 2.0 * kMiB + kTensorRecord));
  EXPECT_EQ(hasty->Stop(), 1) << "a call had to be cancelled";
  EXPECT_FALSE(put->Finish().status.ok());
}

TEST(TensorFaults, CancelsAtRandomPointsLeaveNothing) {
  const auto daemon = Daemon::Start({"--fill-timeout", "200ms"});
  ASSERT_NE(daemon, nullptr);
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  SessionClient session(daemon->endpoint());
  ASSERT_TRUE(session.PutAll(1000, TensorBytes(4 * kMiB)).status.ok());
  for (std::uint64_t id = 0; id < 100; ++id) {
    const auto put = session.Put(session.Header(id, 4 * 1000 * 100));
    const unsigned chunks = random() % 5;
    for (unsigned i = 0; i < chunks; ++i) put->Send(i * 100'000, TensorBytes(100'000));
    if (random() % 2 == 0) put->Cancel();
    v1::GetRequest request;
    request.set_session_id(session.opened.session_id());
    request.set_id(1000);
    request.set_chunk_bytes(100'000);
    grpc::ClientContext context;
    const auto reader = session.stub->Get(&context, request);
    v1::GetReply reply;
    for (unsigned i = random() % 6; i > 0; --i) reader->Read(&reply);
    context.TryCancel();
    reader->Finish();
  }
  EXPECT_TRUE(daemon->WaitForMetric(kInFlight, 0));
  EXPECT_TRUE(session.Get(1000).body == TensorBytes(4 * kMiB));
  EXPECT_TRUE(session.Close().status.ok());
  ExpectAsBefore(*daemon);
  EXPECT_TRUE(SmallCallWorks(*daemon));
}

}  // namespace
}  // namespace kernd::testing
