// A failed call's code (the first byte) and grpc-status-details-bin (the rest), as the client reads them.
#include <google/protobuf/stubs/logging.h>

#include "client/src/status.h"
#include "kernd/client/error.h"
#include "kernd/kernels/error.h"
#include "server/rpc/status_codec.h"
#include "tests/fuzz/fuzz.h"

namespace kernd::fuzz {
namespace {

[[maybe_unused]] auto* const kLoud = google::protobuf::SetLogHandler(nullptr);  // it has a line for each bad string

}  // namespace

void Target(std::string_view input) {
  if (input.empty()) return;
  const int code = input.front() & 31;  // what the enumeration can hold
  const grpc::Status wire(static_cast<grpc::StatusCode>(code), "message", std::string(input.substr(1)));
  const absl::Status status = client::FromGrpc(wire);
  Require(status.ok() == (code == 0), "a failure stays one");
  Require(status.ok() || status.message() == "message", "and keeps its message");
  const client::ErrorDetails details = client::DetailsOf(status);
  if (details.retry_after) {
    Require(*details.retry_after >= absl::ZeroDuration(), "nobody is asked to come back in the past");
  }
  Require(!status.ToString().empty(), "a status can be printed");
}

std::vector<std::string> Seeds() {
  const auto of = [](const absl::Status& status) {
    const grpc::Status wire = rpc::ToGrpc(status);
    return std::string(1, static_cast<char>(wire.error_code())) + wire.error_details();
  };
  return {of(InvalidField("attention.q.shape", "[1,2]", "four dimensions")),
          of(WithDetail(absl::ResourceExhaustedError("full"), {.reason = std::string(reason::kMemoryFull),
                                                               .retry_after = absl::Milliseconds(1500),
                                                               .metadata = {{"needed_bytes", "4096"}}})),
          of(absl::InternalError("no detail"))};
}

}  // namespace kernd::fuzz
