// The body of Compute/Attention (operation_request.h).
#include "client/cli/verify/client_args.h"
#include "client/src/encode.h"
#include "kernd/v1/compute.pb.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/operation_request.h"
#include "tests/fuzz/request.h"
#include "tests/support/requests.h"

namespace kernd::fuzz {
namespace {

struct Attention {
  using Request = v1::AttentionRequest;
  using Step = core::AttentionStep;

  static absl::StatusOr<Step> Decode(const Request& request, rpc::Places places) {
    return rpc::DecodeAttention(request.attention(), "attention", places);
  }

  static std::string Encode(const Step& step) {
    const std::string q = BytesOf(step.q), k = BytesOf(step.k), v = BytesOf(step.v), mask = BytesOf(step.mask),
                      bias = BytesOf(step.bias);
    const AttentionArgs operands = {
        .q = q.data(), .k = k.data(), .v = v.data(), .mask = mask.data(), .bias = bias.data()};
    const absl::StatusOr<client::Pieces> pieces = client::EncodeAttention(cli::ClientArgs(step.problem, operands), {});
    Require(pieces.ok(), "the client sends what the daemon takes");
    return BytesOf(pieces->Buffer(nullptr));
  }
};

}  // namespace

void Target(std::string_view input) {
  CheckBody<Attention>(input);
}

std::vector<std::string> Seeds() {
  const auto make = [](const auto& change) {
    v1::AttentionRequest request = testing::SmallAttention();
    change(*request.mutable_attention());
    return request.SerializeAsString();
  };
  return {
      make([](auto&) {}),
      make([](v1::AttentionOp& op) {  // everything that goes together
        op.set_layout(v1::ATTENTION_LAYOUT_BLHD);
        *op.mutable_q() = testing::F32({2, 3, 4, 2});
        *op.mutable_k() = testing::F32({2, 5, 2, 2});
        *op.mutable_v() = testing::F32({2, 5, 2, 1});
        *op.mutable_bias() = testing::F32({1, 4, 1, 5});
        op.mutable_mask()->set_dtype(v1::DATA_TYPE_BOOL);
        for (const int dim : {2, 1, 1, 5}) op.mutable_mask()->add_shape(dim);
        op.mutable_mask()->set_data("\1\1\1\1\1\1\1\1\1\1");
        op.set_scale(0.25);
        op.set_softcap(30);
        op.set_causal(true);
        op.set_alignment(v1::MASK_ALIGNMENT_BOTTOM_RIGHT);
        op.set_window_left(2);
        for (const int length : {3, 1}) op.add_q_lengths(length);
        for (const int length : {5, 0}) op.add_kv_lengths(length);
        for (int head = 0; head < 4; ++head) op.add_alibi_slopes(0.5f), op.add_sinks(-1);
        op.set_want_lse(true);
        op.mutable_lse()->set_dtype(v1::DATA_TYPE_F32);
      }),
      make([](v1::AttentionOp& op) {
        op.set_layout(v1::ATTENTION_LAYOUT_PACKED);
        *op.mutable_q() = testing::F32({4, 2, 2});
        *op.mutable_k() = testing::F32({6, 1, 2});
        *op.mutable_v() = testing::F32({6, 1, 2});
        for (const int offset : {0, 1, 4}) op.add_q_offsets(offset);
        for (const int offset : {0, 6, 6}) op.add_kv_offsets(offset);
      }),
      make([](v1::AttentionOp& op) {
        for (v1::Tensor* tensor : {op.mutable_q(), op.mutable_k(), op.mutable_v()}) {
          tensor->set_dtype(v1::DATA_TYPE_F8E4M3);
          tensor->mutable_data()->resize(tensor->data().size() / 4);
        }
        op.add_q_scale(2);
        for (const float scale : {1.0f, 0.5f}) op.add_k_scale(scale), op.add_v_scale(scale);
        op.set_numerics(v1::NUMERICS_BATCH_INVARIANT);
        op.mutable_o()->set_dtype(v1::DATA_TYPE_F16);
        op.mutable_kernel()->set_name("attention_f8e4m3_cpu_blocked");
      }),
  };
}

}  // namespace kernd::fuzz
