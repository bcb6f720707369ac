// The gRPC server: sockets, completion queues and their threads, start and drain.
//
//   accept loop --> connection --> completion queue (one thread each) --> ServerCall --> MethodTable --> handler
//                                                                                                        |
//   reply slices <-- Exchange::Reply (any thread) <-- Call::Finish <-- worker <-- Engine <---------------+
#pragma once

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/server.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/core/call_record.h"
#include "server/rpc/acceptor.h"
#include "server/rpc/health.h"
#include "server/rpc/server_call.h"

namespace kernd::rpc {

struct TransportOptions {
  std::vector<std::string> listen;
  int io_threads = 1;
  std::int64_t max_message_bytes = 0;
  std::int64_t quota_bytes = 0;  // of gRPC's own buffers: the backstop behind the gate's budget
  int max_concurrent_streams = 0;
  absl::Duration handshake_timeout, keepalive_time, keepalive_timeout;
  absl::Duration max_connection_age = absl::InfiniteDuration();
  absl::Duration receive_stall, send_stall;
};

class Server {
 public:
  // Binds and serves. `methods`, `gate` and `observer` must outlive the server.
  // Errors of Acceptor::Bind; INTERNAL where gRPC cannot start.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const TransportOptions& options, const MethodTable& methods,
                                                       Gate& gate, core::CallObserver& observer);
  // Stops at once where Drain was not called.
  ~Server();

  const std::vector<std::string>& addresses() const { return acceptor_->bound(); }
  Health& health() { return health_; }
  std::int64_t in_flight() const { return environment_.in_flight.load(std::memory_order_acquire); }

  // Takes no new call, lets those in flight finish until `timeout`, cancels the rest, stops the threads. Health watches
  // end at once. True where nothing had to be cancelled.
  bool Drain(absl::Duration timeout);

 private:
  struct Services;

  Server(const MethodTable& methods, Gate& gate, core::CallObserver& observer, const TransportOptions& options);
  absl::Status Build(const TransportOptions& options);
  void Listen(grpc::ServerCompletionQueue* queue);
  void Poll(grpc::ServerCompletionQueue* queue);
  void AwaitQuiet();
  void AwaitSilence(absl::Time limit);

  Watchdog watchdog_;
  BulkThreads bulk_;
  CallEnvironment environment_;
  Gate& gate_;
  Health health_;
  grpc::AsyncGenericService generic_;
  const std::unique_ptr<Services> services_;
  std::unique_ptr<Acceptor> acceptor_;
  std::vector<std::unique_ptr<grpc::ServerCompletionQueue>> queues_;
  std::unique_ptr<grpc::Server> server_;
  std::vector<std::thread> threads_;
};

}  // namespace kernd::rpc
