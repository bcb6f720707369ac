// Arguments to wire format.
#pragma once

#include "absl/status/statusor.h"
#include "client/src/pieces.h"
#include "kernd/client/attention.h"
#include "kernd/client/matmul.h"
#include "kernd/client/options.h"

namespace kernd::client {

// kernd.v1.MatmulRequest and AttentionRequest. The tensors' bytes are borrowed from the views.
// INVALID_ARGUMENT where a view has not the bytes that its dtype and shape ask for; other rules are the daemon's to
// check.
absl::StatusOr<Pieces> EncodeMatmul(const MatmulArgs& args, const CallOptions& options);
absl::StatusOr<Pieces> EncodeAttention(const AttentionArgs& args, const CallOptions& options);

// kernd.v1.PlanRequest with one step; the views' bytes are left out.
absl::StatusOr<Pieces> EncodePlan(const MatmulArgs& args, const CallOptions& options);
absl::StatusOr<Pieces> EncodePlan(const AttentionArgs& args, const CallOptions& options);

}  // namespace kernd::client
