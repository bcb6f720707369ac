// Our own listening sockets. gRPC's listener stops for good once the process has run out of descriptors
// (CVE-2023-4785); this one goes on as soon as one is free again. It also binds without SO_REUSEPORT, so that a second
// daemon on the same port is told so.
#pragma once

#include <grpcpp/server_builder.h>

#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"

namespace kernd::rpc {

class Acceptor {
 public:
  // Binds each address: "host:port" (port 0: any free one), "[v6]:port" or "unix:/path". A stale socket file is
  // replaced. INVALID_ARGUMENT for an address that is none, UNAVAILABLE where it cannot be bound, with the system's
  // reason.
  static absl::StatusOr<std::unique_ptr<Acceptor>> Bind(const std::vector<std::string>& addresses);
  ~Acceptor();

  // What is bound now, in the order of the addresses, with real ports.
  const std::vector<std::string>& bound() const { return bound_; }

  // Hands connections to gRPC from now on.
  void Start(std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> sink);
  // No connection is taken from now on. Idempotent.
  void Stop();
  // After Stop: takes no more bytes from the connections that were handed to gRPC, which then closes each when what it
  // has read is dealt with. How many were open: 0 when all are closed.
  int Disconnect();

 private:
  Acceptor() = default;
  void Loop();
  void Accept(int listener);

  std::vector<int> listeners_;
  std::vector<std::string> bound_, socket_files_;
  std::set<std::string> places_;  // of the listeners, which their connections share
  int wake_fd_ = -1;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> sink_;
  std::thread thread_;
};

}  // namespace kernd::rpc
