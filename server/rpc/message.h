// Protobuf messages in and out of gRPC byte buffers, under kernd's rules of the wire.
#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>

#include "absl/status/status.h"

namespace kernd::rpc {

// Parses `buffer` and lets go of it.
//   INVALID_ARGUMENT (MALFORMED_MESSAGE)  not a message of this type
//   INVALID_ARGUMENT (MALFORMED_MESSAGE)  more than 8 MiB beside `bytes` fields: parsed, small fields take up to 33
//   times
//                                         their size, outside every budget
//   UNIMPLEMENTED (UNKNOWN_FIELD)         a field below 1000, at any depth, that this version does not know: an old
//                                         daemon must not answer a new client wrongly. From 1000 on fields are hints.
absl::Status Parse(grpc::ByteBuffer& buffer, google::protobuf::Message& message);

// Refuses unknown fields as Parse does.
absl::Status CheckUnknownFields(const google::protobuf::Message& message);

grpc::ByteBuffer Serialize(const google::protobuf::Message& message);

}  // namespace kernd::rpc
