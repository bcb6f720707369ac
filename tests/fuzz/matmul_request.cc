// The body of Compute/Matmul (operation_request.h).
#include "client/cli/verify/client_args.h"
#include "client/src/encode.h"
#include "kernd/v1/compute.pb.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/operation_request.h"
#include "tests/fuzz/request.h"
#include "tests/support/requests.h"

namespace kernd::fuzz {
namespace {

struct Matmul {
  using Request = v1::MatmulRequest;
  using Step = core::MatmulStep;

  static absl::StatusOr<Step> Decode(const Request& request, rpc::Places places) {
    return rpc::DecodeMatmul(request.matmul(), "matmul", places);
  }

  static std::string Encode(const Step& step) {
    const std::string a = BytesOf(step.a), b = BytesOf(step.b), c = BytesOf(step.c), bias = BytesOf(step.bias),
                      a_scale = BytesOf(step.a_scale), b_scale = BytesOf(step.b_scale);
    const MatmulArgs operands = {.a = a.data(),
                                 .b = b.data(),
                                 .c = c.data(),
                                 .bias = bias.data(),
                                 .a_scale = reinterpret_cast<const float*>(a_scale.data()),
                                 .b_scale = reinterpret_cast<const float*>(b_scale.data())};
    const absl::StatusOr<client::Pieces> pieces = client::EncodeMatmul(cli::ClientArgs(step.problem, operands), {});
    Require(pieces.ok(), "the client sends what the daemon takes");
    return BytesOf(pieces->Buffer(nullptr));
  }
};

}  // namespace

void Target(std::string_view input) {
  CheckBody<Matmul>(input);
}

std::vector<std::string> Seeds() {
  const auto make = [](const auto& change) {
    v1::MatmulRequest request = testing::SmallMatmul();
    change(request, *request.mutable_matmul());
    return request.SerializeAsString();
  };
  return {
      make([](auto&, auto&) {}),
      make([](v1::MatmulRequest& request, v1::MatmulOp&) {
        request.mutable_options()->set_request_id("seed");
        request.mutable_options()->set_priority(7);
        request.mutable_options()->mutable_placement()->set_device_uuid("cpu");
      }),
      make([](auto&, v1::MatmulOp& op) {  // everything that goes together
        *op.mutable_a() = testing::F32({2, 1, 3, 4});
        *op.mutable_b() = testing::F32({5, 2, 4});
        *op.mutable_c() = testing::F32({1, 3, 2});
        *op.mutable_bias() = testing::F32({2});
        op.set_transpose_b(true);
        op.set_alpha(0.5);
        op.set_beta(-2);
        op.set_activation(v1::ACTIVATION_GELU);
        op.set_numerics(v1::NUMERICS_BATCH_INVARIANT);
        op.mutable_d()->set_dtype(v1::DATA_TYPE_F32);
        op.mutable_kernel()->mutable_tile()->set_m(64);
      }),
      make([](auto&, v1::MatmulOp& op) {
        for (v1::Tensor* tensor : {op.mutable_a(), op.mutable_b()}) {
          tensor->set_dtype(v1::DATA_TYPE_I8);
          tensor->set_data("\x01\x02\x7f\x80");
        }
        op.mutable_d()->set_dtype(v1::DATA_TYPE_F32);
        op.mutable_a_scale()->set_kind(v1::Scales::KIND_BLOCK);
        op.mutable_a_scale()->set_block_rows(2);
        op.mutable_a_scale()->set_block_k(1);
        *op.mutable_a_scale()->mutable_values() = testing::F32({1, 2});
        op.mutable_b_scale()->set_kind(v1::Scales::KIND_ROW);
        *op.mutable_b_scale()->mutable_values() = testing::F32({2});
      }),
      make([](auto&, v1::MatmulOp& op) {  // nothing in it
        *op.mutable_a() = testing::F32({0, 9223372036854775807});
        *op.mutable_b() = testing::F32({0, 3});
        op.set_transpose_a(true);
      }),
  };
}

}  // namespace kernd::fuzz
