// Arguments to wire format.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "client/src/pieces.h"
#include "client/src/shared_regions.h"
#include "kernd/client/attention.h"
#include "kernd/client/matmul.h"
#include "kernd/client/options.h"

namespace kernd::client {

// kernd.v1.MatmulRequest and AttentionRequest, for a call in the session of that id, or in none. The tensors' bytes are
// borrowed from the views; what lies in `shared`, the session's, is named. INVALID_ARGUMENT where a view has not the
// bytes that its dtype and shape ask for, or a tensor is, or shall be, resident and there is no session; other rules
// are the daemon's to check.
absl::StatusOr<Pieces> EncodeMatmul(const MatmulArgs& args, const CallOptions& options, const std::string& session = {},
                                    const SharedRegions* shared = nullptr);
absl::StatusOr<Pieces> EncodeAttention(const AttentionArgs& args, const CallOptions& options,
                                       const std::string& session = {}, const SharedRegions* shared = nullptr);

// kernd.v1.PlanRequest with one step; the views' bytes are left out.
absl::StatusOr<Pieces> EncodePlan(const MatmulArgs& args, const CallOptions& options);
absl::StatusOr<Pieces> EncodePlan(const AttentionArgs& args, const CallOptions& options);

}  // namespace kernd::client
