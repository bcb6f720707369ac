#include "tests/support/body_oracle.h"

#include <google/protobuf/stubs/logging.h>
#include <google/protobuf/unknown_field_set.h>

#include <memory>

#include "kernd/kernels/error.h"
#include "server/rpc/message.h"

namespace kernd::testing {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

[[maybe_unused]] auto* const kLoud = google::protobuf::SetLogHandler(nullptr);  // it has a line for each bad string

constexpr int kFirstHint = 1000;

// Calls `visit` with `message` and every message in it.
void ForEach(Message& message, const auto& visit) {
  visit(message);
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) continue;
    if (field->is_repeated()) {
      for (int i = 0; i < reflection.FieldSize(message, field); ++i) {
        ForEach(*reflection.MutableRepeatedMessage(&message, field, i), visit);
      }
    } else {
      ForEach(*reflection.MutableMessage(&message, field), visit);
    }
  }
}

bool HasUnknown(Message& message) {
  bool found = false;
  ForEach(message, [&](Message& part) {
    const google::protobuf::UnknownFieldSet& unknown = part.GetReflection()->GetUnknownFields(part);
    for (int i = 0; i < unknown.field_count(); ++i) found = found || unknown.field(i).number() < kFirstHint;
  });
  return found;
}

// Puts the tensors' bytes where protobuf would have put them.
void Restore(Message& message, const rpc::Payloads& payloads) {
  ForEach(message, [&](Message& part) {
    const FieldDescriptor* const field = part.GetDescriptor()->FindFieldByName("data");
    const google::protobuf::Reflection& reflection = *part.GetReflection();
    // A field of a oneof has presence; of others, empty is absent.
    if (field == nullptr || field->type() != FieldDescriptor::TYPE_BYTES || !reflection.HasField(part, field)) return;
    std::string bytes;
    for (const auto run : payloads.Find(reflection.GetString(part, field)).runs) {
      bytes.append(reinterpret_cast<const char*>(run.data()), run.size());
    }
    reflection.SetString(&part, field, bytes);
  });
}

grpc::ByteBuffer Cut(std::string_view body, const std::vector<std::size_t>& cuts) {
  std::vector<grpc::Slice> slices;
  std::size_t from = 0;
  for (const std::size_t to : cuts) {
    slices.emplace_back(body.data() + from, to - from);
    from = to;
  }
  slices.emplace_back(body.data() + from, body.size() - from);
  return {slices.data(), slices.size()};
}

}  // namespace

std::string CompareParsers(const Message& prototype, std::string_view body, const std::vector<std::size_t>& cuts) {
  const std::unique_ptr<Message> expected(prototype.New()), got(prototype.New());
  const bool parsed = expected->ParseFromArray(body.data(), static_cast<int>(body.size()));
  grpc::ByteBuffer buffer = Cut(body, cuts);
  rpc::Payloads payloads;
  const absl::Status status = rpc::Parse(buffer, *got, payloads);
  const std::string reason = DetailOf(status).reason;
  if (reason == reason::kMalformed) return parsed ? "protobuf takes what was refused: " + status.ToString() : "";
  if (!parsed) return "protobuf refuses what was taken";
  // What a later member of a oneof has replaced is unknown all the same, but no more to be seen in the message.
  if (reason == reason::kUnknownField) return "";
  if (!status.ok()) return "a refusal of another kind: " + status.ToString();
  if (HasUnknown(*expected)) return "an unknown field was taken";
  Restore(*got, payloads);
  expected->DiscardUnknownFields();
  return got->SerializeAsString() == expected->SerializeAsString() ? "" : "the messages differ: " + got->DebugString();
}

}  // namespace kernd::testing
