// The HTTP side of the daemon: /metrics for Prometheus, /healthz and /readyz for orchestrators, / as an index.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace kernd::telemetry {

// What the pages show. Called from the server's threads.
struct HttpPages {
  std::string title;                     // first line of the index: program and version
  std::function<std::string()> metrics;  // text format 0.0.4
  std::function<absl::Status()> ready;   // OK, or why not: the body of the 503
};

// Answers GET and HEAD, one request a connection, on two threads that sleep while nothing comes. A connection has a
// fixed time and 16 KiB for its request, however slowly it drips; more than 64 that wait are closed unanswered. Running
// out of file descriptors delays answers and does not end the server. Thread-safe.
class HttpServer {
 public:
  // Binds and serves. Port 0: any free one. UNAVAILABLE where the address cannot be bound.
  // A connection that has not ended after `connection_time` is cut off.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const std::string& host, int port, HttpPages pages,
                                                           absl::Duration connection_time = absl::Seconds(5));
  ~HttpServer();

  // "127.0.0.1:9464", "[::1]:9464": host as given, port as bound.
  const std::string& address() const;
  int port() const;

  // Cuts off the connections there are, and returns when all threads have ended. Again: no effect.
  void Stop();

 private:
  class Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace kernd::telemetry
