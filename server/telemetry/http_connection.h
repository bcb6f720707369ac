// One connection of the HTTP server, bounded in time and bytes as a whole: the library's own limits are per read, so
// that a client that sends a byte a second could hold a thread for hours.
#pragma once

#include <httplib.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <string>

namespace kernd::telemetry {

class HttpConnection : public httplib::Stream {
 public:
  using Clock = std::chrono::steady_clock;

  // Does not own `fd`.
  HttpConnection(socket_t fd, Clock::time_point deadline, std::size_t max_request_bytes)
      : fd_(fd), deadline_(deadline), bytes_left_(max_request_bytes) {}

  bool is_readable() const override;
  bool is_writable() const override;
  // Both wait until the deadline; -1: past it, past the byte limit, or a broken connection. 0: end of stream.
  ssize_t read(char* data, std::size_t size) override;
  ssize_t write(const char* data, std::size_t size) override;
  // Not asked for by any page.
  void get_remote_ip_and_port(std::string&, int&) const override {}
  void get_local_ip_and_port(std::string&, int&) const override {}
  socket_t socket() const override { return fd_; }

 private:
  bool Wait(short events) const;

  const socket_t fd_;
  const Clock::time_point deadline_;
  std::size_t bytes_left_;
  // The library reads byte by byte.
  std::array<char, 4096> buffer_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
};

}  // namespace kernd::telemetry
