// A client to be killed: `fault_client ENDPOINT STAGE` goes as far as STAGE, says "there" and stays.
//   connecting   has sent the first bytes of a frame
//   sending      has sent half of a body of 1 MiB
//   computing    has sent a call that computes for minutes
//   receiving    has sent a call with a reply of 16 MiB and reads nothing of it
#include <unistd.h>

#include <cstdio>
#include <optional>
#include <string>

#include "tests/support/http2_client.h"
#include "tests/support/pending_call.h"
#include "tests/support/raw_client.h"

namespace kernd::testing {
namespace {

int Main(const std::string& endpoint, const std::string& stage) {
  const auto client = Http2Client::Connect(endpoint);
  if (client == nullptr) return 1;
  std::optional<PendingCall> call;
  bool sent = true;
  if (stage == "connecting") {
    sent = client->Send(CallHeaders(1, "/kernd.v1.Compute/Matmul").substr(0, 5));
  } else if (stage == "sending") {
    constexpr std::size_t kBytes = 1 << 20, kChunk = 16'000;
    sent = client->Send(CallHeaders(1, "/kernd.v1.Compute/Matmul", {{"kernd-body-bytes", std::to_string(kBytes)}}) +
                        Encode({FrameType::kData, 0, 1, MessagePrefix(kBytes) + std::string(kChunk, 'x')}));
  } else if (stage == "computing") {
    call.emplace(Connect(endpoint), EndlessCall(), std::chrono::hours(1));
  } else if (stage == "receiving") {
    v1::MatmulRequest request;  // 16 KiB in
    *request.mutable_matmul()->mutable_a() = F32({2048, 1});
    *request.mutable_matmul()->mutable_b() = F32({1, 2048});
    sent = client->Send(CallHeaders(1, "/kernd.v1.Compute/Matmul") + CallBody(1, request.SerializeAsString()));
  } else {
    return 2;
  }
  if (!sent) return 1;
  std::puts("there");
  std::fflush(stdout);
  for (;;) pause();
}

}  // namespace
}  // namespace kernd::testing

int main(int argc, char** argv) {
  return argc == 3 ? kernd::testing::Main(argv[1], argv[2]) : 2;
}
