// Memory that clients share with the daemon, some of whom mean no good.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <thread>

#include "kernd/v1/device.pb.h"
#include "tests/support/daemon.h"
#include "tests/support/pending_call.h"
#include "tests/support/requests.h"
#include "tests/support/session_client.h"
#include "tests/support/shared_client.h"

namespace kernd::testing {
namespace {

using grpc::StatusCode;
using ::testing::HasSubstr;

constexpr char kMatmul[] = "/kernd.v1.Compute/Matmul";
constexpr char kAttention[] = "/kernd.v1.Compute/Attention";
constexpr char kPlan[] = "/kernd.v1.Compute/Plan";
constexpr char kShared[] = "kernd_memory_used_bytes{pool=\"shared\"}";
constexpr char kCopied[] = "kernd_copied_bytes_total{method=\"Compute/Matmul\"}";
constexpr std::int64_t kMiB = std::int64_t{1} << 20;
constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

// `tensor` without its data: in the region, from byte `offset` on.
v1::Tensor In(v1::Tensor tensor, std::uint64_t region, std::int64_t offset,
              std::initializer_list<std::int64_t> strides = {}) {
  tensor.mutable_shared()->set_region_id(region);
  tensor.mutable_shared()->set_offset_bytes(offset);
  for (const std::int64_t stride : strides) tensor.add_strides(stride);
  return tensor;
}

// Lines of a file of /proc that name a memfd: mappings, or descriptors.
int Mappings(pid_t pid) {
  std::ifstream maps("/proc/" + std::to_string(pid) + "/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find("/memfd:test") != std::string::npos ? 1 : 0;
  return count;
}
int Descriptors(pid_t pid) {
  int count = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd")) {
    count += std::filesystem::read_symlink(entry, error).string().find("/memfd:test") != std::string::npos ? 1 : 0;
  }
  return count;
}

class SharedMemoryTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    socket_ = ::testing::TempDir() + "kernd_shared_" + std::to_string(getpid());
    daemon_ = Daemon::Start({"--shared-memory-socket", socket_, "--shared-memory-limit", "16MiB"}).release();
  }
  static void TearDownTestSuite() {
    EXPECT_TRUE(daemon_->WaitForMetric(kShared, 0)) << "every test gave back what it held";
    EXPECT_TRUE(daemon_->WaitForMetric("kernd_memory_used_bytes{pool=\"memory\"}", 0));
    EXPECT_EQ(Mappings(daemon_->pid()), 0);
    // Those that nobody claimed are given up after ten seconds.
    for (int tries = 0; tries < 200 && Descriptors(daemon_->pid()) != 0; ++tries) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    EXPECT_EQ(Descriptors(daemon_->pid()), 0);
    EXPECT_EQ(daemon_->Stop(), 0);
    EXPECT_FALSE(std::filesystem::exists(socket_));
    delete daemon_;
  }
  ~SharedMemoryTest() override { session_.Close(); }

  v1::RegisterSharedMemoryRequest Registration(std::uint64_t region, std::int64_t bytes, const std::string& token) {
    v1::RegisterSharedMemoryRequest request;
    request.set_session_id(session_.opened.session_id());
    request.set_region_id(region);
    request.set_size_bytes(bytes);
    request.set_name(token);
    return request;
  }
  RawReply Share(std::uint64_t region, std::int64_t bytes, int fd) {
    return Register(*session_.stub, Registration(region, bytes, HandOver(socket_, fd)));
  }
  void MustShare(std::uint64_t region, const Memory& memory) {
    const RawReply reply = Share(region, static_cast<std::int64_t>(memory.bytes().size()), memory.fd());
    ASSERT_TRUE(reply.status.ok()) << reply.status.error_message();
  }
  RawReply Forget(std::uint64_t region) { return Unregister(*session_.stub, session_.opened.session_id(), region); }

  v1::MatmulRequest Matmul(const v1::Tensor& a, const v1::Tensor& b) {
    v1::MatmulRequest request;
    request.mutable_options()->set_session_id(session_.opened.session_id());
    *request.mutable_matmul()->mutable_a() = a;
    *request.mutable_matmul()->mutable_b() = b;
    return request;
  }
  v1::MatmulReply Run(const v1::MatmulRequest& request) {
    v1::MatmulReply reply;
    const RawReply raw = Call(session_.channel, kMatmul, request, reply);
    EXPECT_TRUE(raw.status.ok()) << raw.status.error_message();
    return reply;
  }
  RawReply Refused(const v1::MatmulRequest& request) {
    v1::MatmulReply reply;
    return Call(session_.channel, kMatmul, request, reply);
  }
  void ExpectRefused(const RawReply& reply, StatusCode code, const std::string& reason, const std::string& field) {
    EXPECT_EQ(reply.status.error_code(), code) << reply.status.error_message();
    EXPECT_EQ(reply.reason, reason) << reply.status.error_message();
    EXPECT_EQ(reply.field, field) << reply.status.error_message();
  }

  static Daemon* daemon_;
  static std::string socket_;
  SessionClient session_{daemon_->endpoint()};
};
Daemon* SharedMemoryTest::daemon_ = nullptr;
std::string SharedMemoryTest::socket_;

TEST_F(SharedMemoryTest, OperandsAndResultsInItHaveTheBitsOfInlineOnes) {
  const v1::Tensor a = F32({300, 200}), b = F32({200, 100});
  const std::string expected = Run(Matmul(a, b)).d().data();
  const Memory memory(kMiB);
  MustShare(1, memory);
  memory.Write(0, a.data());
  memory.Write(400'000, b.data());
  ASSERT_TRUE(daemon_->WaitForMetric("kernd_requests_in_flight", 0));
  const double copied = daemon_->Metrics().at(kCopied);
  v1::MatmulRequest request = Matmul(In(a, 1, 0), In(b, 1, 400'000));
  EXPECT_TRUE(Run(request).d().data() == expected) << "into the reply";
  v1::SharedRef& place = *request.mutable_matmul()->mutable_d()->mutable_shared();
  place.set_region_id(1);
  place.set_offset_bytes(500'000);
  place.set_size_bytes(120'000);
  const v1::MatmulReply reply = Run(request);
  EXPECT_EQ(reply.d().data(), "");
  EXPECT_EQ(reply.d().dtype(), v1::DATA_TYPE_F32);
  EXPECT_EQ(reply.d().shape_size(), 2);
  EXPECT_TRUE(memory.Read(500'000, 120'000) == expected);
  EXPECT_EQ(memory.Read(620'000, 8), std::string(8, '\0')) << "not a byte more";
  if (!OnGpu()) {
    EXPECT_EQ(reply.memory().peak_bytes(), reply.memory().workspace_bytes()) << "it is the client's memory";
  }
  EXPECT_EQ(reply.memory().pinned_bytes(), 0);
  ASSERT_TRUE(daemon_->WaitForMetric("kernd_requests_in_flight", 0));
  EXPECT_EQ(daemon_->Metrics().at(kCopied), copied) << "nothing was copied by the CPU";
  EXPECT_TRUE(Run(Matmul(a, In(b, 1, 400'000))).d().data() == expected) << "mixed with inline";
}

TEST_F(SharedMemoryTest, AttentionAndItsTwoResults) {
  v1::AttentionRequest request = SmallAttention();
  request.mutable_attention()->set_want_lse(true);
  v1::AttentionReply expected, got;
  ASSERT_TRUE(Call(session_.channel, kAttention, request, expected).status.ok());
  const Memory memory(65536);
  MustShare(1, memory);
  v1::AttentionOp& op = *request.mutable_attention();
  memory.Write(0, op.q().data());
  memory.Write(4096, op.k().data());
  memory.Write(8192, op.v().data());
  *op.mutable_q() = In(op.q(), 1, 0);
  *op.mutable_k() = In(op.k(), 1, 4096);
  *op.mutable_v() = In(op.v(), 1, 8192);
  op.mutable_o()->mutable_shared()->set_region_id(1);
  op.mutable_o()->mutable_shared()->set_offset_bytes(16384);
  op.mutable_lse()->mutable_shared()->set_region_id(1);
  op.mutable_lse()->mutable_shared()->set_offset_bytes(65536 - 80);  // to the last byte, and at no address but F32's
  request.mutable_options()->set_session_id(session_.opened.session_id());
  const RawReply raw = Call(session_.channel, kAttention, request, got);
  ASSERT_TRUE(raw.status.ok()) << raw.status.error_message();
  EXPECT_TRUE(memory.Read(16384, 640) == expected.o().data());
  EXPECT_TRUE(memory.Read(65536 - 80, 80) == expected.lse().data());
}

TEST_F(SharedMemoryTest, ViewsAtEveryAddressThatAnElementMayHave) {
  const v1::Tensor whole = F32({4, 6});
  const std::vector<float> x = Floats(whole);
  const v1::Tensor part = F32({3, 2}, {x[7], x[8], x[13], x[14], x[19], x[20]}), b = F32({2, 2}, {1, 2, 3, 4});
  const std::string expected = Run(Matmul(part, b)).d().data();
  const Memory memory(8192);
  MustShare(1, memory);
  for (const std::int64_t at : {0, 4, 12, 60, 4092}) {
    memory.Write(at, whole.data());
    memory.Write(at + 96, b.data());
    v1::MatmulRequest request = Matmul(In(part, 1, at + 28, {6, 1}), In(b, 1, at + 96));
    request.mutable_matmul()->mutable_d()->mutable_shared()->set_region_id(1);
    request.mutable_matmul()->mutable_d()->mutable_shared()->set_offset_bytes(at + 112);
    Run(request);
    EXPECT_TRUE(memory.Read(at + 112, 24) == expected) << at;
  }
}

TEST_F(SharedMemoryTest, PlansSeeIt) {
  const v1::Tensor x = F32({64, 64});
  const Memory memory(65536);
  MustShare(1, memory);
  v1::MatmulRequest request = Matmul(In(x, 1, 0), In(x, 1, 16384));
  request.mutable_matmul()->mutable_d()->mutable_shared()->set_region_id(1);
  request.mutable_matmul()->mutable_d()->mutable_shared()->set_offset_bytes(32768);
  v1::PlanRequest plan;
  *plan.mutable_options() = request.options();
  *plan.add_steps()->mutable_matmul() = request.matmul();
  v1::PlanReply planned;
  ASSERT_TRUE(Call(session_.channel, kPlan, plan, planned).status.ok());
  EXPECT_EQ(planned.memory().peak_bytes(), Run(request).memory().peak_bytes());
}

TEST_F(SharedMemoryTest, EveryRuleOfReferences) {
  const v1::Tensor a = F32({3, 2}), b = F32({2, 2});
  const Memory memory(4096);
  MustShare(1, memory);
  const SessionClient other(daemon_->endpoint());
  struct Bad {
    const char* name;
    StatusCode code;
    const char* reason;
    const char* field;
    std::function<void(v1::MatmulRequest&)> spoil;
  };
  const auto with_a = [&](const v1::Tensor& tensor) {
    return [tensor](v1::MatmulRequest& r) { *r.mutable_matmul()->mutable_a() = tensor; };
  };
  const auto with_d = [&](std::uint64_t region, std::int64_t offset, std::int64_t size) {
    return [=](v1::MatmulRequest& r) {
      v1::SharedRef& d = *r.mutable_matmul()->mutable_d()->mutable_shared();
      d.set_region_id(region), d.set_offset_bytes(offset), d.set_size_bytes(size);
    };
  };
  const auto wrong = StatusCode::INVALID_ARGUMENT, beyond = StatusCode::OUT_OF_RANGE, none = StatusCode::NOT_FOUND;
  const char *const at_a = "matmul.a.shared.offset_bytes", *const at_d = "matmul.d.shared.offset_bytes";
  const std::vector<Bad> cases = {
      {"no session", wrong, "INVALID_FIELD", "options.session_id", [](auto& r) { r.mutable_options()->Clear(); }},
      {"a foreign session", none, "REGION_NOT_FOUND", "matmul.a.shared.region_id",
       [&](auto& r) { r.mutable_options()->set_session_id(other.opened.session_id()); }},
      {"a session that never was", none, "SESSION_NOT_FOUND", "options.session_id",
       [](auto& r) { r.mutable_options()->set_session_id(std::string(16, 'x')); }},
      {"no such region", none, "REGION_NOT_FOUND", "matmul.a.shared.region_id", with_a(In(a, 2, 0))},
      {"one element too far", beyond, "OUT_OF_RANGE", at_a, with_a(In(a, 1, 4096 - 20))},
      {"rows too far apart", beyond, "OUT_OF_RANGE", at_a, with_a(In(a, 1, 0, {512, 1}))},
      {"past the end", beyond, "OUT_OF_RANGE", at_a, with_a(In(a, 1, 8192))},
      {"a negative offset", beyond, "OUT_OF_RANGE", at_a, with_a(In(a, 1, -4))},
      {"an offset that wraps", beyond, "OUT_OF_RANGE", at_a, with_a(In(a, 1, kMost - 3))},
      {"strides that wrap", wrong, "INVALID_FIELD", "matmul.a.strides", with_a(In(a, 1, 0, {kMost / 2, 1}))},
      {"half an element", wrong, "INVALID_FIELD", at_a, with_a(In(a, 1, 2))},
      {"an operand with a size", wrong, "INVALID_FIELD", "matmul.a.shared.size_bytes",
       [&](auto& r) { r.mutable_matmul()->mutable_a()->mutable_shared()->set_size_bytes(24); }},
      {"more than can be counted", wrong, "INVALID_FIELD", "matmul.a.shape",
       [&](auto& r) { r.mutable_matmul()->mutable_a()->set_shape(0, kMost); }},
      {"a result in no region", none, "REGION_NOT_FOUND", "matmul.d.shared.region_id", with_d(2, 0, 0)},
      {"a result past the end", beyond, "OUT_OF_RANGE", at_d, with_d(1, 4096 - 20, 0)},
      {"a result before the start", beyond, "OUT_OF_RANGE", at_d, with_d(1, -4, 0)},
      {"a result whose end wraps", beyond, "OUT_OF_RANGE", at_d, with_d(1, kMost - 3, 0)},
      {"a result at half an element", wrong, "INVALID_FIELD", at_d, with_d(1, 2, 0)},
      {"too little room", wrong, "INVALID_FIELD", "matmul.d.shared.size_bytes", with_d(1, 0, 20)},
      {"too much room", wrong, "INVALID_FIELD", "matmul.d.shared.size_bytes", with_d(1, 0, 28)},
  };
  for (const Bad& bad : cases) {
    SCOPED_TRACE(bad.name);
    v1::MatmulRequest request = Matmul(In(a, 1, 4096 - 24), b);
    bad.spoil(request);
    ExpectRefused(Refused(request), bad.code, bad.reason, bad.field);
  }
  EXPECT_EQ(memory.Read(0, 4096), std::string(4096, '\0')) << "nothing was written";
  v1::MatmulRequest last = Matmul(In(a, 1, 4096 - 24), b);
  with_d(1, 4096 - 24, 24)(last);
  Run(last);
}

TEST_F(SharedMemoryTest, EveryRuleOfRegistration) {
  const Memory memory(8192);
  const auto token = [&] { return HandOver(socket_, memory.fd()); };
  MustShare(1, memory);
  // Registered twice; the token of the second one is still good.
  const std::string good = token();
  ExpectRefused(Register(*session_.stub, Registration(1, 8192, good)), StatusCode::ALREADY_EXISTS, "INVALID_FIELD",
                "region_id");
  ASSERT_TRUE(Register(*session_.stub, Registration(2, 4096, good)).status.ok()) << "a part of it";
  ExpectRefused(Register(*session_.stub, Registration(3, 8192, good)), StatusCode::NOT_FOUND, "INVALID_FIELD", "name");
  ExpectRefused(Register(*session_.stub, Registration(3, 8192, std::string(32, 'f'))), StatusCode::NOT_FOUND,
                "INVALID_FIELD", "name");
  for (const std::int64_t size : {std::int64_t{0}, std::int64_t{-1}, std::int64_t{8193}}) {
    ExpectRefused(Register(*session_.stub, Registration(3, size, token())), StatusCode::INVALID_ARGUMENT,
                  "INVALID_FIELD", "size_bytes");
  }
  const int unsealed = MakeMemfd(4096, 0);
  ExpectRefused(Share(3, 4096, unsealed), StatusCode::INVALID_ARGUMENT, "INVALID_FIELD", "name");
  close(unsealed);
  v1::RegisterSharedMemoryRequest ipc = Registration(3, 8192, "");
  ipc.set_cuda_ipc_handle(std::string(64, 'h'));
  ExpectRefused(Register(*session_.stub, ipc), StatusCode::UNIMPLEMENTED, "NOT_BUILT", "cuda_ipc_handle");
  v1::RegisterSharedMemoryRequest nowhere = Registration(3, 8192, token());
  nowhere.set_session_id(std::string(16, 'x'));
  ExpectRefused(Register(*session_.stub, nowhere), StatusCode::NOT_FOUND, "SESSION_NOT_FOUND", "session_id");
  ExpectRefused(Register(*session_.stub, Registration(3, kMost, token())), StatusCode::RESOURCE_EXHAUSTED, "TOO_LARGE",
                "size_bytes");
  ExpectRefused(Forget(3), StatusCode::NOT_FOUND, "REGION_NOT_FOUND", "region_id");
  EXPECT_TRUE(daemon_->WaitForMetric(kShared, 8192 + 4096)) << "what was refused holds nothing";
  // All that clients may share.
  const Memory most(16 * kMiB - 12288), page(1);
  MustShare(4, most);
  const RawReply full = Share(5, 1, page.fd());
  ExpectRefused(full, StatusCode::RESOURCE_EXHAUSTED, "MEMORY_FULL", "size_bytes");
  EXPECT_TRUE(full.retry_after_s.has_value());
  ASSERT_TRUE(Forget(4).status.ok());
  MustShare(5, page);
}

TEST_F(SharedMemoryTest, CannotBeCutShort) {
  const v1::Tensor x = F32({64, 64});
  const Memory memory(32768);
  MustShare(1, memory);
  EXPECT_NE(ftruncate(memory.fd(), 0), 0);
  EXPECT_NE(ftruncate(memory.fd(), 4096), 0);
  // A hole is no cut: its pages are zeros.
  memory.Write(0, x.data());
  ASSERT_EQ(fallocate(memory.fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 32768), 0);
  if (!OnGpu()) {
    EXPECT_EQ(Run(Matmul(In(x, 1, 0), x)).d().data(), std::string(16384, '\0'));
  }
  ASSERT_EQ(ftruncate(memory.fd(), 65536), 0) << "longer it may be";
  ExpectRefused(Refused(Matmul(In(x, 1, 32768), x)), StatusCode::OUT_OF_RANGE, "OUT_OF_RANGE",
                "matmul.a.shared.offset_bytes");
}

TEST_F(SharedMemoryTest, UnregisteredItIsGoneButForCallsThatUseIt) {
  KERND_NEEDS_SLOW_KERNELS();
  const v1::Tensor x = F32({1, 1, 16384, 8});
  v1::AttentionRequest request;
  request.mutable_options()->set_session_id(session_.opened.session_id());
  v1::AttentionOp& op = *request.mutable_attention();
  op.set_layout(v1::ATTENTION_LAYOUT_BHLD);
  *op.mutable_q() = *op.mutable_k() = *op.mutable_v() = x;
  v1::AttentionReply expected, got;
  ASSERT_TRUE(Call(session_.channel, kAttention, request, expected).status.ok());
  const Memory operand(kMiB), result(kMiB);
  MustShare(1, operand);
  MustShare(2, result);
  operand.Write(0, x.data());
  *op.mutable_q() = *op.mutable_k() = *op.mutable_v() = In(x, 1, 0);
  op.mutable_o()->mutable_shared()->set_region_id(2);
  RawReply raw;
  std::thread call([&] { raw = Call(Connect(daemon_->endpoint()), kAttention, request, got); });
  EXPECT_TRUE(WaitUntilItRuns(*daemon_));
  ASSERT_TRUE(Forget(1).status.ok() && Forget(2).status.ok());
  v1::AttentionReply late;
  EXPECT_EQ(Call(session_.channel, kAttention, request, late).reason, "REGION_NOT_FOUND");
  EXPECT_EQ(daemon_->Metrics().at(kShared), 2.0 * kMiB) << "it counts as long as it is used";
  MustShare(1, Memory(4096));  // the id is free
  call.join();
  ASSERT_TRUE(raw.status.ok()) << raw.status.error_message();
  EXPECT_TRUE(result.Read(0, x.data().size()) == expected.o().data());
  EXPECT_TRUE(daemon_->WaitForMetric(kShared, 4096));
}

TEST_F(SharedMemoryTest, SessionsTakeTheirRegionsWithThem) {
  v1::OpenSessionRequest open;
  open.mutable_lease()->set_seconds(1);
  const Memory memory(8192);
  {
    SessionClient brief(daemon_->endpoint(), open), closed(daemon_->endpoint());
    for (const SessionClient* client : {&brief, &closed}) {
      v1::RegisterSharedMemoryRequest request = Registration(1, 8192, HandOver(socket_, memory.fd()));
      request.set_session_id(client->opened.session_id());
      ASSERT_TRUE(Register(*client->stub, request).status.ok());
    }
    closed.Close();
  }
  EXPECT_TRUE(daemon_->WaitForMetric(kShared, 0)) << "one was closed, the other's lease has ended";
  EXPECT_EQ(Mappings(daemon_->pid()), 0);
}

// Values, masks among them, that are others each time they are read; the daemon is none the worse.
TEST_F(SharedMemoryTest, ContentsMayChangeWhileCallsRun) {
  const Memory memory(kMiB);
  MustShare(1, memory);
  std::atomic<bool> stop = false;
  std::thread writer([&] {
    for (std::uint32_t round = 1; !stop; ++round) {
      auto* const words = reinterpret_cast<volatile std::uint32_t*>(memory.bytes().data());
      for (std::size_t i = 0; i < memory.bytes().size() / 4 && !stop; i += 7) words[i] = round * 2654435761u;
    }
  });
  v1::AttentionRequest request;
  request.mutable_options()->set_session_id(session_.opened.session_id());
  v1::AttentionOp& op = *request.mutable_attention();
  op.set_layout(v1::ATTENTION_LAYOUT_BHLD);
  v1::Tensor x = F32({1, 2, 256, 32}), mask;
  mask.set_dtype(v1::DATA_TYPE_BOOL);
  for (const std::int64_t dim : {1, 1, 256, 256}) mask.add_shape(dim);
  *op.mutable_q() = In(x, 1, 0);
  *op.mutable_k() = In(x, 1, 65536);
  *op.mutable_v() = In(x, 1, 131072);
  *op.mutable_mask() = In(mask, 1, 262144);
  op.mutable_o()->mutable_shared()->set_region_id(1);
  op.mutable_o()->mutable_shared()->set_offset_bytes(32768);  // over operands
  for (int i = 0; i < 20; ++i) {
    v1::AttentionReply reply;
    const RawReply raw = Call(session_.channel, kAttention, request, reply);
    EXPECT_TRUE(raw.status.ok()) << raw.status.error_message();
    Run(Matmul(In(F32({256, 256}), 1, 0), In(F32({256, 256}), 1, 4)));
    for (const v1::DataType dtype : {v1::DATA_TYPE_F16, v1::DATA_TYPE_I8, v1::DATA_TYPE_F8E4M3}) {
      v1::Tensor y = F32({128, 128});
      y.set_dtype(dtype);
      Run(Matmul(In(y, 1, 2), In(y, 1, 64)));
    }
  }
  stop = true;
  writer.join();
  v1::MatmulReply well;
  EXPECT_TRUE(Call(session_.channel, kMatmul, SmallMatmul(), well).status.ok());
  EXPECT_EQ(Floats(well.d()), (std::vector<float>{19, 22, 43, 50}));
}

TEST_F(SharedMemoryTest, NanIsAValueLikeOthers) {
  const v1::Tensor x = F32({2, 2}, {NAN, 1, INFINITY, 2}), y = F32({2, 2}, {1, 0, 0, 1});
  const Memory memory(4096);
  MustShare(1, memory);
  memory.Write(0, x.data());
  const std::vector<float> d = Floats(Run(Matmul(In(x, 1, 0), y)).d());
  EXPECT_TRUE(std::isnan(d[0]) && std::isnan(d[1]) && std::isinf(d[2]) && std::isnan(d[3]));
}

TEST_F(SharedMemoryTest, ARegionIsReadByManyCallsAtOnce) {
  const v1::Tensor a = F32({33, 64}), b = F32({64, 64});
  const Memory memory(kMiB);
  MustShare(1, memory);
  memory.Write(0, b.data());
  const std::string expected = Run(Matmul(a, b)).d().data();
  std::vector<std::thread> callers;
  for (int t = 0; t < 4; ++t) {
    callers.emplace_back([&, t] {
      const auto channel = Connect(daemon_->endpoint());
      const std::int64_t at = 65536 * (t + 1);
      for (int i = 0; i < 25; ++i) {
        v1::MatmulRequest request = Matmul(a, In(b, 1, 0));
        request.mutable_matmul()->mutable_d()->mutable_shared()->set_region_id(1);
        request.mutable_matmul()->mutable_d()->mutable_shared()->set_offset_bytes(at);
        v1::MatmulReply reply;
        const RawReply raw = Call(channel, kMatmul, request, reply);
        EXPECT_TRUE(raw.status.ok()) << raw.status.error_message();
        EXPECT_TRUE(memory.Read(at, expected.size()) == expected);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
}

TEST_F(SharedMemoryTest, CapabilitiesSayWhere) {
  v1::GetCapabilitiesReply reply;
  ASSERT_TRUE(
      Call(session_.channel, "/kernd.v1.Device/GetCapabilities", v1::GetCapabilitiesRequest(), reply).status.ok());
  EXPECT_EQ(reply.shared_memory_socket(), socket_);
}

TEST(SharedMemoryOff, IsTheDefault) {
  const auto daemon = Daemon::Start();
  SessionClient session(daemon->endpoint());
  v1::RegisterSharedMemoryRequest request;
  request.set_session_id(session.opened.session_id());
  request.set_size_bytes(4096);
  const RawReply off = Register(*session.stub, request);
  EXPECT_EQ(off.status.error_code(), StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(off.reason, "SHARED_MEMORY_OFF");
  EXPECT_THAT(off.status.error_message(), HasSubstr("--shared-memory-socket"));
  EXPECT_EQ(Unregister(*session.stub, session.opened.session_id(), 1).reason, "REGION_NOT_FOUND");
  v1::GetCapabilitiesReply reply;
  ASSERT_TRUE(
      Call(session.channel, "/kernd.v1.Device/GetCapabilities", v1::GetCapabilitiesRequest(), reply).status.ok());
  EXPECT_EQ(reply.shared_memory_socket(), "");
}

}  // namespace
}  // namespace kernd::testing
