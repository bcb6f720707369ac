// Parts a reply into a small message, for protobuf's parser, and the bytes of its tensors, which are copied once, to
// where they stay. The parser alone would let a large string grow by doubling, and copy it each time.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "grpcpp/support/byte_buffer.h"

namespace kernd::client {

struct Payload {
  std::span<std::byte> into;          // they went there, or
  std::unique_ptr<std::byte[]> data;  // are here
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

// By the field of the reply: where the bytes of its tensor shall go, if there is just the room for them.
using Destinations = std::map<int, std::span<std::byte>>;

// INTERNAL, BAD_REPLY where the bytes are no protobuf message.
absl::StatusOr<ParsedReply> PartReply(grpc::ByteBuffer buffer, TensorFields tensors, const Destinations& into = {});

}  // namespace kernd::client
