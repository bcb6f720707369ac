// The messages of Tensors.Get, read from the slices that they came in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "grpcpp/support/byte_buffer.h"
#include "kernd/client/tensor.h"

namespace kernd::client {

// Copies the data of a kernd.v1.GetReply, which must start at byte `offset` of the tensor, to the start of `into`. The
// bytes; INTERNAL, BAD_REPLY where the message is damaged, says another offset, or has more than fits.
absl::StatusOr<std::int64_t> ReadChunk(grpc::ByteBuffer& message, std::int64_t offset, std::span<std::byte> into);

// A tensor of the type and the shape that the first GetReply of a stream names, its bytes not set. BAD_REPLY;
// RESOURCE_EXHAUSTED where there is no memory for it.
absl::StatusOr<Tensor> TensorOfHeader(grpc::ByteBuffer& message);

}  // namespace kernd::client
