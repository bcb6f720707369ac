#include "client/cli/bench/call.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <utility>

#include "kernd/kernels/error.h"

namespace kernd::cli {

absl::StatusOr<BenchCall> BenchCall::Make(const BenchProblem& problem, std::uint64_t seed) {
  BenchCall call;
  call.problem_ = problem;
  std::vector<client::TensorView> views;
  for (const std::vector<std::int64_t>& shape : OperandShapes(problem)) {
    KERND_ASSIGN_OR_RETURN(views.emplace_back(), call.operands_.Random(problem.dtype, shape, seed));
    call.sent_bytes_ += std::ssize(views.back().data);
  }
  if (problem.dims.index() == 0) {
    call.args_ = client::MatmulArgs{.a = std::move(views[0]), .b = std::move(views[1])};
  } else {
    // Queries are the last ones of their sequence, as in decoding.
    call.args_ = client::AttentionArgs{.q = std::move(views[0]),
                                       .k = std::move(views[1]),
                                       .v = std::move(views[2]),
                                       .causal = problem.causal,
                                       .alignment = client::MaskAlignment::kBottomRight};
  }
  return call;
}

absl::Status BenchCall::MoveTo(const client::Session& session, std::uint64_t* next_id,
                               const client::CallOptions& options) {
  std::vector<client::Operand*> operands;
  if (auto* matmul = std::get_if<client::MatmulArgs>(&args_)) {
    operands = {&matmul->a, &matmul->b};
  } else {
    auto& attention = std::get<client::AttentionArgs>(args_);
    operands = {&attention.q, &attention.k, &attention.v};
  }
  for (client::Operand* operand : operands) {
    const std::uint64_t id = (*next_id)++;
    KERND_RETURN_IF_ERROR(session.Put(id, {operand->dtype, operand->shape, operand->data}, options));
    *operand = client::ResidentTensor{id, operand->dtype, operand->shape};
  }
  session_ = &session;
  sent_bytes_ = 0;
  return absl::OkStatus();
}

absl::StatusOr<BenchReply> BenchCall::Call(const client::Client& client, const client::CallOptions& options) const {
  if (const auto* args = std::get_if<client::MatmulArgs>(&args_)) {
    KERND_ASSIGN_OR_RETURN(client::MatmulReply reply,
                           session_ != nullptr ? session_->Matmul(*args, options) : client.Matmul(*args, options));
    return BenchReply{std::move(reply.d), reply.timing, std::move(reply.kernel)};
  }
  const auto& args = std::get<client::AttentionArgs>(args_);
  KERND_ASSIGN_OR_RETURN(client::AttentionReply reply,
                         session_ != nullptr ? session_->Attention(args, options) : client.Attention(args, options));
  return BenchReply{std::move(reply.o), reply.timing, std::move(reply.kernel)};
}

absl::Status BenchCall::First(const client::Client& client, const client::CallOptions& options) {
  KERND_ASSIGN_OR_RETURN(first_, Call(client, options));
  return absl::OkStatus();
}

absl::Status BenchCall::Judge(const BenchReply& reply, bool bits) const {
  const client::Tensor &got = reply.result, &first = first_.result;
  if (got.dtype() != first.dtype() || got.shape() != first.shape()) {
    return absl::DataLossError(problem_.Name() + ": " + client::ToString(got.dtype(), got.shape()) +
                               " came back, at first it was " + client::ToString(first.dtype(), first.shape()));
  }
  if (!bits) return absl::OkStatus();
  const std::span<const std::byte> a = got.bytes(), b = first.bytes();
  if (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0) return absl::OkStatus();
  const auto differs = std::mismatch(a.begin(), a.end(), b.begin()).first - a.begin();
  return absl::DataLossError(problem_.Name() + ": byte " + std::to_string(differs) + " of " + std::to_string(a.size()) +
                             " is not what it was in the first reply");
}

}  // namespace kernd::cli
