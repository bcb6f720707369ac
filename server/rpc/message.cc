#include "server/rpc/message.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/unknown_field_set.h>
#include <grpcpp/impl/codegen/proto_utils.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernd/kernels/error.h"

namespace kernd::rpc {
namespace {

constexpr int kFirstHint = 1000;

// Number of the first unknown field that is no hint, or 0. `path` is built on the way back, so that the usual answer
// costs no string.
int FindUnknown(const google::protobuf::Message& message, std::string& path) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  const google::protobuf::UnknownFieldSet& unknown = reflection.GetUnknownFields(message);
  for (int i = 0; i < unknown.field_count(); ++i) {
    if (unknown.field(i).number() < kFirstHint) return unknown.field(i).number();
  }
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const auto* field : fields) {
    if (field->cpp_type() != google::protobuf::FieldDescriptor::CPPTYPE_MESSAGE) continue;
    const int count = field->is_repeated() ? reflection.FieldSize(message, field) : 1;
    for (int i = 0; i < count; ++i) {
      const google::protobuf::Message& child = field->is_repeated() ? reflection.GetRepeatedMessage(message, field, i)
                                                                    : reflection.GetMessage(message, field);
      if (const int number = FindUnknown(child, path)) {
        const std::string index = field->is_repeated() ? absl::StrCat("[", i, "]") : "";
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
