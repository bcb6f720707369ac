// Bodies above the 8 MiB that small fields may have: the input over and over. What Parse takes of them must not grow.
#include "kernd/v1/compute.pb.h"
#include "server/rpc/message.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/request.h"
#include "tests/support/requests.h"

namespace kernd::fuzz {
namespace {

constexpr std::size_t kMaxOverhead = 8 << 20;
constexpr std::size_t kBlock = 64 << 10;
constexpr std::int64_t kGrowth = 33;  // of small fields, as server/rpc/message.h has it

}  // namespace

void Target(std::string_view input) {
  if (input.empty()) return;
  std::string block;
  while (block.size() < kBlock) block += input;
  const std::vector<grpc::Slice> slices(kMaxOverhead / block.size() + 1, grpc::Slice(block));
  grpc::ByteBuffer body(slices.data(), slices.size());
  // Tensors stay in the body; hints are skipped.
  AllowMemory(kGrowth * static_cast<std::int64_t>(kMaxOverhead) + 2 * static_cast<std::int64_t>(body.Length()));
  v1::PlanRequest request;
  const absl::Status status = rpc::Parse(body, request);
  Require(body.Length() == 0, "Parse lets go of the body");
  if (!status.ok()) RequireRefusal(status);
}

std::vector<std::string> Seeds() {
  v1::PlanRequest request;
  *request.add_steps()->mutable_matmul() = testing::SmallMatmul().matmul();
  std::vector<std::string> seeds = {request.SerializeAsString()};
  request.mutable_steps(0)->mutable_matmul()->mutable_a()->mutable_data()->resize(4096);
  seeds.push_back(request.SerializeAsString());
  request.mutable_steps(0)->mutable_attention()->add_q_lengths(1);
  seeds.push_back(request.SerializeAsString());
  return seeds;
}

}  // namespace kernd::fuzz
