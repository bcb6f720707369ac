#include "tests/bench/service/socket.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace kernd::bench {
namespace {

constexpr char kUnix[] = "unix:";

absl::Status Failed(const char* call) {
  return absl::UnavailableError(absl::StrCat(call, ": ", std::strerror(errno)));
}

struct Address {
  sockaddr_storage storage = {};
  socklen_t size = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

absl::StatusOr<Address> Parse(const std::string& target) {
  Address address;
  if (target.rfind(kUnix, 0) == 0) {
    const std::string path = target.substr(std::strlen(kUnix));
    auto& local = reinterpret_cast<sockaddr_un&>(address.storage);
    if (path.empty() || path.size() >= sizeof(local.sun_path))
      return absl::InvalidArgumentError(absl::StrCat(target, ": the path must have 1 to 107 bytes"));
    local.sun_family = AF_UNIX;
    path.copy(local.sun_path, path.size());
    address.size = sizeof(local);
    return address;
  }
  auto& inet = reinterpret_cast<sockaddr_in&>(address.storage);
  const std::size_t colon = target.rfind(':');
  int port = -1;
  if (colon == std::string::npos || !absl::SimpleAtoi(target.substr(colon + 1), &port) || port < 0 || port > 65535 ||
      inet_pton(AF_INET, target.substr(0, colon).c_str(), &inet.sin_addr) != 1)
    return absl::InvalidArgumentError(absl::StrCat(target, ": must be IPV4:PORT or unix:PATH"));
  inet.sin_family = AF_INET;
  inet.sin_port = htons(static_cast<std::uint16_t>(port));
  address.size = sizeof(inet);
  return address;
}

// Small answers should not wait for more to send.
void NoDelay(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));  // fails on a unix socket, which does not wait
}

}  // namespace

Socket::~Socket() {
  if (fd_ >= 0) close(fd_);
}

Socket::Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

absl::StatusOr<Socket> Socket::Connect(const std::string& target) {
  const absl::StatusOr<Address> address = Parse(target);
  if (!address.ok()) return address.status();
  Socket connection(socket(address->storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (connection.fd_ < 0) return Failed("socket");
  if (connect(connection.fd_, address->get(), address->size) != 0) return Failed("connect");
  NoDelay(connection.fd_);
  return connection;
}

absl::StatusOr<Socket> Socket::Listen(const std::string& target, std::string& bound) {
  absl::StatusOr<Address> address = Parse(target);
  if (!address.ok()) return address.status();
  Socket listener(socket(address->storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (listener.fd_ < 0) return Failed("socket");
  if (bind(listener.fd_, address->get(), address->size) != 0) return Failed("bind");
  if (listen(listener.fd_, 128) != 0) return Failed("listen");
  bound = target;
  if (address->storage.ss_family == AF_INET) {
    if (getsockname(listener.fd_, reinterpret_cast<sockaddr*>(&address->storage), &address->size) != 0)
      return Failed("getsockname");
    const int port = ntohs(reinterpret_cast<const sockaddr_in&>(address->storage).sin_port);
    bound = absl::StrCat(target.substr(0, target.rfind(':')), ":", port);
  }
  return listener;
}

absl::StatusOr<Socket> Socket::Accept() const {
  const int fd = accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC);
  if (fd < 0) return Failed("accept");
  NoDelay(fd);
  return Socket(fd);
}

absl::Status Socket::Send(const void* data, std::size_t size) const {
  const auto* at = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t sent = send(fd_, at, size, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return Failed("send");
    at += sent;
    size -= static_cast<std::size_t>(sent);
  }
  return absl::OkStatus();
}

absl::Status Socket::Receive(void* data, std::size_t size) const {
  auto* at = static_cast<char*>(data);
  while (size > 0) {
    const ssize_t received = recv(fd_, at, size, 0);
    if (received < 0 && errno == EINTR) continue;
    if (received == 0) return absl::UnavailableError("recv: the peer has closed the connection");
    if (received < 0) return Failed("recv");
    at += received;
    size -= static_cast<std::size_t>(received);
  }
  return absl::OkStatus();
}

}  // namespace kernd::bench
