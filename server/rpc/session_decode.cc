#include "server/rpc/session_decode.h"

#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "kernd/kernels/error.h"

namespace kernd::rpc {

absl::StatusOr<core::SessionId> DecodeSessionId(const std::string& id, const std::string& field) {
  core::SessionId session;
  if (id.size() != session.size()) {
    return InvalidField(field, absl::StrCat(id.size(), " bytes"), "the 16 bytes that OpenSession gave");
  }
  std::memcpy(session.data(), id.data(), id.size());
  return session;
}

absl::Status DecodePlacement(const v1::Placement& placement, const std::string& field, std::string_view device,
                             const SessionPlaces& session) {
  switch (placement.where_case()) {
    case v1::Placement::kDeviceUuid:
      if (placement.device_uuid() == device) return absl::OkStatus();
      return WithDetail(absl::NotFoundError(absl::StrCat(field,
                                                         ".device_uuid is not a device of this daemon, which "
                                                         "serves on ",
                                                         std::string(device))),
                        {.reason = std::string(reason::kInvalidField), .field = field + ".device_uuid"});
    case v1::Placement::kWithTensor: {
      const std::string with_tensor = field + ".with_tensor";
      if (session.store == nullptr) {
        return InvalidField(with_tensor, absl::StrCat(placement.with_tensor()), "only with a session_id");
      }
      // One device serves, so every tensor is on it; that it is there is all that can be wrong.
      const absl::Status found = session.store->Describe(session.id, placement.with_tensor()).status();
      if (DetailOf(found).field == "id") return AtField(found, with_tensor);
      return found;
    }
    case v1::Placement::WHERE_NOT_SET: break;
  }
  return absl::OkStatus();
}

absl::Status AtField(const absl::Status& status, const std::string& field) {
  if (status.ok()) return status;
  ErrorDetail detail = DetailOf(status);
  detail.field = field;
  return WithDetail(absl::Status(status.code(), absl::StrCat(field, ": ", status.message())), detail);
}

absl::Status AtTensor(const absl::Status& status, const std::string& field) {
  return AtField(status, DetailOf(status).field == "session_id" ? "options.session_id" : field);
}

absl::Status Under(const absl::Status& status, const std::string& prefix) {
  const std::string field = DetailOf(status).field;
  return field.empty() ? status : AtField(status, prefix + field);
}

absl::Status Explain(const absl::Status& status, Exchange& exchange, std::uint64_t epoch) {
  if (status.ok()) return status;
  ErrorDetail detail = DetailOf(status);
  if (detail.reason != reason::kSessionNotFound) return status;
  const std::optional<std::string> text = exchange.Metadata(kServerEpochKey);
  std::uint64_t theirs = 0;
  if (!text || !absl::SimpleAtoi(*text, &theirs) || theirs == epoch) return status;
  detail.reason = std::string(reason::kServerRestarted);
  detail.metadata["server_epoch"] = absl::StrCat(epoch);
  return WithDetail(absl::NotFoundError(absl::StrCat("session_id is of no session: kernd has restarted, its epoch is ",
                                                     epoch, ", and sessions end with their daemon")),
                    detail);
}

}  // namespace kernd::rpc
