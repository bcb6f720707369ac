// The wire is frozen: clients of every age talk to daemons of every age. What the proto files say today is held against
// tests/data/proto_contract.txt, a line for each field, enum value and method. A line there may never change; what is
// new is added.
#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "grpc/health/v1/health.pb.h"
#include "gtest/gtest.h"
#include "kernd/v1/common.pb.h"
#include "kernd/v1/compute.pb.h"
#include "kernd/v1/device.pb.h"
#include "kernd/v1/kv_cache.pb.h"
#include "kernd/v1/tensors.pb.h"
#include "kernd/wire/error_details.pb.h"
#include "tests/support/paths.h"

namespace kernd::testing {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;
using google::protobuf::ServiceDescriptor;

std::vector<const FileDescriptor*> Files() {
  return {v1::Tensor::descriptor()->file(),
          v1::MatmulOp::descriptor()->file(),
          v1::DeviceInfo::descriptor()->file(),
          v1::CreateKvCacheRequest::descriptor()->file(),
          v1::OpenSessionRequest::descriptor()->file(),
          wire::Status::descriptor()->file(),
          grpc::health::v1::HealthCheckRequest::descriptor()->file()};
}

std::string TypeOf(const FieldDescriptor& field) {
  if (field.is_map()) {
    return absl::StrCat("map<", TypeOf(*field.message_type()->map_key()), ", ",
                        TypeOf(*field.message_type()->map_value()), ">");
  }
  if (field.message_type() != nullptr) return field.message_type()->full_name();
  if (field.enum_type() != nullptr) return field.enum_type()->full_name();
  return field.type_name();
}

// "kernd.v1.Tensor.shape = 2 repeated int64"; `optional`: 0 and absent are not the same.
std::string LineOf(const FieldDescriptor& field) {
  const char* label = field.is_map()                 ? ""
                      : field.is_repeated()          ? "repeated "
                      : field.has_optional_keyword() ? "optional "
                                                     : "";
  const google::protobuf::OneofDescriptor* oneof = field.real_containing_oneof();
  return absl::StrCat(field.full_name(), " = ", field.number(), " ", label, TypeOf(field),
                      oneof == nullptr ? "" : absl::StrCat(" in ", oneof->name()));
}

void Append(const EnumDescriptor& type, std::vector<std::string>& lines) {
  for (int i = 0; i < type.value_count(); ++i) {
    lines.push_back(absl::StrCat(type.full_name(), ".", type.value(i)->name(), " = ", type.value(i)->number()));
  }
}

void Append(const Descriptor& message, std::vector<std::string>& lines) {
  if (message.options().map_entry()) return;
  for (int i = 0; i < message.field_count(); ++i) lines.push_back(LineOf(*message.field(i)));
  for (int i = 0; i < message.enum_type_count(); ++i) Append(*message.enum_type(i), lines);
  for (int i = 0; i < message.nested_type_count(); ++i) Append(*message.nested_type(i), lines);
}

void Append(const ServiceDescriptor& service, std::vector<std::string>& lines) {
  for (int i = 0; i < service.method_count(); ++i) {
    const auto& method = *service.method(i);
    lines.push_back(absl::StrCat("/", service.full_name(), "/", method.name(), " ",
                                 method.client_streaming() ? "stream " : "", method.input_type()->full_name(), " -> ",
                                 method.server_streaming() ? "stream " : "", method.output_type()->full_name()));
  }
}

std::vector<std::string> LinesOfTheProtoFiles() {
  std::vector<std::string> lines;
  for (const FileDescriptor* file : Files()) {
    for (int i = 0; i < file->message_type_count(); ++i) Append(*file->message_type(i), lines);
    for (int i = 0; i < file->enum_type_count(); ++i) Append(*file->enum_type(i), lines);
    for (int i = 0; i < file->service_count(); ++i) Append(*file->service(i), lines);
  }
  std::sort(lines.begin(), lines.end());
  lines.erase(std::unique(lines.begin(), lines.end()), lines.end());
  return lines;
}

std::vector<std::string> FrozenLines() {
  std::ifstream file(DataFolder() / "proto_contract.txt");
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    if (!line.empty() && line[0] != '#') lines.push_back(line);
  }
  std::sort(lines.begin(), lines.end());
  return lines;
}

std::string Missing(const std::vector<std::string>& from, const std::vector<std::string>& in) {
  std::string text;
  for (const std::string& line : from) {
    if (!std::binary_search(in.begin(), in.end(), line)) text += line + "\n";
  }
  return text;
}

TEST(ProtoContract, IsFrozen) {
  const std::vector<std::string> now = LinesOfTheProtoFiles(), frozen = FrozenLines();
  ASSERT_GT(frozen.size(), 200u);
  EXPECT_EQ(Missing(frozen, now), "") << "these lines of proto_contract.txt no longer hold: clients would break";
  EXPECT_EQ(Missing(now, frozen), "") << "these lines are new: add them to proto_contract.txt";
}

// Bytes of tensors come last in their message, so that a reader knows the shape when they arrive.
TEST(ProtoContract, DataComeLast) {
  std::vector<std::string> with_data;
  for (const FileDescriptor* file : Files()) {
    for (int m = 0; m < file->message_type_count(); ++m) {
      const FieldDescriptor* data = file->message_type(m)->FindFieldByName("data");
      if (data == nullptr || data->type() != FieldDescriptor::TYPE_BYTES) continue;
      with_data.push_back(data->full_name());
      for (int i = 0; i < file->message_type(m)->field_count(); ++i) {
        EXPECT_LE(file->message_type(m)->field(i)->number(), data->number()) << data->full_name();
      }
    }
  }
  EXPECT_THAT(with_data, ::testing::Contains("kernd.v1.Tensor.data"));
}

// Numbers from 1000 on are hints, which daemons that do not know them ignore (proto/README.md).
TEST(ProtoContract, NothingThatMattersIsAHint) {
  for (const FileDescriptor* file : Files()) {
    for (int m = 0; m < file->message_type_count(); ++m) {
      for (int i = 0; i < file->message_type(m)->field_count(); ++i) {
        EXPECT_LT(file->message_type(m)->field(i)->number(), 1000) << file->message_type(m)->field(i)->full_name();
      }
    }
  }
}

}  // namespace
}  // namespace kernd::testing
