#include "server/rpc/message.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/unknown_field_set.h>
#include <google/protobuf/wire_format_lite.h>
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
constexpr std::int64_t kMaxOverhead = 8 << 20;
constexpr int kMaxDepth = 16;

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

// Adds the lengths of the `bytes` fields of a message of `type` to `data`. False: no such message.
bool AddData(google::protobuf::io::CodedInputStream& in, const google::protobuf::Descriptor* type, int depth,
             std::int64_t& data) {
  using google::protobuf::internal::WireFormatLite;
  while (const std::uint32_t tag = in.ReadTag()) {
    const FieldDescriptor* field = type->FindFieldByNumber(WireFormatLite::GetTagFieldNumber(tag));
    if (field == nullptr || WireFormatLite::GetTagWireType(tag) != WireFormatLite::WIRETYPE_LENGTH_DELIMITED) {
      if (!WireFormatLite::SkipField(&in, tag)) return false;
      continue;
    }
    int length = 0;
    if (!in.ReadVarintSizeAsInt(&length)) return false;
    if (field->type() == FieldDescriptor::TYPE_BYTES) {
      data += length;
      if (!in.Skip(length)) return false;
    } else if (field->type() == FieldDescriptor::TYPE_MESSAGE && depth < kMaxDepth) {
      const auto limit = in.PushLimit(length);
      const bool read = AddData(in, field->message_type(), depth + 1, data) && in.BytesUntilLimit() == 0;
      if (!read) return false;
      in.PopLimit(limit);
    } else if (!in.Skip(length)) {
      return false;
    }
  }
  return in.ConsumedEntireMessage();
}

absl::Status CheckOverhead(grpc::ByteBuffer& buffer, const google::protobuf::Descriptor* type) {
  const std::int64_t total = static_cast<std::int64_t>(buffer.Length());
  if (total <= kMaxOverhead) return absl::OkStatus();
  grpc::ProtoBufferReader reader(&buffer);
  google::protobuf::io::CodedInputStream in(&reader);
  std::int64_t data = 0;
  if (AddData(in, type, 0, data) && total - data <= kMaxOverhead) return absl::OkStatus();
  return WithDetail(
      absl::InvalidArgumentError(absl::StrCat("the body is not a ", type->full_name(), ", or has more than ",
                                              kMaxOverhead, " bytes beside its tensors' data")),
      {.reason = std::string(reason::kMalformed)});
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
  if (const absl::Status checked = CheckOverhead(buffer, message.GetDescriptor()); !checked.ok()) {
    buffer.Clear();
    return checked;
  }
  grpc::ProtoBufferReader reader(&buffer);
  // Not ParseFromBoundedZeroCopyStream: after a message that ends early it backs up beyond the last slice, and gRPC's
  // reader aborts.
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
