#include "client/cli/bench/call.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <optional>
#include <span>
#include <utility>

#include "kernd/kernels/error.h"

namespace kernd::cli {
namespace {

std::vector<client::Operand*> OperandsOf(std::variant<client::MatmulArgs, client::AttentionArgs>& args) {
  if (auto* matmul = std::get_if<client::MatmulArgs>(&args)) return {&matmul->a, &matmul->b};
  auto& attention = std::get<client::AttentionArgs>(args);
  return {&attention.q, &attention.k, &attention.v};
}

// Of the result of a call with `args`. Such a call is made, and its result left in the session for a moment, where it
// may be larger than a message.
absl::StatusOr<std::int64_t> ResultBytes(const client::Session& session,
                                         std::variant<client::MatmulArgs, client::AttentionArgs> args,
                                         const client::CallOptions& options) {
  constexpr std::uint64_t kId = 1;
  client::Tensor result;
  if (auto* matmul = std::get_if<client::MatmulArgs>(&args)) {
    matmul->d.resident = kId;
    KERND_ASSIGN_OR_RETURN(client::MatmulReply reply, session.Matmul(*matmul, options));
    result = std::move(reply.d);
  } else {
    auto& attention = std::get<client::AttentionArgs>(args);
    attention.o.resident = kId;
    KERND_ASSIGN_OR_RETURN(client::AttentionReply reply, session.Attention(attention, options));
    result = std::move(reply.o);
  }
  KERND_RETURN_IF_ERROR(session.Delete({kId}, options));
  const std::optional<std::int64_t> bytes = client::TensorBytes(result.dtype(), result.shape());
  if (!bytes) return absl::InternalError("a result of " + client::ToString(result.dtype(), result.shape()));
  return *bytes;
}

}  // namespace

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
  for (client::Operand* operand : OperandsOf(args_)) {
    const std::uint64_t id = (*next_id)++;
    KERND_RETURN_IF_ERROR(session.Put(id, {operand->dtype, operand->shape, operand->data}, options));
    *operand = client::ResidentTensor{id, operand->dtype, operand->shape};
  }
  session_ = &session;
  sent_bytes_ = 0;
  return absl::OkStatus();
}

absl::Status BenchCall::Share(const client::Session& session, int in_flight, const client::CallOptions& options) {
  const std::vector<client::Operand*> operands = OperandsOf(args_);
  std::vector<std::span<const std::byte>> bytes;
  for (const client::Operand* operand : operands) bytes.push_back(operand->data);
  KERND_ASSIGN_OR_RETURN(operand_room_, SharedRoom::Make(session, bytes, 0, 0, options));
  for (std::size_t i = 0; i < operands.size(); ++i) operands[i]->data = operand_room_->operands()[i];
  operands_ = Operands();  // nothing points into it any more
  KERND_ASSIGN_OR_RETURN(const std::int64_t result_bytes, ResultBytes(session, args_, options));
  // One more, as the first reply stays.
  KERND_ASSIGN_OR_RETURN(room_, SharedRoom::Make(session, {}, result_bytes, in_flight + 1, options));
  session_ = &session;
  return absl::OkStatus();
}

absl::StatusOr<BenchReply> BenchCall::Call(const client::Client& client, const client::CallOptions& options) const {
  SharedRoom::Slot slot = room_ == nullptr ? SharedRoom::Slot() : room_->Take();
  if (const auto* args = std::get_if<client::MatmulArgs>(&args_)) {
    client::MatmulArgs placed;
    if (room_ != nullptr) {
      placed = *args;
      placed.d.into = slot.bytes();
      args = &placed;
    }
    KERND_ASSIGN_OR_RETURN(client::MatmulReply reply,
                           session_ != nullptr ? session_->Matmul(*args, options) : client.Matmul(*args, options));
    return BenchReply{std::move(reply.d), reply.timing, std::move(reply.kernel), std::move(slot)};
  }
  const auto* args = &std::get<client::AttentionArgs>(args_);
  client::AttentionArgs placed;
  if (room_ != nullptr) {
    placed = *args;
    placed.o.into = slot.bytes();
    args = &placed;
  }
  KERND_ASSIGN_OR_RETURN(client::AttentionReply reply,
                         session_ != nullptr ? session_->Attention(*args, options) : client.Attention(*args, options));
  return BenchReply{std::move(reply.o), reply.timing, std::move(reply.kernel), std::move(slot)};
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
