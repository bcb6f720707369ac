#include "server/rpc/acceptor.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "kernd/kernels/error.h"
#include "server/rpc/unix_socket.h"

namespace kernd::rpc {
namespace {

constexpr int kBacklog = 1024;
constexpr int kRetryMs = 20;  // after the process ran out of descriptors

absl::Status SystemError(const std::string& what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(errno)));
}

absl::StatusOr<int> BindTcp(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  if (colon == std::string::npos) return InvalidField("listen", address, "must be host:port, [v6]:port or unix:/path");
  std::string host = address.substr(0, colon);
  const std::string port = address.substr(colon + 1);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);

  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (const int rc = getaddrinfo(host.empty() ? nullptr : host.c_str(), port.c_str(), &hints, &found); rc != 0) {
    return InvalidField("listen", address, absl::StrCat("cannot be resolved: ", gai_strerror(rc)));
  }
  const absl::Cleanup free_found = [found] { freeaddrinfo(found); };
  const int listener = socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (listener < 0) return SystemError("cannot open a socket for " + address);
  const int on = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (bind(listener, found->ai_addr, found->ai_addrlen) < 0 || listen(listener, kBacklog) < 0) {
    const absl::Status status = SystemError("cannot listen on " + address);
    close(listener);
    return status;
  }
  return listener;
}

// "host:port" of a bound TCP socket.
std::string BoundAddress(int fd) {
  sockaddr_storage storage{};
  socklen_t length = sizeof(storage);
  getsockname(fd, reinterpret_cast<sockaddr*>(&storage), &length);
  char host[NI_MAXHOST], port[NI_MAXSERV];
  getnameinfo(reinterpret_cast<sockaddr*>(&storage), length, host, sizeof(host), port, sizeof(port),
              NI_NUMERICHOST | NI_NUMERICSERV);
  return storage.ss_family == AF_INET6 ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

// Where a socket is bound, as far as the connections of a listener share it: "unix:/path", or family and port. Empty
// for what is no socket of these kinds.
std::string LocalPlace(int fd) {
  sockaddr_storage storage{};
  socklen_t length = sizeof(storage);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&storage), &length) != 0) return {};
  switch (storage.ss_family) {
    case AF_UNIX: {
      const auto& address = reinterpret_cast<const sockaddr_un&>(storage);
      return absl::StrCat("unix:", std::string(address.sun_path, strnlen(address.sun_path, sizeof(address.sun_path))));
    }
    case AF_INET: return absl::StrCat("4:", ntohs(reinterpret_cast<const sockaddr_in&>(storage).sin_port));
    case AF_INET6: return absl::StrCat("6:", ntohs(reinterpret_cast<const sockaddr_in6&>(storage).sin6_port));
    default: return {};
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Acceptor>> Acceptor::Bind(const std::vector<std::string>& addresses) {
  std::unique_ptr<Acceptor> acceptor(new Acceptor);
  for (const std::string& address : addresses) {
    constexpr std::string_view kUnix = "unix:";
    if (address.starts_with(kUnix)) {
      const std::string path = address.substr(kUnix.size());
      KERND_ASSIGN_OR_RETURN(const int fd, ListenUnix(path, SOCK_STREAM));
      acceptor->listeners_.push_back(fd);
      acceptor->socket_files_.push_back(path);
      acceptor->bound_.push_back(address);
    } else {
      KERND_ASSIGN_OR_RETURN(const int fd, BindTcp(address));
      acceptor->listeners_.push_back(fd);
      acceptor->bound_.push_back(BoundAddress(fd));
    }
  }
  for (const int listener : acceptor->listeners_) acceptor->places_.insert(LocalPlace(listener));
  acceptor->wake_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (acceptor->wake_fd_ < 0) return SystemError("cannot open an eventfd");
  return acceptor;
}

Acceptor::~Acceptor() {
  Stop();
  if (wake_fd_ >= 0) close(wake_fd_);
  for (const std::string& file : socket_files_) unlink(file.c_str());
}

void Acceptor::Start(std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> sink) {
  sink_ = std::move(sink);
  thread_ = std::thread([this] { Loop(); });
}

void Acceptor::Stop() {
  if (thread_.joinable()) {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(wake_fd_, &one, sizeof(one));
    thread_.join();
  }
  // Closed, and not left to fill their backlogs: a client that connects now is refused and goes elsewhere.
  for (const int fd : listeners_) close(fd);
  listeners_.clear();
}

// gRPC owns the descriptors and tells nobody. They are found among all that are open; each is duplicated before it is
// asked, so that it cannot be closed, and its number taken by another, in between.
int Acceptor::Disconnect() {
  DIR* const folder = opendir("/proc/self/fd");
  if (folder == nullptr) return 0;
  const absl::Cleanup close_folder = [folder] { closedir(folder); };
  int open = 0;
  while (const dirent* entry = readdir(folder)) {
    const int fd = fcntl(std::atoi(entry->d_name), F_DUPFD_CLOEXEC, 0);
    if (fd < 0) continue;
    if (places_.contains(LocalPlace(fd)) && shutdown(fd, SHUT_RD) == 0) ++open;
    close(fd);
  }
  return open;
}

void Acceptor::Loop() {
  std::vector<pollfd> fds;
  for (const int listener : listeners_) fds.push_back({.fd = listener, .events = POLLIN, .revents = 0});
  fds.push_back({.fd = wake_fd_, .events = POLLIN, .revents = 0});
  while (true) {
    if (poll(fds.data(), fds.size(), -1) < 0 && errno != EINTR) continue;
    if (fds.back().revents != 0) return;
    for (std::size_t i = 0; i + 1 < fds.size(); ++i) {
      if (fds[i].revents != 0) Accept(fds[i].fd);
    }
  }
}

void Acceptor::Accept(int listener) {
  while (true) {
    const int fd = accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) {
      const int on = 1;
      setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));  // fails on a unix socket, which needs none
      grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
      connection.listener_fd = listener;
      connection.fd = fd;
      sink_->HandleNewConnection(&connection);
      continue;
    }
    if (errno == EINTR || errno == ECONNABORTED) continue;
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      // The connection stays in the backlog; look again soon, unless it is time to stop.
      pollfd wake = {.fd = wake_fd_, .events = POLLIN, .revents = 0};
      poll(&wake, 1, kRetryMs);
    }
    return;
  }
}

}  // namespace kernd::rpc
