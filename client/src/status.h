// absl::Status with details, from gRPC and from the client itself. The details are the status's payloads, under the
// type URLs that google.rpc gives them.
#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "grpcpp/support/status.h"

namespace kernd::client {

// The status of a call, with what the grpc-status-details-bin trailer says.
absl::Status FromGrpc(const grpc::Status& status);

// An error of the client's own. `field` may be empty.
absl::Status LocalError(absl::StatusCode code, std::string_view reason, std::string_view field,
                        const std::string& message);

// INVALID_ARGUMENT, INVALID_FIELD: "<field> is <value>: <rule>".
absl::Status InvalidField(std::string_view field, std::string_view value, std::string_view rule);

// INTERNAL, BAD_REPLY.
absl::Status BadReply(const std::string& message);

}  // namespace kernd::client

#define KERND_CLIENT_RETURN_IF_ERROR(expr) \
  if (::absl::Status kernd_status_ = (expr); !kernd_status_.ok()) return kernd_status_
