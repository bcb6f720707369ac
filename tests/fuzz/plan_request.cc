// The body of Compute/Plan: shapes without data, which may be of any size.
#include "kernd/v1/compute.pb.h"
#include "server/rpc/decode.h"
#include "server/rpc/message.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/request.h"
#include "tests/support/requests.h"

namespace kernd::fuzz {
namespace {

template <typename Problem>
void CheckStep(const Problem& problem) {
  const auto geometry = Validate(problem);
  if (!geometry.ok()) return RequireRefusal(geometry.status());
  RequireSizes(problem, *geometry);
}

}  // namespace

void Target(std::string_view input) {
  grpc::ByteBuffer body = BodyOf(input);
  v1::PlanRequest request;
  if (const absl::Status parsed = rpc::Parse(body, request); !parsed.ok()) return RequireRefusal(parsed);
  const absl::StatusOr<rpc::CallWish> wish = rpc::DecodeOptions(request.options(), "cpu");
  if (!wish.ok()) return RequireRefusal(wish.status());
  const absl::StatusOr<core::Program> program = rpc::DecodeSteps(request.steps(), {});
  if (!program.ok()) return RequireRefusal(program.status());
  Require(!program->steps.empty() && program->steps.size() <= 64, "a plan has 1 to 64 steps");
  Require(core::DescribeShapes(*program).size() <= 64 * 2048, "a log line of shapes has an end");
  for (const core::Step& step : program->steps) {
    std::visit([](const auto& one) { CheckStep(one.problem); }, step);
  }
}

std::vector<std::string> Seeds() {
  v1::PlanRequest request;
  *request.add_steps()->mutable_matmul() = testing::SmallMatmul().matmul();
  std::vector<std::string> seeds = {request.SerializeAsString()};

  v1::AttentionOp& attention = *request.add_steps()->mutable_attention() = testing::SmallAttention().attention();
  for (v1::Tensor* tensor : {attention.mutable_q(), attention.mutable_k(), attention.mutable_v()}) tensor->clear_data();
  seeds.push_back(request.SerializeAsString());

  v1::MatmulOp& large = *request.add_steps()->mutable_matmul();
  for (v1::Tensor* tensor : {large.mutable_a(), large.mutable_b()}) {
    tensor->set_dtype(v1::DATA_TYPE_F16);
    for (const std::int64_t dim : {8, 1 << 28, 1 << 28}) tensor->add_shape(dim);
  }
  seeds.push_back(request.SerializeAsString());
  return seeds;
}

}  // namespace kernd::fuzz
