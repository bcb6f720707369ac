#include "server/rpc/message.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/unknown_field_set.h>
#include <grpcpp/impl/codegen/proto_utils.h>

#include <string>
#include <unordered_map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernd/kernels/error.h"

namespace kernd::rpc {
namespace {

using google::protobuf::FieldDescriptor;

constexpr int kFirstHint = 1000;

// The fields of a message type that hold messages, found once: the others have nothing unknown in them, and asking for
// all fields of each message of each request costs as much as parsing it.
const std::vector<const FieldDescriptor*>& MessageFields(const google::protobuf::Descriptor* type) {
  thread_local std::unordered_map<const google::protobuf::Descriptor*, std::vector<const FieldDescriptor*>> known;
  const auto [it, added] = known.try_emplace(type);
  if (added) {
    for (int i = 0; i < type->field_count(); ++i) {
      if (type->field(i)->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) it->second.push_back(type->field(i));
    }
  }
  return it->second;
}

// Number of the first unknown field that is no hint, or 0. `path` is built on the way back, so that the usual answer
// costs no string.
int FindUnknown(const google::protobuf::Message& message, std::string& path) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  const google::protobuf::UnknownFieldSet& unknown = reflection.GetUnknownFields(message);
  for (int i = 0; i < unknown.field_count(); ++i) {
    if (unknown.field(i).number() < kFirstHint) return unknown.field(i).number();
  }
  for (const FieldDescriptor* field : MessageFields(message.GetDescriptor())) {
    const bool repeated = field->is_repeated();
    const int count = repeated ? reflection.FieldSize(message, field) : reflection.HasField(message, field);
    for (int i = 0; i < count; ++i) {
      const google::protobuf::Message& child =
          repeated ? reflection.GetRepeatedMessage(message, field, i) : reflection.GetMessage(message, field);
      if (const int number = FindUnknown(child, path)) {
        const std::string index = repeated ? absl::StrCat("[", i, "]") : "";
        path = absl::StrCat(field->name(), index, path.empty() ? "" : ".", path);
        return number;
      }
    }
  }
  return 0;
}

}  // namespace

absl::Status CheckUnknownFields(const google::protobuf::Message& message) {
  std::string path;
  const int number = FindUnknown(message, path);
  if (number == 0) return absl::OkStatus();
  if (path.empty()) path = message.GetDescriptor()->name();
  return WithDetail(
      absl::UnimplementedError(absl::StrCat("field ", number, " of ", path,
                                            " is not known to this version; only fields from 1000 on may be ignored")),
      {.reason = std::string(reason::kUnknownField),
       .field = path,
       .metadata = {{"field_number", absl::StrCat(number)}}});
}

absl::Status Parse(grpc::ByteBuffer& buffer, google::protobuf::Message& message) {
  grpc::ProtoBufferReader reader(&buffer);
  const bool parsed = reader.status().ok() && message.ParseFromZeroCopyStream(&reader);
  buffer.Clear();
  if (!parsed) {
    return WithDetail(
        absl::InvalidArgumentError(absl::StrCat("the body is not a ", message.GetDescriptor()->full_name())),
        {.reason = std::string(reason::kMalformed)});
  }
  return CheckUnknownFields(message);
}

grpc::ByteBuffer Serialize(const google::protobuf::Message& message) {
  const grpc::Slice slice(message.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

}  // namespace kernd::rpc
