// Parse: protobuf's rules, tensors left where they arrived, and no field unseen.
#include "server/rpc/message.h"

#include <gmock/gmock.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <gtest/gtest.h>

#include <random>

#include "kernd/kernels/error.h"
#include "kernd/v1/compute.pb.h"
#include "tests/support/body_oracle.h"
#include "tests/support/requests.h"

namespace kernd::rpc {
namespace {

using testing::CompareParsers;
using ::testing::HasSubstr;

std::string Varint(std::uint64_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
  return out;
}
std::string Tag(std::uint32_t number, int wire_type) {
  return Varint(number << 3 | static_cast<std::uint32_t>(wire_type));
}
std::string Field(std::uint32_t number, const std::string& bytes) {
  return Tag(number, 2) + Varint(bytes.size()) + bytes;
}

// Bodies in which something is unusual, each of a MatmulRequest.
std::vector<std::string> Bodies() {
  const std::string request = testing::SmallMatmul().SerializeAsString();
  const std::string op = testing::SmallMatmul().matmul().SerializeAsString();
  const std::string a = testing::SmallMatmul().matmul().a().SerializeAsString();
  const std::string overlong = "\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01";  // a varint of ten bytes
  const auto of = [](const std::string& operation) { return Field(v1::MatmulRequest::kMatmulFieldNumber, operation); };
  const auto tensor = [&](const std::string& fields) { return of(Field(v1::MatmulOp::kAFieldNumber, fields)); };
  return {
      "",
      request,
      request + request,                      // parts merge
      request.substr(0, request.size() / 2),  // cut off
      of(op) + tensor(Field(15, "later bytes replace earlier")),
      tensor(Field(15, "one") + Field(4, "") + Field(15, "")),  // members of the oneof in turn
      tensor(Field(15, "one") + Field(4, "\x08\x07")),
      tensor(Tag(2, 0) + overlong + Tag(2, 0) + Varint(3)),  // a shape that is not packed, and negative
      tensor(Field(2, Varint(1) + Varint(300)) + Tag(2, 0) + "\x05"),
      tensor(Field(2, "\x80")),  // a packed varint that does not end
      tensor(Tag(2, 0) + overlong + "\x01"),
      tensor(Tag(15, 0) + "\x01"),  // `data` that is no bytes: an unknown field
      tensor(Tag(1, 0) + overlong),
      of(op) + Tag(1000, 0) + "\x01" + Field(1001, "hint") + Tag(1002, 1) + "12345678" + Tag(1003, 5) + "1234",
      of(op) + Tag(1000, 3) + Tag(7, 0) + "\x01" + Tag(8, 3) + Tag(8, 4) + Tag(1000, 4),  // groups
      of(op) + Tag(1000, 3) + Tag(7, 4),                                                  // one that ends as another
      of(op) + Tag(1000, 3),                                                              // that does not end
      of(op) + Tag(1000, 4),                                                              // that does not begin
      of(op + Field(1000, "a hint in a message")),
      of(op + Tag(999, 0) + "\x01"),
      of(op).substr(0, of(op).size() - 1),
      Tag(0, 2) + "\x01x",
      std::string(1, '\0'),
      Tag(2, 6),
      Tag(2, 7) + "\x01",
      Field(1, "\x0a\x03\xff\xfe\xfd"),         // text that is no UTF-8
      Tag(2, 2) + "\xff\xff\xff\xff\x07" + op,  // 2 GiB - 1
      Tag(2, 2) + "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01" + op,
      Tag(2, 2) + "\x80\x80\x80\x80\x00" + "",  // lengths and tags in more bytes than they need
      std::string("\x92\x80\x80\x80\x00", 5) + Varint(op.size()) + op,
      std::string("\x92\x80\x80\x80\x80\x00", 6) + Varint(op.size()) + op,
  };
}

TEST(ParseTest, AgreesWithProtobufWhereverABodyIsCut) {
  const v1::MatmulRequest prototype;
  const std::vector<std::string> bodies = Bodies();
  for (std::size_t i = 0; i < bodies.size(); ++i) {
    const std::string& body = bodies[i];
    SCOPED_TRACE(absl::StrCat("body ", i));
    EXPECT_EQ(CompareParsers(prototype, body, {}), "");
    std::vector<std::size_t> everywhere;
    for (std::size_t at = 0; at <= body.size(); ++at) {
      EXPECT_EQ(CompareParsers(prototype, body, {at}), "") << "cut at " << at;
      everywhere.push_back(at);
      everywhere.push_back(at);  // an empty slice
    }
    EXPECT_EQ(CompareParsers(prototype, body, everywhere), "");
  }
}

TEST(ParseTest, AgreesWithProtobufOnBodiesWithWrongBytes) {
  const v1::MatmulRequest matmul;
  const v1::AttentionRequest attention;
  const std::string bodies[] = {testing::SmallMatmul().SerializeAsString(),
                                testing::SmallAttention().SerializeAsString()};
  for (std::uint32_t seed = 0; seed < 4000; ++seed) {
    std::mt19937 random(seed);
    std::string body = bodies[seed % 2];
    for (int i = static_cast<int>(random() % 4); i >= 0; --i)
      body[random() % body.size()] = static_cast<char>(random());
    if (random() % 4 == 0) body.resize(random() % body.size());
    ASSERT_EQ(CompareParsers(seed % 2 == 0 ? static_cast<const google::protobuf::Message&>(matmul) : attention, body,
                             {body.size() / 3, body.size() / 2}),
              "")
        << "seed " << seed;
  }
}

TEST(ParseTest, TensorsStayWhereTheyArrived) {
  v1::MatmulRequest request = testing::SmallMatmul();
  request.mutable_matmul()->mutable_a()->set_data(std::string(100, 'a'));
  const std::string body = request.SerializeAsString();
  const std::size_t cut = body.find('a') + 40;
  const grpc::Slice slices[] = {grpc::Slice(body.data(), cut), grpc::Slice(body.data() + cut, body.size() - cut)};
  grpc::ByteBuffer buffer(slices, 2);
  v1::MatmulRequest parsed;
  auto payloads = std::make_unique<Payloads>();
  ASSERT_TRUE(Parse(buffer, parsed, *payloads).ok());
  const core::Operand a = payloads->Find(parsed.matmul().a().data());
  const core::Operand b = payloads->Find(parsed.matmul().b().data());
  payloads.reset();  // operands keep what they need
  ASSERT_EQ(a.runs.size(), 2u);
  EXPECT_EQ(static_cast<const void*>(a.runs[0].data() + a.runs[0].size()), slices[0].end());
  EXPECT_EQ(static_cast<const void*>(a.runs[1].data()), slices[1].begin());
  EXPECT_EQ(a.bytes(), 100);
  EXPECT_EQ(b.bytes(), 16);
  EXPECT_EQ(b.runs.size(), 1u);
}

// A slice of a few bytes holds them itself, and an operand its own slices.
TEST(ParseTest, OperandsInTinySlicesOutliveTheBody) {
  const auto body_of = [](const v1::MatmulRequest& request) {
    const std::string bytes = request.SerializeAsString();
    std::vector<grpc::Slice> slices;
    for (const char& byte : bytes) slices.emplace_back(&byte, 1);
    return grpc::ByteBuffer(slices.data(), slices.size());
  };
  const v1::MatmulRequest request = testing::SmallMatmul();
  v1::MatmulRequest other = request;
  other.mutable_matmul()->mutable_a()->mutable_data()->assign(16, '!');
  grpc::ByteBuffer body = body_of(request), next = body_of(other);
  v1::MatmulRequest parsed;
  Payloads payloads;
  ASSERT_TRUE(Parse(body, parsed, payloads).ok());
  const core::Operand a = payloads.Find(parsed.matmul().a().data());
  ASSERT_TRUE(Parse(next, parsed, payloads).ok());  // where the first body was
  std::string bytes;
  for (const auto run : a.runs) bytes.append(reinterpret_cast<const char*>(run.data()), run.size());
  EXPECT_EQ(bytes, request.matmul().a().data());
}

TEST(ParseTest, NamesTheUnknownFieldByItsPath) {
  v1::PlanRequest plan;
  *plan.add_steps()->mutable_matmul() = testing::SmallMatmul().matmul();
  *plan.add_steps()->mutable_attention() = testing::SmallAttention().attention();
  plan.mutable_steps(1)
      ->mutable_attention()
      ->mutable_k()
      ->GetReflection()
      ->MutableUnknownFields(plan.mutable_steps(1)->mutable_attention()->mutable_k())
      ->AddVarint(999, 1);
  const grpc::Slice slice(plan.SerializeAsString());
  grpc::ByteBuffer buffer(&slice, 1);
  v1::PlanRequest parsed;
  const absl::Status status = Parse(buffer, parsed);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(DetailOf(status).field, "steps[1].attention.k");
  EXPECT_THAT(std::string(status.message()), HasSubstr("field 999 of steps[1].attention.k"));
}

TEST(ParseTest, SmallFieldsAreBoundedButHintsAndTensorsAreNot) {
  const std::string tensor(9 << 20, 't');
  v1::MatmulRequest request = testing::SmallMatmul();
  request.mutable_matmul()->mutable_a()->set_data(tensor);
  const std::string bodies[] = {request.SerializeAsString(), Field(1000, tensor), Field(1, Field(1, tensor))};
  for (const std::string& body : bodies) {
    const grpc::Slice slice(body);
    grpc::ByteBuffer buffer(&slice, 1);
    v1::MatmulRequest parsed;
    Payloads payloads;
    const absl::Status status = Parse(buffer, parsed, payloads);
    EXPECT_EQ(status.ok(), &body != &bodies[2]) << status;
    EXPECT_LT(parsed.ByteSizeLong(), 1000u);
  }
}

}  // namespace
}  // namespace kernd::rpc
