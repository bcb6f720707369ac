#include "client/src/chunk.h"

#include <limits>
#include <string>
#include <utility>

#include "client/src/decode.h"
#include "client/src/status.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/wire_format_lite.h"
#include "grpcpp/support/proto_buffer_reader.h"
#include "kernd/v1/tensors.pb.h"

namespace kernd::client {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

constexpr std::uint32_t kHeader =
    WireFormatLite::MakeTag(v1::GetReply::kHeaderFieldNumber, WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
constexpr std::uint32_t kOffset =
    WireFormatLite::MakeTag(v1::GetReply::kOffsetBytesFieldNumber, WireFormatLite::WIRETYPE_VARINT);
constexpr std::uint32_t kData =
    WireFormatLite::MakeTag(v1::GetReply::kDataFieldNumber, WireFormatLite::WIRETYPE_LENGTH_DELIMITED);

// Calls `field` with each tag until the end; false where it says so or the bytes are no message.
template <typename Field>
bool Walk(grpc::ByteBuffer& message, Field field) {
  if (message.Length() == 0) return true;
  if (message.Length() > static_cast<std::size_t>(std::numeric_limits<int>::max())) return false;
  grpc::ProtoBufferReader reader(&message);
  CodedInputStream in(&reader);
  in.PushLimit(static_cast<int>(message.Length()));
  while (in.BytesUntilLimit() > 0) {
    const std::uint32_t tag = in.ReadTag();
    if (tag == 0 || !field(in, tag)) return false;
  }
  return true;
}

bool ReadLength(CodedInputStream& in, int* length) {
  return in.ReadVarintSizeAsInt(length) && *length <= in.BytesUntilLimit();
}

}  // namespace

absl::StatusOr<std::int64_t> ReadChunk(grpc::ByteBuffer& message, std::int64_t offset, std::span<std::byte> into) {
  // The daemon writes the offset before the data; it is absent where it is 0.
  std::uint64_t named = 0;
  int length = 0;
  const bool whole = Walk(message, [&](CodedInputStream& in, std::uint32_t tag) {
    if (tag == kOffset) return length == 0 && in.ReadVarint64(&named);
    if (tag != kData) return WireFormatLite::SkipField(&in, tag);
    return length == 0 && ReadLength(in, &length) && named == static_cast<std::uint64_t>(offset) &&
           static_cast<std::size_t>(length) <= into.size() && in.ReadRaw(into.data(), length);
  });
  if (whole) return length;
  return BadReply("no chunk from byte " + std::to_string(offset) + " on with at most " + std::to_string(into.size()) +
                  " bytes");
}

absl::StatusOr<v1::TensorInfo> ReadHeader(grpc::ByteBuffer& message) {
  v1::TensorInfo info;
  const bool whole = Walk(message, [&info](CodedInputStream& in, std::uint32_t tag) {
    if (tag != kHeader) return WireFormatLite::SkipField(&in, tag);
    int length = 0;
    if (!ReadLength(in, &length)) return false;
    const CodedInputStream::Limit outer = in.PushLimit(length);
    const bool merged = info.MergeFromCodedStream(&in);
    in.PopLimit(outer);
    return merged;
  });
  if (!whole) return BadReply("no GetReply");
  return info;
}

absl::StatusOr<Tensor> TensorOf(const v1::TensorInfo& info) {
  absl::StatusOr<Tensor> tensor = Tensor::Allocate(TypeOf(info.dtype()), {info.shape().begin(), info.shape().end()});
  if (absl::IsInvalidArgument(tensor.status())) return BadReply(std::string(tensor.status().message()));
  return tensor;
}

}  // namespace kernd::client
