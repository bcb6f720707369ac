#include "server/telemetry/http_connection.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

namespace kernd::telemetry {

bool HttpConnection::Wait(short events) const {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline_ - Clock::now()).count();
    if (left <= 0) return false;
    pollfd entry = {fd_, events, 0};
    const int ready = poll(&entry, 1, static_cast<int>(left));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
  }
}

bool HttpConnection::is_readable() const {
  return begin_ < end_ || Wait(POLLIN);
}

bool HttpConnection::is_writable() const {
  return Wait(POLLOUT);
}

ssize_t HttpConnection::read(char* data, std::size_t size) {
  if (begin_ == end_) {
    if (bytes_left_ == 0 || !Wait(POLLIN)) return -1;
    const ssize_t got = recv(fd_, buffer_.data(), std::min(buffer_.size(), bytes_left_), MSG_DONTWAIT);
    if (got <= 0) return got;
    bytes_left_ -= static_cast<std::size_t>(got);
    begin_ = 0;
    end_ = static_cast<std::size_t>(got);
  }
  const std::size_t count = std::min(size, end_ - begin_);
  std::copy_n(buffer_.begin() + static_cast<std::ptrdiff_t>(begin_), count, data);
  begin_ += count;
  return static_cast<ssize_t>(count);
}

ssize_t HttpConnection::write(const char* data, std::size_t size) {
  return Wait(POLLOUT) ? send(fd_, data, size, MSG_DONTWAIT | MSG_NOSIGNAL) : -1;
}

}  // namespace kernd::telemetry
