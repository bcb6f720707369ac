#include "server/rpc/message.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/wire_format_lite.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernd/kernels/error.h"
#include "server/rpc/wire_reader.h"

namespace kernd::rpc {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::internal::WireFormatLite;

constexpr int kFirstHint = 1000;
constexpr std::size_t kMaxOverhead = 8 << 20;
constexpr int kMaxDepth = 100;  // protobuf's own
constexpr int kLengthBytes = 5;

using Ticket = std::uint32_t;  // index of a payload

// What the walk has to know of a message type, found once: asking the descriptors for each request costs as much as
// parsing it.
struct MessageRules {
  struct Field {
    enum class Kind { kUnknown, kScalar, kMessage, kData };
    Kind kind = Kind::kUnknown;
    std::uint32_t wire_type = 0;
    bool repeated = false;  // scalars of a repeated field may also come packed
    const FieldDescriptor* descriptor = nullptr;
    const MessageRules* message = nullptr;
  };
  std::vector<Field> fields;  // by number

  const Field& operator[](std::uint32_t number) const {
    static const Field kNone;
    return number < fields.size() ? fields[number] : kNone;
  }
};

const MessageRules& RulesOf(const Descriptor* type) {
  thread_local std::unordered_map<const Descriptor*, std::unique_ptr<MessageRules>> known;
  std::unique_ptr<MessageRules>& rules = known[type];
  if (rules != nullptr) return *rules;
  rules = std::make_unique<MessageRules>();
  for (int i = 0; i < type->field_count(); ++i) {
    const FieldDescriptor* descriptor = type->field(i);
    const std::size_t number = static_cast<std::size_t>(descriptor->number());
    if (rules->fields.size() <= number) rules->fields.resize(number + 1);
    MessageRules::Field field = {.kind = MessageRules::Field::Kind::kScalar,
                                 .wire_type = static_cast<std::uint32_t>(WireFormatLite::WireTypeForFieldType(
                                     static_cast<WireFormatLite::FieldType>(descriptor->type()))),
                                 .repeated = descriptor->is_repeated(),
                                 .descriptor = descriptor};
    if (descriptor->type() == FieldDescriptor::TYPE_MESSAGE) {
      field.kind = MessageRules::Field::Kind::kMessage;
      field.message = &RulesOf(descriptor->message_type());
    } else if (descriptor->type() == FieldDescriptor::TYPE_BYTES && descriptor->name() == "data") {
      field.kind = MessageRules::Field::Kind::kData;
    }
    rules->fields[number] = field;
  }
  return *rules;
}

// Received slices, which a buffer of its own lets go of last: one that gives memory back to a resource quota that is
// full wakes gRPC's reclaimer, which runs only where gRPC has been entered. grpc_byte_buffer_destroy does that;
// grpc_slice_unref of gRPC 1.51 does not, and crashes there.
struct HeldSlices {
  grpc::ByteBuffer buffer;
  std::vector<grpc::Slice> slices;
};

void AppendVarint(std::string& out, std::uint64_t value) {
  while (value >= 0x80) {
    out.push_back(static_cast<char>(value | 0x80));
    value >>= 7;
  }
  out.push_back(static_cast<char>(value));
}

}  // namespace

// One pass over a body: makes the message that protobuf's parser is given, which is the same message with a ticket in
// place of each tensor's bytes. All that has a meaning of its own there (order, duplicates, oneofs, packed fields) is
// so left to that parser.
class BodyWalk {
 public:
  // Lets go of `buffer`.
  BodyWalk(grpc::ByteBuffer& buffer, Payloads& payloads)
      : payloads_(payloads), there_(buffer.Dump(&payloads.slices_).ok()), reader_(payloads.slices_) {
    payloads_.body_.Swap(&buffer);
    buffer.Clear();
    payloads_.payloads_.clear();
  }

  // False: no message, or one with too much in it.
  bool Walk(const MessageRules& rules) { return there_ && Walk(rules, reader_.left(), 0); }

  const std::string& rest() const { return rest_; }   // what is left to parse
  std::uint32_t unknown() const { return unknown_; }  // number of the first unknown field that is no hint, or 0
  const std::string& unknown_path() const { return unknown_path_; }

 private:
  using Field = MessageRules::Field;

  bool Walk(const MessageRules& rules, std::int64_t length, int depth) {
    if (length > reader_.left()) return false;
    const std::int64_t end = reader_.left() - length;            // as many are left when the message has been read
    absl::InlinedVector<std::pair<std::uint32_t, int>, 1> seen;  // repeated messages, for the path of an unknown field
    while (reader_.left() > end) {
      std::uint32_t tag = 0;
      if (!reader_.Tag(tag) || rest_.size() > kMaxOverhead) return false;
      const std::uint32_t number = tag >> 3, wire_type = tag & 7;
      const Field& field = rules[number];
      const bool packed = field.repeated && field.kind == Field::Kind::kScalar &&
                          wire_type == WireFormatLite::WIRETYPE_LENGTH_DELIMITED;
      if (field.kind == Field::Kind::kUnknown || (wire_type != field.wire_type && !packed)) {
        if (number < kFirstHint && unknown_ == 0) unknown_ = number;
        if (number == 0 || !SkipField(number, wire_type, depth)) return false;
        continue;
      }
      AppendVarint(rest_, tag);
      if (wire_type != WireFormatLite::WIRETYPE_LENGTH_DELIMITED) {
        if (!CopyScalar(wire_type)) return false;
        continue;
      }
      std::int64_t size = 0;
      if (!reader_.Length(size) || reader_.left() - size < end) return false;
      switch (field.kind) {
        case Field::Kind::kData:
          if (!TakeData(size)) return false;
          break;
        case Field::Kind::kMessage: {
          const std::uint32_t unknown_before = unknown_;
          if (!WalkChild(*field.message, size, depth)) return false;
          const int index = field.repeated ? Count(seen, number) : -1;
          if (unknown_before == 0 && unknown_ != 0) AddToPath(field, index);
          break;
        }
        default:
          if (rest_.size() + static_cast<std::size_t>(size) > kMaxOverhead) return false;
          AppendVarint(rest_, static_cast<std::uint64_t>(size));
          if (!reader_.Append(size, rest_)) return false;
      }
    }
    return reader_.left() == end;
  }

  // Its length is known only afterwards, and gets the room of the longest.
  bool WalkChild(const MessageRules& rules, std::int64_t size, int depth) {
    const std::size_t at = rest_.size();
    rest_.append(kLengthBytes, '\0');
    if (depth >= kMaxDepth || !Walk(rules, size, depth + 1)) return false;
    std::size_t length = rest_.size() - at - kLengthBytes;
    for (int i = 0; i < kLengthBytes; ++i, length >>= 7) {
      rest_[at + static_cast<std::size_t>(i)] = static_cast<char>((length & 0x7f) | (i + 1 < kLengthBytes ? 0x80 : 0));
    }
    return true;
  }

  bool TakeData(std::int64_t size) {
    const Ticket ticket = static_cast<Ticket>(payloads_.payloads_.size());
    Payloads::Payload& payload = payloads_.payloads_.emplace_back();
    payload.bytes = size;
    if (size > 0) {
      const WireReader::Position here = reader_.Here();
      payload.slice = here.slice;
      payload.offset = here.offset;
    }
    rest_.push_back(sizeof(ticket));
    rest_.append(reinterpret_cast<const char*>(&ticket), sizeof(ticket));
    return reader_.Skip(size);
  }

  bool CopyScalar(std::uint32_t wire_type) {
    if (wire_type == WireFormatLite::WIRETYPE_FIXED32) return reader_.Append(4, rest_);
    if (wire_type == WireFormatLite::WIRETYPE_FIXED64) return reader_.Append(8, rest_);
    std::uint64_t value = 0;
    if (!reader_.Varint(value)) return false;
    AppendVarint(rest_, value);
    return true;
  }

  bool SkipField(std::uint32_t number, std::uint32_t wire_type, int depth) {
    std::uint64_t value = 0;
    std::int64_t size = 0;
    switch (wire_type) {
      case WireFormatLite::WIRETYPE_VARINT: return reader_.Varint(value);
      case WireFormatLite::WIRETYPE_FIXED64: return reader_.Skip(8);
      case WireFormatLite::WIRETYPE_FIXED32: return reader_.Skip(4);
      case WireFormatLite::WIRETYPE_LENGTH_DELIMITED: return reader_.Length(size) && reader_.Skip(size);
      case WireFormatLite::WIRETYPE_START_GROUP: break;
      default: return false;
    }
    if (depth >= kMaxDepth) return false;
    for (std::uint32_t tag = 0; reader_.Tag(tag);) {
      if ((tag & 7) == WireFormatLite::WIRETYPE_END_GROUP) return tag >> 3 == number;
      if (tag >> 3 == 0 || !SkipField(tag >> 3, tag & 7, depth + 1)) return false;
    }
    return false;
  }

  static int Count(absl::InlinedVector<std::pair<std::uint32_t, int>, 1>& seen, std::uint32_t number) {
    for (auto& [field, count] : seen) {
      if (field == number) return ++count;
    }
    seen.emplace_back(number, 0);
    return 0;
  }

  // On the way back from the unknown field, so that the usual walk costs no string.
  void AddToPath(const Field& field, int index) {
    const std::string position = index >= 0 ? absl::StrCat("[", index, "]") : "";
    unknown_path_ = absl::StrCat(field.descriptor->name(), position, unknown_path_.empty() ? "" : ".", unknown_path_);
  }

  Payloads& payloads_;
  const bool there_;
  WireReader reader_;
  std::string rest_;
  std::uint32_t unknown_ = 0;
  std::string unknown_path_;
};

core::Operand Payloads::Find(const std::string& data) const {
  core::Operand operand;
  Ticket ticket = 0;
  if (data.size() != sizeof(ticket)) return operand;
  std::memcpy(&ticket, data.data(), sizeof(ticket));
  const Payload& payload = payloads_[ticket];
  if (payload.bytes == 0) return operand;

  auto owner = std::make_shared<HeldSlices>();
  const std::int64_t end = static_cast<std::int64_t>(payload.offset) + payload.bytes;
  for (std::int64_t there = 0; there < end; there += static_cast<std::int64_t>(owner->slices.back().size())) {
    owner->slices.push_back(slices_[payload.slice + owner->slices.size()]);
  }
  grpc::ByteBuffer buffer(owner->slices.data(), owner->slices.size());
  owner->buffer.Swap(&buffer);
  // Only now: a small slice holds its bytes itself, so they move when it does.
  std::int64_t left = payload.bytes;
  std::size_t offset = payload.offset;
  for (const grpc::Slice& slice : owner->slices) {
    const std::size_t size = std::min(static_cast<std::size_t>(left), slice.size() - offset);
    if (size > 0) operand.runs.push_back({reinterpret_cast<const std::byte*>(slice.begin()) + offset, size});
    left -= static_cast<std::int64_t>(size);
    offset = 0;
  }
  operand.owner = std::move(owner);
  return operand;
}

absl::Status Parse(grpc::ByteBuffer& buffer, google::protobuf::Message& message, Payloads& payloads) {
  BodyWalk walk(buffer, payloads);
  if (!walk.Walk(RulesOf(message.GetDescriptor())) || !message.ParseFromString(walk.rest())) {
    return WithDetail(absl::InvalidArgumentError(
                          absl::StrCat("the body is not a ", message.GetDescriptor()->full_name(),
                                       ", or has more than ", kMaxOverhead, " bytes beside its tensors' data")),
                      {.reason = std::string(reason::kMalformed)});
  }
  if (walk.unknown() == 0) return absl::OkStatus();
  const std::string path = walk.unknown_path().empty() ? message.GetDescriptor()->name() : walk.unknown_path();
  return WithDetail(
      absl::UnimplementedError(absl::StrCat("field ", walk.unknown(), " of ", path,
                                            " is not known to this version; only fields from 1000 on may be ignored")),
      {.reason = std::string(reason::kUnknownField),
       .field = path,
       .metadata = {{"field_number", absl::StrCat(walk.unknown())}}});
}

grpc::ByteBuffer Serialize(const google::protobuf::Message& message) {
  const grpc::Slice slice(message.SerializeAsString());
  return {&slice, 1};
}

}  // namespace kernd::rpc
