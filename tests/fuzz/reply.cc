// Replies as the client reads them. The first byte says which.
#include "client/src/decode.h"

#include "kernd/client/error.h"
#include "kernd/v1/compute.pb.h"
#include "kernd/v1/device.pb.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/request.h"
#include "tests/support/requests.h"

namespace kernd::fuzz {
namespace {

enum Kind : char { kMatmul, kAttention, kPlan, kCapabilities, kKernels, kHealth, kKinds };

void RequireWhole(const client::Tensor& tensor) {
  const std::optional<std::int64_t> bytes = client::TensorBytes(tensor.dtype(), tensor.shape());
  Require(bytes == static_cast<std::int64_t>(tensor.bytes().size()), "a tensor has the bytes of its shape");
}

// True where the reply was taken.
template <typename Reply>
bool Taken(const absl::StatusOr<Reply>& reply) {
  if (reply.ok()) return true;
  Require(reply.status().code() == absl::StatusCode::kInternal &&
              client::DetailsOf(reply.status()).reason == client::reason::kBadReply,
          "a damaged reply is called so");
  return false;
}

}  // namespace

void Target(std::string_view input) {
  if (input.empty()) return;
  const grpc::ByteBuffer body = BodyOf(input.substr(1));
  switch (static_cast<unsigned char>(input.front()) % kKinds) {
    case kMatmul:
      if (const auto reply = client::DecodeMatmul(body); Taken(reply)) RequireWhole(reply->d);
      break;
    case kAttention:
      if (const auto reply = client::DecodeAttention(body); Taken(reply)) {
        RequireWhole(reply->o);
        if (reply->lse.dtype() != client::DataType::kUnspecified) RequireWhole(reply->lse);
      }
      break;
    case kPlan: Taken(client::DecodePlan(body)); break;
    case kCapabilities: Taken(client::DecodeCapabilities(body)); break;
    case kKernels: Taken(client::DecodeKernels(body)); break;
    case kHealth: Taken(client::DecodeHealth(body)); break;
  }
}

std::vector<std::string> Seeds() {
  v1::MatmulReply matmul;
  *matmul.mutable_d() = testing::F32({2, 2}, {19, 22, 43, 50});
  matmul.mutable_timing()->set_total_us(12.5);
  matmul.mutable_memory()->set_peak_bytes(48);
  matmul.mutable_kernel()->set_name("matmul_f32_cpu_tiled");
  matmul.mutable_kernel()->mutable_tile()->set_m(64);
  v1::AttentionReply attention;
  *attention.mutable_o() = testing::F32({1, 1, 2, 3});
  *attention.mutable_lse() = testing::F32({1, 1, 2});
  v1::PlanReply plan;
  plan.add_steps()->mutable_kernel()->set_reason("rule");
  *plan.mutable_steps(0)->add_results() = testing::F32({2, 2});
  v1::GetCapabilitiesReply capabilities;
  capabilities.set_version("0.1.0");
  capabilities.add_devices()->set_uuid("cpu");
  capabilities.mutable_devices(0)->add_hardware_has("avx2");
  capabilities.add_operations()->set_dtype(v1::DATA_TYPE_F32);
  v1::ListKernelsReply kernels;
  kernels.add_kernels()->add_dtypes(v1::DATA_TYPE_BF16);
  return {std::string(1, kMatmul) + matmul.SerializeAsString(),
          std::string(1, kAttention) + attention.SerializeAsString(),
          std::string(1, kPlan) + plan.SerializeAsString(),
          std::string(1, kCapabilities) + capabilities.SerializeAsString(),
          std::string(1, kKernels) + kernels.SerializeAsString(),
          std::string(1, kHealth) + "\x08\x01"};
}

}  // namespace kernd::fuzz
