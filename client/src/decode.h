// Wire format to replies.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/src/shared_regions.h"
#include "grpcpp/support/byte_buffer.h"
#include "kernd/client/attention.h"
#include "kernd/client/autotune.h"
#include "kernd/client/device.h"
#include "kernd/client/matmul.h"
#include "kernd/client/operand.h"
#include "kernd/client/result.h"
#include "kernd/client/session.h"

namespace kernd::client {

// The type with that number on the wire; kUnspecified where there is none.
DataType TypeOf(int wire);

// kernd.v1.OpenSessionReply.
struct OpenedSession {
  std::string id;
  std::uint64_t epoch = 0;
  std::string endpoint;
  absl::Duration lease = absl::ZeroDuration();
  std::int64_t quota_bytes = 0;
};

// The tensors' bytes are copied once, from the received slices to the reply or into ResultPlace::into; INVALID_ARGUMENT
// where that is not as large. Where it lies in `shared`, as the request said, they are there already. All: INTERNAL,
// BAD_REPLY where the bytes are not the message, or a tensor has not the bytes that its dtype and shape ask for.
absl::StatusOr<MatmulReply> DecodeMatmul(grpc::ByteBuffer buffer, const ResultPlace& d = {},
                                         const SharedRegions* shared = nullptr);
absl::StatusOr<AttentionReply> DecodeAttention(grpc::ByteBuffer buffer, const ResultPlace& o = {},
                                               const ResultPlace& lse = {}, const SharedRegions* shared = nullptr);
absl::StatusOr<PlanReply> DecodePlan(grpc::ByteBuffer buffer);
absl::StatusOr<Capabilities> DecodeCapabilities(grpc::ByteBuffer buffer);
absl::StatusOr<std::vector<KernelInfo>> DecodeKernels(grpc::ByteBuffer buffer);
absl::StatusOr<AutotuneProgress> DecodeAutotune(grpc::ByteBuffer buffer);
absl::StatusOr<HealthStatus> DecodeHealth(grpc::ByteBuffer buffer);
absl::StatusOr<OpenedSession> DecodeOpenSession(grpc::ByteBuffer buffer);
absl::StatusOr<SessionContents> DecodeList(grpc::ByteBuffer buffer);

}  // namespace kernd::client
