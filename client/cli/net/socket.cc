#include "client/cli/net/socket.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <memory>

#include "absl/strings/ascii.h"
#include "absl/time/clock.h"

namespace kernd::cli {
namespace {

constexpr std::size_t kMaxPageBytes = 4 << 20;

Failure OfErrno(int error) {
  const std::string why = std::strerror(error);
  switch (error) {
    case ENOENT: return {Trouble::kNoFile, why};
    case ECONNREFUSED: return {Trouble::kRefused, why};
    case EACCES:
    case EPERM: return {Trouble::kForbidden, why};
    case ETIMEDOUT: return {Trouble::kSilent, why};
    case EPIPE:
    case ECONNRESET: return {Trouble::kClosed, why};
    default: return {Trouble::kUnreachable, why};
  }
}

// Until `fd` is ready for `events`.
Failure Await(int fd, short events, const Patience& patience) {
  std::vector<pollfd> polled = {{fd, events, 0}};
  for (const int interrupt : patience.interrupts) polled.push_back({interrupt, POLLIN, 0});
  while (true) {
    const std::int64_t left = absl::ToInt64Milliseconds(patience.end - absl::Now());
    const int ready = ::poll(polled.data(), polled.size(), static_cast<int>(std::clamp<std::int64_t>(left, 0, 60000)));
    if (ready < 0 && errno != EINTR) return OfErrno(errno);
    if (std::any_of(polled.begin() + 1, polled.end(), [](const pollfd& p) { return p.revents != 0; })) {
      return {Trouble::kInterrupted, "interrupted"};
    }
    if (ready > 0) return {};
    if (left <= 0) return {Trouble::kSilent, "no answer in time"};
  }
}

Failure ConnectTo(int fd, const sockaddr* address, socklen_t size, const Patience& patience) {
  if (::connect(fd, address, size) == 0) return {};
  if (errno != EINPROGRESS) return OfErrno(errno);
  Failure waited = Await(fd, POLLOUT, patience);
  if (waited.trouble != Trouble::kNone) return waited;
  int error = 0;
  socklen_t length = sizeof(error);
  ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
  return error == 0 ? Failure{} : OfErrno(error);
}

// -1 and `failure`, or a descriptor that is connected and does not block.
int Open(int family, const sockaddr* address, socklen_t size, const Patience& patience, Failure& failure) {
  const int fd = ::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) {
    failure = OfErrno(errno);
    return -1;
  }
  failure = ConnectTo(fd, address, size, patience);
  if (failure.trouble == Trouble::kNone) return fd;
  ::close(fd);
  return -1;
}

int OpenUnix(const std::string& path, const Patience& patience, Failure& failure) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    failure = {Trouble::kNoFile, "a socket's path has 1 to 107 bytes"};
    return -1;
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  const bool abstract = path.front() == '\0';
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size() + (abstract ? 0 : 1));
  const int fd = Open(AF_UNIX, reinterpret_cast<const sockaddr*>(&address), size, patience, failure);
  if (abstract && failure.trouble == Trouble::kNoFile) failure.trouble = Trouble::kRefused;
  return fd;
}

int OpenTcp(const Target& target, const Patience& patience, Failure& failure) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(target.host.c_str(), target.port.c_str(), &hints, &found);
  if (error != 0) {
    failure = {Trouble::kNoName, error == EAI_SYSTEM ? std::strerror(errno) : ::gai_strerror(error)};
    return -1;
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> addresses(found, &::freeaddrinfo);
  for (const addrinfo* a = found; a != nullptr; a = a->ai_next) {
    const int fd = Open(a->ai_family, a->ai_addr, a->ai_addrlen, patience, failure);
    if (fd >= 0 || failure.trouble == Trouble::kInterrupted) return fd;
  }
  return -1;
}

// The value of a header, or "". Names are compared without regard to case.
std::string Header(std::string_view head, std::string_view name) {
  for (std::size_t at = head.find("\r\n"); at != std::string_view::npos; at = head.find("\r\n", at + 2)) {
    const std::string_view line = head.substr(at + 2, head.find("\r\n", at + 2) - at - 2);
    const std::size_t colon = line.find(':');
    if (colon == std::string_view::npos) continue;
    if (absl::AsciiStrToLower(std::string(line.substr(0, colon))) != name) continue;
    return std::string(absl::StripAsciiWhitespace({line.data() + colon + 1, line.size() - colon - 1}));
  }
  return "";
}

// The page, once all of it is there; at the end of the connection that is in any case.
std::optional<Page> Parse(const std::string& bytes, bool closed) {
  const std::size_t end = bytes.find("\r\n\r\n");
  if (end == std::string::npos || bytes.size() < 12) return std::nullopt;
  const std::string_view head(bytes.data(), end);
  Page page{.body = bytes.substr(end + 4)};
  std::from_chars(bytes.data() + 9, bytes.data() + 12, page.code);
  std::size_t length = 0;
  const std::string declared = Header(head, "content-length");
  const bool known = std::from_chars(declared.data(), declared.data() + declared.size(), length).ec == std::errc() &&
                     !declared.empty();
  if (known ? page.body.size() < length : !closed) return std::nullopt;
  if (known) page.body.resize(length);
  return page;
}

}  // namespace

std::optional<Socket> Socket::Connect(const Target& target, const Patience& patience, Failure& failure) {
  failure = {Trouble::kNoName, "not an address that kernctl understands"};
  int fd = -1;
  if (target.kind == Target::Kind::kUnix) fd = OpenUnix(target.path, patience, failure);
  if (target.kind == Target::Kind::kTcp) fd = OpenTcp(target, patience, failure);
  return fd < 0 ? std::nullopt : std::optional<Socket>(Socket(fd));
}

Socket::~Socket() {
  if (fd_ >= 0) ::close(fd_);
}

Failure Socket::Send(std::string_view bytes, const Patience& patience) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent > 0) bytes.remove_prefix(static_cast<std::size_t>(sent));
    if (sent >= 0) continue;
    if (errno != EAGAIN && errno != EINTR) return OfErrno(errno);
    Failure waited = Await(fd_, POLLOUT, patience);
    if (waited.trouble != Trouble::kNone) return waited;
  }
  return {};
}

Failure Socket::Receive(std::size_t max, const Patience& patience, std::string& bytes) {
  std::string buffer(max, '\0');
  while (true) {
    const ssize_t got = ::recv(fd_, buffer.data(), buffer.size(), 0);
    if (got == 0) return {Trouble::kClosed, "the connection was closed"};
    if (got > 0) {
      bytes.append(buffer, 0, static_cast<std::size_t>(got));
      return {};
    }
    if (errno != EAGAIN && errno != EINTR) return OfErrno(errno);
    Failure waited = Await(fd_, POLLIN, patience);
    if (waited.trouble != Trouble::kNone) return waited;
  }
}

std::optional<Page> HttpGet(const Target& target, const std::string& path, const Patience& patience, Failure& failure) {
  std::optional<Socket> socket = Socket::Connect(target, patience, failure);
  if (!socket) return std::nullopt;
  // 1.0: the reply comes in one piece and ends with the connection.
  failure = socket->Send("GET " + path + " HTTP/1.0\r\nHost: kernd\r\n\r\n", patience);
  std::string bytes;
  while (failure.trouble == Trouble::kNone) {
    failure = socket->Receive(1 << 16, patience, bytes);
    if (failure.trouble != Trouble::kNone && failure.trouble != Trouble::kClosed) return std::nullopt;
    if (!std::string_view(bytes).substr(0, 7).starts_with(std::string_view("HTTP/1.").substr(0, bytes.size())) ||
        bytes.size() > kMaxPageBytes) {
      failure = {Trouble::kUnreachable, "what answers there is no page over HTTP/1"};
      return std::nullopt;
    }
    std::optional<Page> page = Parse(bytes, failure.trouble == Trouble::kClosed);
    if (page) {
      failure = {};
      return page;
    }
  }
  return std::nullopt;
}

}  // namespace kernd::cli
