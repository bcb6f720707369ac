// One RPC as a handler sees it: a request, and one answer. The transport stands behind it, so handlers translate and
// nothing else.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/core/call_record.h"
#include "server/core/stage.h"

namespace kernd::rpc {

class Exchange {
 public:
  virtual ~Exchange() = default;

  grpc::ByteBuffer request;          // the whole body
  absl::Time deadline;               // absl::InfiniteFuture() where the client gave none
  core::SteadyTime arrived;          // when the headers were seen
  core::CallRecord record;           // filled along the way, reported when the reply has been sent
  std::function<void()> on_abandon;  // set by a handler that answers later; runs when the client goes first

  // Exactly one of these, once, from any thread.
  virtual void Reply(grpc::ByteBuffer reply) = 0;
  virtual void Fail(const absl::Status& status) = 0;
};

using ExchangePtr = std::shared_ptr<Exchange>;
using Handler = std::function<void(const ExchangePtr&)>;

}  // namespace kernd::rpc
