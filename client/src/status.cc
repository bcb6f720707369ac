#include "client/src/status.h"

#include <algorithm>
#include <string>

#include "absl/strings/cord.h"
#include "kernd/client/error.h"
#include "kernd/wire/error_details.pb.h"

namespace kernd::client {
namespace {

constexpr char kErrorInfo[] = "type.googleapis.com/google.rpc.ErrorInfo";
constexpr char kRetryInfo[] = "type.googleapis.com/google.rpc.RetryInfo";
constexpr char kBadRequest[] = "type.googleapis.com/google.rpc.BadRequest";
constexpr char kDomain[] = "kernd.client";

template <typename Message>
void Attach(absl::Status& status, const char* url, const Message& message) {
  status.SetPayload(url, absl::Cord(message.SerializeAsString()));
}

// False where the status carries no such message, or a damaged one.
template <typename Message>
bool Read(const absl::Status& status, const char* url, Message* message) {
  const auto payload = status.GetPayload(url);
  return payload.has_value() && message->ParseFromString(std::string(*payload));
}

}  // namespace

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  const int code = status.error_code();
  const bool known = code > 0 && code <= static_cast<int>(absl::StatusCode::kUnauthenticated);
  absl::Status result(known ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown, status.error_message());
  wire::Status details;
  if (!status.error_details().empty() && details.ParseFromString(status.error_details())) {
    for (const google::protobuf::Any& any : details.details())
      result.SetPayload(any.type_url(), absl::Cord(any.value()));
  }
  return result;
}

absl::Status LocalError(absl::StatusCode code, std::string_view reason, std::string_view field,
                        const std::string& message) {
  absl::Status status(code, message);
  wire::ErrorInfo info;
  info.set_reason(std::string(reason));
  info.set_domain(kDomain);
  Attach(status, kErrorInfo, info);
  if (!field.empty()) {
    wire::BadRequest request;
    auto* violation = request.add_field_violations();
    violation->set_field(std::string(field));
    violation->set_description(message);
    Attach(status, kBadRequest, request);
  }
  return status;
}

absl::Status InvalidField(std::string_view field, std::string_view value, std::string_view rule) {
  std::string message(field);
  message.append(" is ").append(value).append(": ").append(rule);
  return LocalError(absl::StatusCode::kInvalidArgument, reason::kInvalidField, field, message);
}

absl::Status BadReply(const std::string& message) {
  return LocalError(absl::StatusCode::kInternal, reason::kBadReply, {}, "the daemon's reply is damaged: " + message);
}

ErrorDetails DetailsOf(const absl::Status& status) {
  ErrorDetails details;
  if (wire::ErrorInfo info; Read(status, kErrorInfo, &info)) {
    details.reason = info.reason();
    details.metadata.insert(info.metadata().begin(), info.metadata().end());
  }
  if (wire::RetryInfo retry; Read(status, kRetryInfo, &retry) && retry.has_retry_delay()) {
    const absl::Duration delay =
        absl::Seconds(retry.retry_delay().seconds()) + absl::Nanoseconds(retry.retry_delay().nanos());
    details.retry_after = std::max(delay, absl::ZeroDuration());
  }
  if (wire::BadRequest request; Read(status, kBadRequest, &request) && request.field_violations_size() > 0) {
    details.field = request.field_violations(0).field();
  }
  return details;
}

}  // namespace kernd::client
