#include "kernd/kernels/error.h"

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"

namespace kernd {
namespace {

constexpr char kReasonUrl[] = "kernd/reason";
constexpr char kFieldUrl[] = "kernd/field";
constexpr char kRetryUrl[] = "kernd/retry_after_ns";
constexpr std::string_view kMetadataPrefix = "kernd/metadata/";

absl::string_view Absl(std::string_view s) {
  return {s.data(), s.size()};
}
std::string_view Std(absl::string_view s) {
  return {s.data(), s.size()};
}

absl::Status FieldStatus(absl::StatusCode code, std::string_view reason, std::string_view field, std::string_view value,
                         std::string_view rule) {
  absl::Status status(code, absl::StrCat(Absl(field), " is ", Absl(value), ": ", Absl(rule)));
  return WithDetail(std::move(status), {.reason = std::string(reason), .field = std::string(field)});
}

}  // namespace

absl::Status InvalidField(std::string_view field, std::string_view value, std::string_view rule) {
  return FieldStatus(absl::StatusCode::kInvalidArgument, reason::kInvalidField, field, value, rule);
}

absl::Status UnsupportedField(std::string_view field, std::string_view value, std::string_view rule) {
  return FieldStatus(absl::StatusCode::kUnimplemented, reason::kUnsupported, field, value, rule);
}

absl::Status WithDetail(absl::Status status, const ErrorDetail& detail) {
  if (status.ok()) return status;
  absl::Status result(status.code(), status.message());
  if (!detail.reason.empty()) result.SetPayload(kReasonUrl, absl::Cord(detail.reason));
  if (!detail.field.empty()) result.SetPayload(kFieldUrl, absl::Cord(detail.field));
  if (detail.retry_after) {
    result.SetPayload(kRetryUrl, absl::Cord(absl::StrCat(absl::ToInt64Nanoseconds(*detail.retry_after))));
  }
  for (const auto& [key, value] : detail.metadata) {
    result.SetPayload(absl::StrCat(Absl(kMetadataPrefix), key), absl::Cord(value));
  }
  return result;
}

ErrorDetail DetailOf(const absl::Status& status) {
  ErrorDetail detail;
  status.ForEachPayload([&](absl::string_view url_view, const absl::Cord& payload) {
    const std::string_view url = Std(url_view);
    std::string value(payload);
    if (url == kReasonUrl) {
      detail.reason = std::move(value);
    } else if (url == kFieldUrl) {
      detail.field = std::move(value);
    } else if (url == kRetryUrl) {
      detail.retry_after = absl::Nanoseconds(std::stoll(value));
    } else if (url.starts_with(kMetadataPrefix)) {
      detail.metadata.emplace(url.substr(kMetadataPrefix.size()), std::move(value));
    }
  });
  return detail;
}

}  // namespace kernd
