// A body of any of the messages that bring tensors, cut anywhere: the parser that leaves tensors where they arrived
// against protobuf's own. The first two bytes say which message, and how it is cut.
#include <array>
#include <memory>

#include "kernd/v1/compute.pb.h"
#include "kernd/v1/tensors.pb.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/body_oracle.h"
#include "tests/support/requests.h"

namespace kernd::fuzz {
namespace {

constexpr std::size_t kHead = 2;

const google::protobuf::Message& Prototype(unsigned char which) {
  static const std::array<const google::protobuf::Message*, 5> kTypes = {
      &v1::MatmulRequest::default_instance(), &v1::AttentionRequest::default_instance(),
      &v1::PlanRequest::default_instance(), &v1::RunRequest::default_instance(), &v1::PutRequest::default_instance()};
  return *kTypes[which % kTypes.size()];
}

}  // namespace

void Target(std::string_view input) {
  if (input.size() < kHead) return;
  const std::size_t step = static_cast<unsigned char>(input[1]);  // 0: in one slice
  const std::string_view body = input.substr(kHead);
  std::vector<std::size_t> cuts;
  for (std::size_t at = step; step > 0 && at < body.size(); at += step) cuts.push_back(at);
  AllowMemory(static_cast<std::int64_t>(cuts.size()) * 256 + 50'000'000);  // slices; protobuf's room for a string
  const std::string difference = testing::CompareParsers(Prototype(static_cast<unsigned char>(input[0])), body, cuts);
  Require(difference.empty(), difference);
}

std::vector<std::string> Seeds() {
  v1::PlanRequest plan;
  *plan.add_steps()->mutable_matmul() = testing::SmallMatmul().matmul();
  *plan.add_steps()->mutable_attention() = testing::SmallAttention().attention();
  v1::PutRequest put;
  put.mutable_header()->set_session_id("0123456789abcdef");
  put.mutable_header()->add_shape(7);
  put.set_offset_bytes(3);
  put.set_data("tensor!");
  return {std::string("\0\1", 2) + testing::SmallMatmul().SerializeAsString(),
          std::string("\1\3", 2) + testing::SmallAttention().SerializeAsString(),
          std::string("\2\0", 2) + plan.SerializeAsString(), std::string("\4\5", 2) + put.SerializeAsString()};
}

}  // namespace kernd::fuzz
