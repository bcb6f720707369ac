// Wire format to replies.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "grpcpp/support/byte_buffer.h"
#include "kernd/client/attention.h"
#include "kernd/client/device.h"
#include "kernd/client/matmul.h"
#include "kernd/client/result.h"

namespace kernd::client {

// The tensors' bytes are copied once, from the received slices to the reply. All: INTERNAL, BAD_REPLY where the bytes
// are not the message, or a tensor has not the bytes that its dtype and shape ask for.
absl::StatusOr<MatmulReply> DecodeMatmul(grpc::ByteBuffer buffer);
absl::StatusOr<AttentionReply> DecodeAttention(grpc::ByteBuffer buffer);
absl::StatusOr<PlanReply> DecodePlan(grpc::ByteBuffer buffer);
absl::StatusOr<Capabilities> DecodeCapabilities(grpc::ByteBuffer buffer);
absl::StatusOr<std::vector<KernelInfo>> DecodeKernels(grpc::ByteBuffer buffer);
absl::StatusOr<HealthStatus> DecodeHealth(grpc::ByteBuffer buffer);

}  // namespace kernd::client
