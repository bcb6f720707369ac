// Tensors.RegisterSharedMemory and UnregisterSharedMemory: a descriptor that was handed over becomes a region of a
// session.
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernd/kernels/error.h"
#include "kernd/v1/tensors.pb.h"
#include "server/core/shared_region.h"
#include "server/rpc/handlers.h"
#include "server/rpc/handover.h"
#include "server/rpc/message.h"
#include "server/rpc/session_decode.h"

namespace kernd::rpc {
namespace {

// What the methods work with.
struct SharedMemory {
  core::SessionStore& sessions;
  core::Backend& backend;
  Handover* const handover;  // null: off
  const std::uint64_t epoch;
};

absl::StatusOr<v1::RegisterSharedMemoryReply> Register(const SharedMemory& shared,
                                                       const v1::RegisterSharedMemoryRequest& request) {
  if (shared.handover == nullptr) {
    return WithDetail(absl::FailedPreconditionError(
                          "this daemon takes no shared memory: it was started without --shared-memory-socket"),
                      {.reason = std::string(reason::kSharedMemoryOff)});
  }
  KERND_ASSIGN_OR_RETURN(const core::SessionId id, DecodeSessionId(request.session_id(), "session_id"));
  if (request.has_cuda_ipc_handle()) {
    return WithDetail(absl::UnimplementedError("cuda_ipc_handle: CUDA IPC handles are not offered by this version"),
                      {.reason = std::string(reason::kNotBuilt), .field = "cuda_ipc_handle"});
  }
  if (!request.device_uuid().empty()) {
    return InvalidField("device_uuid", request.device_uuid(), "is for CUDA IPC handles");
  }
  const auto map = [&]() -> absl::StatusOr<std::shared_ptr<core::SharedRegion>> {
    KERND_ASSIGN_OR_RETURN(const Descriptor descriptor, shared.handover->Claim(request.name()));
    KERND_ASSIGN_OR_RETURN(std::shared_ptr<core::SharedRegion> region,
                           core::SharedRegion::Map(descriptor.get(), request.size_bytes()));
    KERND_ASSIGN_OR_RETURN(
        std::shared_ptr<void> registration,
        shared.backend.RegisterHost(absl::MakeSpan(region->data(), static_cast<std::size_t>(region->bytes()))));
    region->Keep(std::move(registration));
    return region;
  };
  KERND_RETURN_IF_ERROR(shared.sessions.AddRegion(id, request.region_id(), request.size_bytes(), map));
  return v1::RegisterSharedMemoryReply();
}

absl::StatusOr<v1::UnregisterSharedMemoryReply> Unregister(const SharedMemory& shared,
                                                           const v1::UnregisterSharedMemoryRequest& request) {
  KERND_ASSIGN_OR_RETURN(const core::SessionId id, DecodeSessionId(request.session_id(), "session_id"));
  KERND_RETURN_IF_ERROR(shared.sessions.RemoveRegion(id, request.region_id()));
  return v1::UnregisterSharedMemoryReply();
}

// A method that parses `Request` and answers at once.
template <typename Request, typename Answer>
Handler Simple(const SharedMemory& shared, Answer answer) {
  return [shared, answer](const ExchangePtr& exchange) {
    Request request;
    if (const absl::Status parsed = Parse(exchange->request, request); !parsed.ok()) return exchange->Fail(parsed);
    exchange->record.shapes = absl::StrCat("region=", request.region_id());
    const auto reply = answer(shared, request);
    if (!reply.ok()) return exchange->Fail(Explain(reply.status(), *exchange, shared.epoch));
    exchange->Reply(Serialize(*reply));
  };
}

}  // namespace

void AddSharedMemoryMethods(core::SessionStore& sessions, core::Backend& backend, Handover* handover,
                            std::uint64_t epoch, MethodTable& table) {
  const SharedMemory shared = {sessions, backend, handover, epoch};
  table.Add("/kernd.v1.Tensors/RegisterSharedMemory",
            {.name = "Tensors/RegisterSharedMemory",
             .bulk = true,
             .handler = Simple<v1::RegisterSharedMemoryRequest>(shared, Register)});
  table.Add("/kernd.v1.Tensors/UnregisterSharedMemory",
            {.name = "Tensors/UnregisterSharedMemory",
             .bulk = true,
             .handler = Simple<v1::UnregisterSharedMemoryRequest>(shared, Unregister)});
}

}  // namespace kernd::rpc
