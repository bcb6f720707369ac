#include "server/telemetry/http_connection.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace kernd::telemetry {
namespace {

constexpr std::size_t kReadBytes = 4096;
constexpr std::chrono::seconds kLingerTime(1);
constexpr std::size_t kLingerBytes = 1 << 20;

bool MustWait(ssize_t result) {
  return result < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
}

}  // namespace

HttpConnection::~HttpConnection() {
  close(fd_);
}

short HttpConnection::events() const {
  return phase_ == Phase::kWriting ? POLLOUT : POLLIN;
}

bool HttpConnection::Advance(const Answer& answer) {
  if (phase_ == Phase::kReading && !Read(answer)) return false;
  if (phase_ == Phase::kWriting) return Write();
  return phase_ == Phase::kLingering ? Linger() : true;
}

bool HttpConnection::Read(const Answer& answer) {
  std::array<char, kReadBytes> buffer;
  const ssize_t got = recv(fd_, buffer.data(), std::min(kReadBytes, kMaxRequestHeadBytes - request_.size()), 0);
  if (MustWait(got)) return true;
  if (got <= 0) return false;
  request_.append(buffer.data(), static_cast<std::size_t>(got));
  const RequestHead head = ParseRequestHead(request_);
  if (head.state == RequestHead::State::kWhole) {
    response_ = answer(head);
  } else if (head.state == RequestHead::State::kMalformed) {
    response_ = Render({.status = 400, .body = "this port speaks HTTP/1.1\n"});
  } else if (request_.size() == kMaxRequestHeadBytes) {
    response_ = Render({.status = 431, .body = "a request may have 16 KiB\n"});
  } else {
    return true;
  }
  phase_ = Phase::kWriting;
  return true;
}

bool HttpConnection::Write() {
  while (sent_ < response_.size()) {
    const ssize_t now = send(fd_, response_.data() + sent_, response_.size() - sent_, MSG_NOSIGNAL);
    if (MustWait(now)) return true;
    if (now <= 0) return false;
    sent_ += static_cast<std::size_t>(now);
  }
  // Closing a socket that holds unread bytes (a body, more of the garbage) resets the connection, and the client may
  // lose the answer: say that nothing follows, and read on until it has closed.
  shutdown(fd_, SHUT_WR);
  phase_ = Phase::kLingering;
  deadline_ = std::min(deadline_, Clock::now() + kLingerTime);
  return true;
}

bool HttpConnection::Linger() {
  std::array<char, kReadBytes> buffer;
  const ssize_t got = recv(fd_, buffer.data(), buffer.size(), 0);
  if (MustWait(got)) return true;
  discarded_ += static_cast<std::size_t>(std::max<ssize_t>(got, 0));
  return got > 0 && discarded_ < kLingerBytes;
}

}  // namespace kernd::telemetry
