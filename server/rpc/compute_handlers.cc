#include <google/protobuf/arena.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernd/kernels/error.h"
#include "server/core/shared_region.h"
#include "server/rpc/decode.h"
#include "server/rpc/encode.h"
#include "server/rpc/handlers.h"
#include "server/rpc/message.h"

namespace kernd::rpc {
namespace {

// What every method here works with.
struct Compute {
  core::Engine& engine;
  core::SessionStore& sessions;
  const std::uint64_t epoch;

  Places PlacesOf(const CallWish& wish, const Payloads* payloads) const {
    const core::Backend& backend = engine.backend();
    return {.payloads = payloads,
            .session = wish.session,
            .alignment = backend.OperandAlignment(),
            .host_in_place = backend.UsesHostMemory()};
  }
};

// Parses and decodes a one-step request. Its operands keep the slices that they arrived in, and nothing else of it.
template <typename Request, typename DecodeStep>
absl::StatusOr<core::Program> DecodeProgram(const Compute& compute, Exchange& exchange, CallWish& wish,
                                            DecodeStep decode_step) {
  google::protobuf::Arena arena;
  Request& request = *google::protobuf::Arena::CreateMessage<Request>(&arena);
  Payloads payloads;
  KERND_RETURN_IF_ERROR(Parse(exchange.request, request, payloads));
  // Before anything can be refused, so that the log line of a refusal has it.
  exchange.record.request_id = RequestId(request.options());
  KERND_ASSIGN_OR_RETURN(wish,
                         DecodeOptions(request.options(), compute.engine.backend().device_id(), &compute.sessions));
  core::Program program;
  KERND_ASSIGN_OR_RETURN(core::Step step, decode_step(request, compute.PlacesOf(wish, &payloads)));
  program.steps.push_back(std::move(step));
  return program;
}

using EncodeReply = grpc::ByteBuffer (*)(const core::CallPtr&, core::SteadyTime);

// Whether a result of the program's one step does not go into the reply.
bool KeepsResults(const core::Program& program) {
  return std::visit(
      [](const auto& step) {
        return std::any_of(step.places.begin(), step.places.end(),
                           [](const core::ResultPlace& p) { return !p.in_reply(); });
      },
      program.steps.front());
}

// The part of a shared region for a result of that spec; `field` is the path of the reference.
absl::StatusOr<absl::Span<std::byte>> RoomFor(const TensorSpec& result, const core::ResultPlace& place,
                                              const std::string& field) {
  const std::int64_t bytes = result.bytes(), element_bytes = ElementBytes(result.dtype);
  if (place.room != 0 && place.room != bytes) {
    return InvalidField(field + ".size_bytes", absl::StrCat(place.room),
                        absl::StrCat("the result is ", result.ToString(), ", ", bytes, " bytes"));
  }
  if (place.offset % element_bytes != 0) {
    return InvalidField(field + ".offset_bytes", absl::StrCat(place.offset),
                        absl::StrCat("must be a multiple of the element's ", element_bytes, " bytes"));
  }
  return place.region->Range(place.offset, bytes, field + ".offset_bytes");
}

// "matmul.d": the result's field in its request.
std::string ResultField(const core::Step& step, std::size_t i) {
  return std::holds_alternative<core::MatmulStep>(step) ? absl::StrCat("matmul.", core::kMatmulResults[i])
                                                        : absl::StrCat("attention.", core::kAttentionResults[i]);
}

// Results that stay in the session: the tensor's id, and its memory.
using Kept = std::vector<std::pair<std::uint64_t, core::SessionStore::Result>>;

// Memory in the session, or in a shared region, for the results that are to be there.
absl::Status ReserveResults(const SessionPlaces& session, core::Call& call, Kept& kept) {
  const core::StepPlan& plan = call.plan.steps.front();
  const core::Step& step = call.program.steps.front();
  for (std::size_t i = 0; i < plan.results.size(); ++i) {
    call.kept.emplace_back();
    call.shared.emplace_back();
    const core::ResultPlace& place = core::PlaceOf(step, i);
    if (place.region != nullptr) {
      KERND_ASSIGN_OR_RETURN(const absl::Span<std::byte> room,
                             RoomFor(plan.results[i], place, ResultField(step, i) + ".shared"));
      call.shared.back() = room.data();
    }
    if (!place.resident) continue;
    absl::StatusOr<core::SessionStore::Result> result = session.store->NewResult(session.id, plan.results[i]);
    if (!result.ok()) return AtTensor(result.status(), ResultField(step, i) + ".resident.id");
    call.kept.back() = result->memory;
    kept.emplace_back(*place.resident, *std::move(result));
  }
  return absl::OkStatus();
}

// The results are written: now they are tensors of the session, all or none.
absl::Status PublishResults(const SessionPlaces& session, core::Call& call, Kept& kept) {
  if (kept.empty()) return absl::OkStatus();
  call.kept.clear();
  return Under(session.store->Publish(session.id, std::exchange(kept, {})), "options.");
}

// Hands the program to the engine and answers when the call has finished.
void Run(const Compute& compute, const ExchangePtr& exchange, core::Program program, const CallWish& wish,
         EncodeReply encode) {
  core::Engine& engine = compute.engine;
  exchange->record.shapes = core::DescribeShapes(program);
  // The engine and the exchange know each other only through these two functions; neither owns the other for longer
  // than the call lasts.
  const auto kept = std::make_shared<Kept>();
  auto done = [exchange, encode, session = wish.session, kept, epoch = compute.epoch](core::Call& call) {
    core::CallRecord& record = exchange->record;
    if (!call.plan.steps.empty()) {
      record.kernel = call.plan.steps.front().kernel;
      record.peak_bytes = call.plan.memory.peak();
    }
    grpc::ByteBuffer reply;
    if (call.status.ok()) call.status = PublishResults(session, call, *kept);
    if (call.status.ok()) reply = encode(call.shared_from_this(), exchange->arrived);
    record.stages = call.stages;
    record.copied_bytes = call.copied_bytes;
    record.findings = call.findings;
    if (!call.status.ok()) return exchange->Fail(Explain(call.status, *exchange, epoch));
    exchange->Reply(std::move(reply));
  };
  const bool keeps = KeepsResults(program);
  auto call = std::make_shared<core::Call>(std::move(program), exchange->deadline, wish.priority, std::move(done));
  if (keeps) {
    call->on_planned = [session = wish.session, kept](core::Call& planned) {
      return ReserveResults(session, planned, *kept);
    };
  }
  call->stages = exchange->record.stages;
  exchange->on_abandon = [&engine, weak = std::weak_ptr<core::Call>(call)] {
    if (const core::CallPtr alive = weak.lock()) engine.Abandon(alive);
  };
  engine.Submit(std::move(call));
}

template <typename Request, typename DecodeStep>
Handler OneStep(const Compute& compute, DecodeStep decode_step, EncodeReply encode) {
  return [compute, decode_step, encode](const ExchangePtr& exchange) {
    CallWish wish;
    core::StageTimer timer(exchange->record.stages, core::Stage::kDecode);
    absl::StatusOr<core::Program> program = DecodeProgram<Request>(compute, *exchange, wish, decode_step);
    timer.Stop();
    if (!program.ok()) return exchange->Fail(Explain(program.status(), *exchange, compute.epoch));
    Run(compute, exchange, *std::move(program), wish, encode);
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

absl::StatusOr<v1::PlanReply> Plan(const Compute& compute, Exchange& exchange) {
  v1::PlanRequest request;
  Payloads unread;
  KERND_RETURN_IF_ERROR(Parse(exchange.request, request, unread));
  exchange.record.request_id = RequestId(request.options());
  KERND_ASSIGN_OR_RETURN(const CallWish wish,
                         DecodeOptions(request.options(), compute.engine.backend().device_id(), &compute.sessions));
  KERND_ASSIGN_OR_RETURN(const core::Program program, DecodeSteps(request.steps(), compute.PlacesOf(wish, nullptr)));
  exchange.record.shapes = core::DescribeShapes(program);
  KERND_ASSIGN_OR_RETURN(const core::Plan plan, compute.engine.MakePlan(program));
  return EncodePlan(plan);
}

}  // namespace

void AddComputeMethods(core::Engine& engine, core::SessionStore& sessions, std::uint64_t epoch, MethodTable& table) {
  const Compute compute = {engine, sessions, epoch};
  table.Add("/kernd.v1.Compute/Matmul", {.name = "Compute/Matmul",
                                         .compute = true,
                                         .handler = OneStep<v1::MatmulRequest>(compute, MatmulOf, EncodeMatmulReply)});
  table.Add("/kernd.v1.Compute/Attention",
            {.name = "Compute/Attention",
             .compute = true,
             .handler = OneStep<v1::AttentionRequest>(compute, AttentionOf, EncodeAttentionReply)});
  table.Add("/kernd.v1.Compute/Plan", {.name = "Compute/Plan", .handler = [compute](const ExchangePtr& exchange) {
                                         const absl::StatusOr<v1::PlanReply> reply = Plan(compute, *exchange);
                                         if (!reply.ok())
                                           return exchange->Fail(Explain(reply.status(), *exchange, compute.epoch));
                                         exchange->Reply(Serialize(*reply));
                                       }});
}

}  // namespace kernd::rpc
