// The life of one RPC on the completion queue: accepted, gated, read, handled, answered, reported. Where one side
// streams, read and handled, or handled and answered, take turns for each message.
//
// All RPCs but four come through gRPC's generic service. On the wire they are ordinary methods, but a generic call is
// handed over when its headers arrive, before its body is read; an ordinary unary one only when the whole body is in
// memory.
// One method of each service stays ordinary, or reflection would not list the service.
#pragma once

#include <grpcpp/completion_queue.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/support/async_unary_call.h>

#include <atomic>
#include <functional>

#include "absl/time/time.h"
#include "server/core/call_record.h"
#include "server/rpc/bulk_threads.h"
#include "server/rpc/gate.h"
#include "server/rpc/method_table.h"
#include "server/rpc/watchdog.h"

namespace kernd::rpc {

// What comes out of a completion queue.
class EventTag {
 public:
  virtual ~EventTag() = default;
  virtual void Fire(bool ok) = 0;
};

// What every call of a server shares. Outlives them all.
struct CallEnvironment {
  const MethodTable& methods;
  Gate& gate;
  core::CallObserver& observer;
  Watchdog& watchdog;
  BulkThreads& bulk;
  // A body, or a reply, must be through within this and a second for each MiB.
  absl::Duration receive_stall, send_stall;
  std::atomic<std::int64_t> in_flight = 0;
  std::atomic<std::int64_t> arrived = 0;  // calls, since the start
};

// Waits for the next generic call on `queue`, serves it, and waits for the one after it as soon as it has arrived.
void ListenGeneric(CallEnvironment& environment, grpc::AsyncGenericService& service,
                   grpc::ServerCompletionQueue* queue);

// The same for one ordinary method. `request_method` is the generated RequestXxx of a raw method, bound to its service.
using RawWriter = grpc::ServerAsyncResponseWriter<grpc::ByteBuffer>;
using RequestMethod =
    std::function<void(grpc::ServerContext*, grpc::ByteBuffer*, RawWriter*, grpc::ServerCompletionQueue*, void* tag)>;
void ListenOrdinary(CallEnvironment& environment, const std::string& path, RequestMethod request_method,
                    grpc::ServerCompletionQueue* queue);

}  // namespace kernd::rpc
