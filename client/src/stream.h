// One streaming call of raw messages, driven by the thread that makes it.
#pragma once

#include <memory>
#include <optional>
#include <stop_token>
#include <string>

#include "absl/status/status.h"
#include "client/src/connection.h"
#include "client/src/pieces.h"
#include "grpcpp/completion_queue.h"
#include "grpcpp/generic/generic_stub.h"

namespace kernd::client {

// A connection of the stripes.
struct Stripe {
  std::shared_ptr<grpc::Channel> channel;
  std::string endpoint;
  bool lend = true;  // as Transport::lend_
};

// Not thread-safe; every member blocks. The first message is written before anything else. False: the call has ended,
// and Finish says how. When the object is gone, nothing holds the memory that its messages borrowed.
class Stream {
 public:
  Stream(const Stripe& stripe, const std::string& method, const CallTerms& terms);
  // Cancels the call where it has not ended.
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  bool Write(const Pieces& message);
  bool HalfClose();  // nothing more will be written
  bool Read(grpc::ByteBuffer* message);
  // After a false, or when neither side has more to say.
  absl::Status Finish(Pushback* pushback);

 private:
  bool Wait();

  const Stripe& stripe_;
  Loan loan_;
  grpc::CompletionQueue queue_;
  std::optional<grpc::ClientContext> context_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
  std::optional<std::stop_callback<std::function<void()>>> cancel_;
  bool finished_ = false;
};

}  // namespace kernd::client
