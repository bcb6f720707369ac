// The body of Compute/Matmul: parsed, decoded and validated; what is accepted is sent again by the client's encoder.
#include "client/cli/verify/client_args.h"
#include "client/src/encode.h"
#include "kernd/v1/compute.pb.h"
#include "server/rpc/decode.h"
#include "server/rpc/message.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/request.h"
#include "tests/support/requests.h"

namespace kernd::fuzz {
namespace {

// The request that a client makes of `step`.
std::string Encode(const core::MatmulStep& step) {
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

// The step of a body; none, and a proper refusal, where there is none to be had.
std::optional<core::MatmulStep> Decode(std::string_view bytes, v1::MatmulRequest& request) {
  grpc::ByteBuffer body = BodyOf(bytes);
  rpc::Payloads payloads;
  absl::Status status = rpc::Parse(body, request, payloads);
  if (status.ok()) status = rpc::DecodeOptions(request.options(), "cpu").status();
  if (status.ok()) {
    absl::StatusOr<core::MatmulStep> step = rpc::DecodeMatmul(request.matmul(), "matmul", rpc::Places{&payloads});
    if (step.ok()) {
      const absl::StatusOr<MatmulGeometry> geometry = Validate(step->problem);
      if (geometry.ok()) {
        RequireSizes(step->problem, *geometry);
        return *std::move(step);
      }
      step = geometry.status();
    }
    status = step.status();
  }
  RequireRefusal(status);
  return std::nullopt;
}

}  // namespace

void Target(std::string_view input) {
  v1::MatmulRequest request, sent;
  const std::optional<core::MatmulStep> step = Decode(input, request);
  if (!step) return;
  const std::string bytes = Encode(*step);
  const std::optional<core::MatmulStep> again = Decode(bytes, sent);
  Require(again.has_value() && Encode(*again) == bytes, "what was sent again is the same problem");
  Require(BytesOf(again->a) == BytesOf(step->a) && BytesOf(again->b) == BytesOf(step->b), "and has the same operands");
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
