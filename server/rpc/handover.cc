#include "server/rpc/handover.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernd/kernels/error.h"
#include "server/rpc/unix_socket.h"

namespace kernd::rpc {
namespace {

constexpr int kRetryMs = 20;  // after the process ran out of descriptors

std::string NewToken() {
  char bytes[16];
  // Never short: the kernel promises as many as 256 bytes at once.
  [[maybe_unused]] const ssize_t got = getrandom(bytes, sizeof(bytes), 0);
  return absl::BytesToHexString(absl::string_view(bytes, sizeof(bytes)));
}

// The one descriptor of a message, or none. The kernel closes those for which there is no room.
Descriptor ReceiveDescriptor(int socket) {
  char byte = 0;
  iovec data = {.iov_base = &byte, .iov_len = 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = CMSG_LEN(sizeof(int));  // CMSG_SPACE has room for a second, which nobody would close
  if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT) <= 0) return Descriptor();
  const cmsghdr* const header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) return Descriptor();
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(header), sizeof(fd));
  return Descriptor(fd);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Handover>> Handover::Start(const std::string& path, absl::Duration patience) {
  KERND_ASSIGN_OR_RETURN(const int listener, ListenUnix(path, SOCK_SEQPACKET));
  const int wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  std::unique_ptr<Handover> handover(new Handover(path, Descriptor(listener), Descriptor(wake), patience));
  if (wake < 0) return absl::UnavailableError(absl::StrCat("cannot open an eventfd: ", std::strerror(errno)));
  handover->thread_ = std::thread([h = handover.get()] { h->Loop(); });
  return handover;
}

Handover::~Handover() {
  if (thread_.joinable()) {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof(one));
    thread_.join();
  }
  unlink(path_.c_str());
}

absl::StatusOr<Descriptor> Handover::Claim(const std::string& token) {
  absl::MutexLock lock(&mutex_);
  const auto it = waiting_.find(token);
  if (it == waiting_.end()) {
    return WithDetail(absl::NotFoundError("name is no token of memory that was handed over and not claimed yet"),
                      {.reason = std::string(reason::kInvalidField), .field = "name"});
  }
  Descriptor descriptor = std::move(it->second.descriptor);
  waiting_.erase(it);
  return descriptor;
}

std::size_t Handover::waiting() const {
  absl::MutexLock lock(&mutex_);
  return waiting_.size();
}

void Handover::Loop() {
  std::vector<pollfd> fds;
  while (true) {
    const int timeout = Expire();
    fds = {{.fd = wake_.get(), .events = POLLIN, .revents = 0},
           {.fd = listener_.get(), .events = POLLIN, .revents = 0}};
    for (const Connection& c : connections_) fds.push_back({.fd = c.socket.get(), .events = POLLIN, .revents = 0});
    if (poll(fds.data(), fds.size(), timeout) < 0) continue;
    if (fds[0].revents != 0) return;
    // From the back, so that the numbers of those before stay right.
    for (std::size_t i = fds.size(); i-- > 2;) {
      if (fds[i].revents == 0) continue;
      const auto at = connections_.begin() + static_cast<std::ptrdiff_t>(i - 2);
      Receive(*at);
      connections_.erase(at);
    }
    if (fds[1].revents != 0) Accept();
  }
}

void Handover::Accept() {
  const int fd = accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (fd < 0) {
    // Out of descriptors: the connection stays in the backlog, and is looked at again soon.
    if (errno == EMFILE || errno == ENFILE) absl::SleepFor(absl::Milliseconds(kRetryMs));
    return;
  }
  if (connections_.size() >= kMaxConnections) connections_.erase(connections_.begin());
  connections_.push_back({Descriptor(fd), absl::Now() + patience_});
}

void Handover::Receive(const Connection& connection) {
  Descriptor descriptor = ReceiveDescriptor(connection.socket.get());
  if (descriptor.get() < 0) return;
  const std::string token = NewToken();
  {
    absl::MutexLock lock(&mutex_);
    if (waiting_.size() >= kMaxWaiting) {
      waiting_.erase(std::ranges::min_element(
          waiting_, [](const auto& a, const auto& b) { return a.second.deadline < b.second.deadline; }));
    }
    waiting_.emplace(token, Waiting{std::move(descriptor), absl::Now() + patience_});
  }
  // A few bytes into an empty socket: they go, or the client has gone.
  [[maybe_unused]] const ssize_t sent = send(connection.socket.get(), token.data(), token.size(), MSG_NOSIGNAL);
}

int Handover::Expire() {
  const absl::Time now = absl::Now();
  std::erase_if(connections_, [&](const Connection& c) { return c.deadline <= now; });
  absl::Time next = absl::InfiniteFuture();
  for (const Connection& c : connections_) next = std::min(next, c.deadline);
  absl::MutexLock lock(&mutex_);
  std::erase_if(waiting_, [&](const auto& w) { return w.second.deadline <= now; });
  for (const auto& [token, w] : waiting_) next = std::min(next, w.deadline);
  if (next == absl::InfiniteFuture()) return -1;
  return static_cast<int>(std::min<std::int64_t>(absl::ToInt64Milliseconds(next - now) + 1, 1000));
}

}  // namespace kernd::rpc
