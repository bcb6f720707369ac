// Parts a reply into a small message, for protobuf's parser, and the bytes of its tensors, which are copied once, to
// where they stay. The parser alone would let a large string grow by doubling, and copy it each time.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "grpcpp/support/byte_buffer.h"

namespace kernd::client {

struct Payload {
  std::unique_ptr<std::byte[]> data;
  std::size_t size = 0;
};

struct ParsedReply {
  std::string rest;                // the message without the bytes of its tensors
  std::map<int, Payload> tensors;  // by the field of the reply that holds the tensor
};

// The fields of the reply from `first` to `last` are kernd.v1.Tensor.
struct TensorFields {
  int first = 0, last = -1;
};

// INTERNAL, BAD_REPLY where the bytes are no protobuf message.
absl::StatusOr<ParsedReply> PartReply(grpc::ByteBuffer buffer, TensorFields tensors);

}  // namespace kernd::client
