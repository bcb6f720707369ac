// What requests say of sessions, and what is answered where there is none.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernd/v1/common.pb.h"
#include "server/core/session_store.h"
#include "server/rpc/exchange.h"

namespace kernd::rpc {

// Metadata in which clients say which epoch of the daemon they opened their session in.
inline constexpr char kServerEpochKey[] = "kernd-server-epoch";

// A session that a request has named. Null store: none.
struct SessionPlaces {
  core::SessionStore* store = nullptr;
  core::SessionId id = {};
  core::SessionStore::Hold hold = {};  // it does not expire under the call
};

// INVALID_ARGUMENT: not 16 bytes.
absl::StatusOr<core::SessionId> DecodeSessionId(const std::string& id, const std::string& field);

// NOT_FOUND: another device than `device`; no such tensor. INVALID_ARGUMENT: a tensor without a session.
absl::Status DecodePlacement(const v1::Placement& placement, const std::string& field, std::string_view device,
                             const SessionPlaces& session);

// What is wrong is wrong at `field` of the request.
absl::Status AtField(const absl::Status& status, const std::string& field);
// What a store refused because of a tensor, at that tensor's `field`, or because of the session.
absl::Status AtTensor(const absl::Status& status, const std::string& field);
// The field at fault, if any, is `prefix` and what it was.
absl::Status Under(const absl::Status& status, const std::string& prefix);

// A session that is not found was perhaps one of an earlier start of the daemon, which the client's metadata tell
// (SERVER_RESTARTED).
absl::Status Explain(const absl::Status& status, Exchange& exchange, std::uint64_t epoch);

}  // namespace kernd::rpc
