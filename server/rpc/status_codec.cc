#include "server/rpc/status_codec.h"

#include <string>
#include <string_view>

#include "kernd/kernels/error.h"
#include "kernd/wire/error_details.pb.h"

namespace kernd::rpc {
namespace {

constexpr std::size_t kMaxMessage = 1024;

// A message may quote what the client sent: keep it printable and short.
std::string Printable(std::string_view text) {
  std::string result(text.substr(0, kMaxMessage));
  for (char& c : result) {
    if (c < 0x20 || c > 0x7e) c = '?';
  }
  if (text.size() > kMaxMessage) result += "...";
  return result;
}

void Pack(kernd::wire::Status& status, std::string_view type, const google::protobuf::Message& detail) {
  google::protobuf::Any& any = *status.add_details();
  any.set_type_url("type.googleapis.com/google.rpc." + std::string(type));
  detail.SerializeToString(any.mutable_value());
}

}  // namespace

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const ErrorDetail detail = DetailOf(status);
  const std::string message = Printable({status.message().data(), status.message().size()});

  kernd::wire::Status wire;
  wire.set_code(static_cast<int>(status.code()));
  wire.set_message(message);
  kernd::wire::ErrorInfo info;
  info.set_reason(detail.reason.empty() ? CodeName(status.code()) : detail.reason);
  info.set_domain("kernd");
  for (const auto& [key, value] : detail.metadata) (*info.mutable_metadata())[key] = Printable(value);
  Pack(wire, "ErrorInfo", info);
  if (!detail.field.empty()) {
    kernd::wire::BadRequest bad;
    auto& violation = *bad.add_field_violations();
    violation.set_field(detail.field);
    violation.set_description(message);
    Pack(wire, "BadRequest", bad);
  }
  if (detail.retry_after) {
    kernd::wire::RetryInfo retry;
    const std::int64_t nanos = absl::ToInt64Nanoseconds(*detail.retry_after);
    retry.mutable_retry_delay()->set_seconds(nanos / 1'000'000'000);
    retry.mutable_retry_delay()->set_nanos(static_cast<std::int32_t>(nanos % 1'000'000'000));
    Pack(wire, "RetryInfo", retry);
  }
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), message, wire.SerializeAsString());
}

const char* CodeName(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kOk: return "OK";
    case absl::StatusCode::kCancelled: return "CANCELLED";
    case absl::StatusCode::kUnknown: return "UNKNOWN";
    case absl::StatusCode::kInvalidArgument: return "INVALID_ARGUMENT";
    case absl::StatusCode::kDeadlineExceeded: return "DEADLINE_EXCEEDED";
    case absl::StatusCode::kNotFound: return "NOT_FOUND";
    case absl::StatusCode::kAlreadyExists: return "ALREADY_EXISTS";
    case absl::StatusCode::kPermissionDenied: return "PERMISSION_DENIED";
    case absl::StatusCode::kResourceExhausted: return "RESOURCE_EXHAUSTED";
    case absl::StatusCode::kFailedPrecondition: return "FAILED_PRECONDITION";
    case absl::StatusCode::kAborted: return "ABORTED";
    case absl::StatusCode::kOutOfRange: return "OUT_OF_RANGE";
    case absl::StatusCode::kUnimplemented: return "UNIMPLEMENTED";
    case absl::StatusCode::kInternal: return "INTERNAL";
    case absl::StatusCode::kUnavailable: return "UNAVAILABLE";
    case absl::StatusCode::kDataLoss: return "DATA_LOSS";
    case absl::StatusCode::kUnauthenticated: return "UNAUTHENTICATED";
    default: return "UNKNOWN";
  }
}

}  // namespace kernd::rpc
