// One connection of the HTTP server, from accept to close: reads a request, writes a response, and waits for the client
// to close. Never blocks; whoever polls calls Advance when the socket is ready.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "server/telemetry/http_message.h"

namespace kernd::telemetry {

class HttpConnection {
 public:
  using Clock = std::chrono::steady_clock;
  // The bytes that answer a whole request head.
  using Answer = std::function<std::string(const RequestHead&)>;

  // Takes over `fd`, which does not block.
  HttpConnection(int fd, Clock::time_point deadline) : fd_(fd), deadline_(deadline) {}
  ~HttpConnection();
  HttpConnection(const HttpConnection&) = delete;
  HttpConnection& operator=(const HttpConnection&) = delete;

  int fd() const { return fd_; }
  // What to poll for.
  short events() const;
  // When to drop it, whatever it does.
  Clock::time_point deadline() const { return deadline_; }
  // Has been given its answer and has only to close.
  bool answered() const { return phase_ == Phase::kLingering; }

  // Goes as far as is possible now, by at most one read, so that a client that sends without end holds up nobody.
  // False: it has ended.
  bool Advance(const Answer& answer);

 private:
  enum class Phase { kReading, kWriting, kLingering };

  bool Read(const Answer& answer);
  bool Write();
  bool Linger();

  const int fd_;
  Clock::time_point deadline_;
  Phase phase_ = Phase::kReading;
  std::string request_;
  std::string response_;
  std::size_t sent_ = 0;
  std::size_t discarded_ = 0;
};

}  // namespace kernd::telemetry
