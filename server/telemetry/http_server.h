// The HTTP side of the daemon: /metrics for Prometheus, /healthz and /readyz for orchestrators, / and /status.json for
// people.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace kernd::telemetry {

// What the pages show. Called from the server's thread, which serves nobody else meanwhile: they must not block.
struct HttpPages {
  std::function<std::string()> metrics;  // text format 0.0.4
  std::function<absl::Status()> ready;   // OK, or why not: the body of the 503
  std::function<std::string()> status;   // what the page at / shows, as JSON
};

// Answers GET and HEAD, one request a connection. One thread polls all connections and waits for none, so that a probe
// is answered at once beside others that are silent, send a byte a second, or do not read their answers. A connection
// has a fixed time from accept to close and 16 KiB for its request; beyond kMaxConnections the oldest makes room for
// the newest, those that have their answer first. Some descriptors are kept in reserve, for probes of a daemon whose
// other connections have taken all the rest. Thread-safe.
class HttpServer {
 public:
  static constexpr std::size_t kMaxConnections = 128;

  // Binds and serves. Port 0: any free one. UNAVAILABLE where the address cannot be bound.
  // A connection that has not ended after `connection_time` is cut off.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const std::string& host, int port, HttpPages pages,
                                                           absl::Duration connection_time = absl::Seconds(5));
  ~HttpServer();

  // "127.0.0.1:9464", "[::1]:9464": host as given, port as bound.
  const std::string& address() const;
  int port() const;

  // Cuts off the connections there are, and returns when the thread has ended. Again: no effect.
  void Stop();

 private:
  class Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace kernd::telemetry
