#include <google/protobuf/arena.h>

#include <memory>
#include <utility>

#include "kernd/kernels/error.h"
#include "server/rpc/decode.h"
#include "server/rpc/encode.h"
#include "server/rpc/handlers.h"
#include "server/rpc/message.h"

namespace kernd::rpc {
namespace {

// Parses and decodes a one-step request. Its operands keep the slices that they arrived in, and nothing else of it.
template <typename Request, typename DecodeStep>
absl::StatusOr<core::Program> DecodeProgram(Exchange& exchange, std::string_view device, CallWish& wish,
                                            DecodeStep decode_step) {
  google::protobuf::Arena arena;
  Request& request = *google::protobuf::Arena::CreateMessage<Request>(&arena);
  Payloads payloads;
  KERND_RETURN_IF_ERROR(Parse(exchange.request, request, payloads));
  // Before anything can be refused, so that the log line of a refusal has it.
  exchange.record.request_id = RequestId(request.options());
  KERND_ASSIGN_OR_RETURN(wish, DecodeOptions(request.options(), device));
  core::Program program;
  KERND_ASSIGN_OR_RETURN(core::Step step, decode_step(request, Places{.payloads = &payloads}));
  program.steps.push_back(std::move(step));
  return program;
}

using EncodeReply = grpc::ByteBuffer (*)(const core::CallPtr&, core::SteadyTime);

// Hands the program to the engine and answers when the call has finished.
void Run(core::Engine& engine, const ExchangePtr& exchange, core::Program program, int priority, EncodeReply encode) {
  exchange->record.shapes = core::DescribeShapes(program);
  // The engine and the exchange know each other only through these two functions; neither owns the other for longer
  // than the call lasts.
  auto done = [exchange, encode](core::Call& call) {
    core::CallRecord& record = exchange->record;
    if (!call.plan.steps.empty()) {
      record.kernel = call.plan.steps.front().kernel;
      record.peak_bytes = call.plan.memory.peak();
    }
    grpc::ByteBuffer reply;
    if (call.status.ok()) reply = encode(call.shared_from_this(), exchange->arrived);
    record.stages = call.stages;
    record.copied_bytes = call.copied_bytes;
    if (!call.status.ok()) return exchange->Fail(call.status);
    exchange->Reply(std::move(reply));
  };
  auto call = std::make_shared<core::Call>(std::move(program), exchange->deadline, priority, std::move(done));
  call->stages = exchange->record.stages;
  exchange->on_abandon = [&engine, weak = std::weak_ptr<core::Call>(call)] {
    if (const core::CallPtr alive = weak.lock()) engine.Abandon(alive);
  };
  engine.Submit(std::move(call));
}

template <typename Request, typename DecodeStep>
Handler OneStep(core::Engine& engine, DecodeStep decode_step, EncodeReply encode) {
  return [&engine, decode_step, encode](const ExchangePtr& exchange) {
    CallWish wish;
    core::StageTimer timer(exchange->record.stages, core::Stage::kDecode);
    absl::StatusOr<core::Program> program =
        DecodeProgram<Request>(*exchange, engine.backend().device_id(), wish, decode_step);
    timer.Stop();
    if (!program.ok()) return exchange->Fail(program.status());
    Run(engine, exchange, *std::move(program), wish.priority, encode);
  };
}

absl::StatusOr<core::Step> MatmulOf(const v1::MatmulRequest& request, const Places& places) {
  if (!request.has_matmul()) return InvalidField("matmul", "absent", "the request needs it");
  KERND_ASSIGN_OR_RETURN(core::MatmulStep step, DecodeMatmul(request.matmul(), "matmul", places));
  return step;
}

absl::StatusOr<core::Step> AttentionOf(const v1::AttentionRequest& request, const Places& places) {
  if (!request.has_attention()) return InvalidField("attention", "absent", "the request needs it");
  KERND_ASSIGN_OR_RETURN(core::AttentionStep step, DecodeAttention(request.attention(), "attention", places));
  return step;
}

absl::StatusOr<v1::PlanReply> Plan(const core::Engine& engine, Exchange& exchange) {
  v1::PlanRequest request;
  Payloads unread;
  KERND_RETURN_IF_ERROR(Parse(exchange.request, request, unread));
  exchange.record.request_id = RequestId(request.options());
  KERND_RETURN_IF_ERROR(DecodeOptions(request.options(), engine.backend().device_id()).status());
  KERND_ASSIGN_OR_RETURN(const core::Program program, DecodeSteps(request.steps(), {}));
  exchange.record.shapes = core::DescribeShapes(program);
  KERND_ASSIGN_OR_RETURN(const core::Plan plan, engine.MakePlan(program));
  return EncodePlan(plan);
}

}  // namespace

void AddComputeMethods(core::Engine& engine, MethodTable& table) {
  table.Add("/kernd.v1.Compute/Matmul", {.name = "Compute/Matmul",
                                         .compute = true,
                                         .handler = OneStep<v1::MatmulRequest>(engine, MatmulOf, EncodeMatmulReply)});
  table.Add("/kernd.v1.Compute/Attention",
            {.name = "Compute/Attention",
             .compute = true,
             .handler = OneStep<v1::AttentionRequest>(engine, AttentionOf, EncodeAttentionReply)});
  table.Add("/kernd.v1.Compute/Plan", {.name = "Compute/Plan", .handler = [&engine](const ExchangePtr& exchange) {
                                         const absl::StatusOr<v1::PlanReply> reply = Plan(engine, *exchange);
                                         if (!reply.ok()) return exchange->Fail(reply.status());
                                         exchange->Reply(Serialize(*reply));
                                       }});
}

}  // namespace kernd::rpc
