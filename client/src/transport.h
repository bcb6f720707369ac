// One unary call from start to end: channels, retries, errors. The rest of the client only translates.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/src/connection.h"
#include "client/src/pieces.h"
#include "grpcpp/channel.h"
#include "grpcpp/support/byte_buffer.h"
#include "kernd/client/options.h"

namespace kernd::client {

// Thread-safe.
class Transport {
 public:
  // `options` are valid.
  explicit Transport(ClientOptions options);

  // Opens the connections. OK, or NOT_CONNECTED: UNAVAILABLE, or DEADLINE_EXCEEDED.
  absl::Status AwaitConnection(absl::Time deadline) const;

  // Sends `request` to `method` ("/package.Service/Method") until it succeeds, fails for good, or its time is over, and
  // returns the reply's bytes. When it returns, nothing holds the memory that `request` borrows.
  absl::StatusOr<grpc::ByteBuffer> Call(const std::string& method, const Pieces& request,
                                        const CallOptions& options) const;
  absl::StatusOr<grpc::ByteBuffer> Call(const std::string& method, const Pieces& request, const CallTerms& terms) const;

  // Sends `request` to `method`, and hands each of its replies to `take`, whose error ends the call. Tried again only
  // until the first of them.
  absl::Status Listen(const std::string& method, const Pieces& request, const CallTerms& terms,
                      const std::function<absl::Status(grpc::ByteBuffer)>& take) const;

  const ClientOptions& options() const { return options_; }

 private:
  absl::Status Try(const std::string& method, const Pieces& request, const CallTerms& terms, grpc::ByteBuffer* reply,
                   Pushback* pushback) const;

  const std::shared_ptr<grpc::Channel>& NextChannel() const {
    return channels_[turn_.fetch_add(1, std::memory_order_relaxed) % channels_.size()];
  }

  const ClientOptions options_;
  // Whether gRPC may hold the caller's memory. It does so until its connection has taken every byte or is gone,
  // whatever became of the call. stall_timeout ends a TCP connection whose peer has stopped reading; nothing ends a
  // unix one.
  const bool lend_;
  std::vector<std::shared_ptr<grpc::Channel>> channels_;  // constant after construction
  mutable std::atomic<std::size_t> turn_{0};
};

}  // namespace kernd::client
