// One RPC as a handler sees it: a request, and one answer; or, where one side streams, a message at a time. The
// transport stands behind it, so handlers translate and nothing else.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
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

  // Asks the call's MessageSource again whether it is ready, soon, on the call's I/O thread. For any thread, as often
  // as it likes; does not block. Of streams alone.
  virtual std::function<void()> Waker() {
    return [] {};
  }

  // What the client sent beside the request under this key, in lower case.
  virtual std::optional<std::string> Metadata(const char* key) = 0;

  // Exactly one of these, once, from any thread.
  virtual void Reply(grpc::ByteBuffer reply) = 0;
  virtual void Fail(const absl::Status& status) = 0;
};

using ExchangePtr = std::shared_ptr<Exchange>;
using Handler = std::function<void(const ExchangePtr&)>;

// Takes what a client streams, a message at a time: the next is read when this one is taken. Messages that are large,
// and the first, are taken on a bulk thread, others on the I/O thread of the call.
class MessageSink {
 public:
  virtual ~MessageSink() = default;
  // An error ends the call.
  virtual absl::Status Take(grpc::ByteBuffer& message) = 0;
  // There are no more: the reply. Also when the client has gone, where nobody will see it.
  virtual absl::StatusOr<grpc::ByteBuffer> End() = 0;
};
using SinkMaker = std::function<std::unique_ptr<MessageSink>(Exchange&)>;

// Makes what a client is streamed. Is asked for a message when gRPC has taken the one before: on a bulk thread, or,
// where it has asked for the call's waker, on the call's I/O thread. Gone before the call has ended.
class MessageSource {
 public:
  virtual ~MessageSource() = default;
  // False: there is no message yet. The source is asked again when somebody calls the exchange's waker.
  virtual bool Ready() { return true; }
  // One message at least; `last`: there are no more. An error ends the call.
  virtual absl::StatusOr<grpc::ByteBuffer> Next(bool& last) = 0;
};
using SourceMaker = std::function<absl::StatusOr<std::unique_ptr<MessageSource>>(Exchange&)>;

}  // namespace kernd::rpc
