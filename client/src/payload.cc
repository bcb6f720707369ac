#include "client/src/payload.h"

#include <new>

#include "client/src/status.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "grpcpp/support/proto_buffer_reader.h"
#include "kernd/v1/common.pb.h"

namespace kernd::client {
namespace {

using google::protobuf::io::CodedInputStream;
using google::protobuf::io::CodedOutputStream;
using google::protobuf::io::StringOutputStream;

enum WireType : std::uint32_t { kVarint = 0, kFixed64 = 1, kLengthDelimited = 2, kFixed32 = 5 };

// Copies the field after `tag` as it is. Groups, which proto3 does not have, are damage.
bool CopyField(CodedInputStream& in, std::uint32_t tag, CodedOutputStream& out) {
  out.WriteTag(tag);
  switch (tag & 7) {
    case kVarint: {
      std::uint64_t value = 0;
      if (!in.ReadVarint64(&value)) return false;
      out.WriteVarint64(value);
      return true;
    }
    case kFixed64: {
      std::uint64_t value = 0;
      if (!in.ReadLittleEndian64(&value)) return false;
      out.WriteLittleEndian64(value);
      return true;
    }
    case kFixed32: {
      std::uint32_t value = 0;
      if (!in.ReadLittleEndian32(&value)) return false;
      out.WriteLittleEndian32(value);
      return true;
    }
    case kLengthDelimited: {
      std::uint32_t length = 0;
      std::string bytes;
      if (!in.ReadVarint32(&length) || !in.ReadString(&bytes, static_cast<int>(length))) return false;
      out.WriteVarint32(length);
      out.WriteString(bytes);
      return true;
    }
    default: return false;
  }
}

bool ReadPayload(CodedInputStream& in, std::span<std::byte> into, Payload* payload) {
  std::uint32_t length = 0;
  // What a length promises is only believed where as much has arrived.
  if (!in.ReadVarint32(&length) || static_cast<std::int64_t>(length) > in.BytesUntilLimit()) return false;
  payload->size = length;
  if (!into.empty() && into.size() == length) {
    payload->into = into;
    return in.ReadRaw(into.data(), static_cast<int>(length));
  }
  payload->into = {};
  payload->data.reset(new (std::nothrow) std::byte[length]);
  return payload->data != nullptr && in.ReadRaw(payload->data.get(), static_cast<int>(length));
}

// Reads a Tensor up to the stream's limit: its bytes into `payload`, the other fields into `head`.
bool PartTensor(CodedInputStream& in, std::span<std::byte> into, std::string* head, Payload* payload) {
  StringOutputStream stream(head);
  CodedOutputStream out(&stream);
  constexpr std::uint32_t kData = v1::Tensor::kDataFieldNumber << 3 | kLengthDelimited;
  while (in.BytesUntilLimit() > 0) {
    const std::uint32_t tag = in.ReadTag();
    if (tag == 0) return false;
    if (!(tag == kData ? ReadPayload(in, into, payload) : CopyField(in, tag, out))) return false;
  }
  return true;
}

bool Part(CodedInputStream& in, TensorFields tensors, const Destinations& into, ParsedReply* reply) {
  StringOutputStream stream(&reply->rest);
  CodedOutputStream out(&stream);
  while (in.BytesUntilLimit() > 0) {
    const std::uint32_t tag = in.ReadTag();
    const int field = static_cast<int>(tag >> 3);
    if (tag == 0) return false;
    if (field < tensors.first || field > tensors.last || (tag & 7) != kLengthDelimited) {
      if (!CopyField(in, tag, out)) return false;
      continue;
    }
    std::uint32_t length = 0;
    if (!in.ReadVarint32(&length) || static_cast<std::int64_t>(length) > in.BytesUntilLimit()) return false;
    const CodedInputStream::Limit outer = in.PushLimit(static_cast<int>(length));
    std::string head;
    const auto place = into.find(field);
    if (!PartTensor(in, place == into.end() ? std::span<std::byte>() : place->second, &head, &reply->tensors[field])) {
      return false;
    }
    in.PopLimit(outer);
    out.WriteTag(tag);
    out.WriteVarint32(static_cast<std::uint32_t>(head.size()));
    out.WriteString(head);
  }
  return true;
}

}  // namespace

absl::StatusOr<ParsedReply> PartReply(grpc::ByteBuffer buffer, TensorFields tensors, const Destinations& into) {
  const std::size_t size = buffer.Length();
  if (size > static_cast<std::size_t>(INT32_MAX)) return BadReply("longer than a message can be");
  ParsedReply reply;
  grpc::ProtoBufferReader reader(&buffer);
  CodedInputStream in(&reader);
  in.PushLimit(static_cast<int>(size));
  if (size > 0 && !Part(in, tensors, into, &reply)) return BadReply("no message of " + std::to_string(size) + " bytes");
  return reply;
}

}  // namespace kernd::client
