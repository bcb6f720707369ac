// The bodies of Compute/Matmul and Compute/Attention: what holds for one operation holds for the other.
//
// An operation is a type that has
//   Request, Step                                                       its message, and its step in core
//   static absl::StatusOr<Step> Decode(const Request&, rpc::Places)
//   static std::string Encode(const Step&)                              the request that a client makes of a step
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "server/rpc/decode.h"
#include "server/rpc/message.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/request.h"

namespace kernd::fuzz {

// The step of a body: parsed, decoded and validated. None, and a proper refusal, where there is none to be had.
template <typename Operation>
std::optional<typename Operation::Step> StepOf(std::string_view bytes) {
  grpc::ByteBuffer body = BodyOf(bytes);
  typename Operation::Request request;
  rpc::Payloads payloads;
  absl::Status status = rpc::Parse(body, request, payloads);
  if (status.ok()) status = rpc::DecodeOptions(request.options(), "cpu").status();
  if (status.ok()) {
    absl::StatusOr<typename Operation::Step> step = Operation::Decode(request, rpc::Places{&payloads});
    if (step.ok()) {
      const auto geometry = Validate(step->problem);
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

// What is accepted is the same problem with the same operands when the client sends it again.
template <typename Operation>
void CheckBody(std::string_view input) {
  std::optional<typename Operation::Step> step = StepOf<Operation>(input);
  if (!step) return;
  const std::string bytes = Operation::Encode(*step);
  std::optional<typename Operation::Step> again = StepOf<Operation>(bytes);
  Require(again.has_value() && Operation::Encode(*again) == bytes, "what was sent again is the same problem");
  const auto before = step->operands(), after = again->operands();
  for (std::size_t i = 0; i < before.size(); ++i) {
    Require(BytesOf(*before[i]) == BytesOf(*after[i]), "and has the same operands");
  }
}

}  // namespace kernd::fuzz
