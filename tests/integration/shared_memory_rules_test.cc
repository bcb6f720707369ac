// What may be shared and named, and what the daemon says to the rest.
#include <gmock/gmock.h>

#include <functional>
#include <limits>
#include <vector>

#include "kernd/v1/device.pb.h"
#include "tests/integration/shared_memory_case.h"

namespace kernd::testing {
namespace {

using grpc::StatusCode;
using ::testing::HasSubstr;

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

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
