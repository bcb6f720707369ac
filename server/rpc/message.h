// Protobuf messages in and out of gRPC byte buffers, under kernd's rules of the wire.
#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/core/operand.h"

namespace kernd::rpc {

// The tensors' bytes of a parsed message, left where they arrived.
class Payloads {
 public:
  // The bytes of a `data` field that Parse has filled, which is how the message refers to them. Empty for an absent
  // field.
  core::Operand Find(const std::string& data) const;

 private:
  friend class BodyWalk;
  struct Payload {
    std::size_t slice = 0, offset = 0;  // where it begins
    std::int64_t bytes = 0;
  };
  grpc::ByteBuffer body_;  // before its slices: see HeldSlices
  std::vector<grpc::Slice> slices_;
  std::vector<Payload> payloads_;
};

// Parses `buffer` and lets go of it. Fields named `data` keep their bytes in the received slices: `payloads` has them,
// and the message only what finds them there. All other rules are those of protobuf's own parser, which reads the rest.
//   INVALID_ARGUMENT (MALFORMED_MESSAGE)  not a message of this type
//   INVALID_ARGUMENT (MALFORMED_MESSAGE)  more than 8 MiB beside `data` and hints: parsed, small fields take up to 33
//                                         times their size, outside every budget
//   UNIMPLEMENTED (UNKNOWN_FIELD)         a field below 1000, at any depth, that this version does not know: an old
//                                         daemon must not answer a new client wrongly. From 1000 on fields are hints.
absl::Status Parse(grpc::ByteBuffer& buffer, google::protobuf::Message& message, Payloads& payloads);

// The same for messages that have no tensors.
inline absl::Status Parse(grpc::ByteBuffer& buffer, google::protobuf::Message& message) {
  Payloads none;
  return Parse(buffer, message, none);
}

grpc::ByteBuffer Serialize(const google::protobuf::Message& message);

}  // namespace kernd::rpc
