// The messages of Tensors.Get, read from the slices that they came in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "grpcpp/support/byte_buffer.h"
#include "kernd/client/tensor.h"
#include "kernd/v1/tensors.pb.h"

namespace kernd::client {

// Copies the data of a kernd.v1.GetReply, which must start at byte `offset` of the tensor, to the start of `into`. The
// bytes; INTERNAL, BAD_REPLY where the message is damaged, says another offset, or has more than fits.
absl::StatusOr<std::int64_t> ReadChunk(grpc::ByteBuffer& message, std::int64_t offset, std::span<std::byte> into);

// What the first GetReply of a stream says of the tensor. BAD_REPLY.
absl::StatusOr<v1::TensorInfo> ReadHeader(grpc::ByteBuffer& message);

// A tensor of that type and shape, its bytes not set. BAD_REPLY; RESOURCE_EXHAUSTED where there is no memory for it.
absl::StatusOr<Tensor> TensorOf(const v1::TensorInfo& info);

}  // namespace kernd::client
