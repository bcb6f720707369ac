// absl::Status to gRPC, once and here.
#pragma once

#include <grpcpp/support/status.h>

#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace kernd::rpc {

// The code one to one, the message, and grpc-status-details-bin: google.rpc.ErrorInfo (domain "kernd"), BadRequest
// where a field is at fault, RetryInfo where trying again may help. Kept far below gRPC's 8 KiB of metadata.
grpc::Status ToGrpc(const absl::Status& status);

// The upper-case name of a code, "INVALID_ARGUMENT".
const char* CodeName(absl::StatusCode code);

}  // namespace kernd::rpc
