#include "server/telemetry/http_server.h"

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <list>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/telemetry/http_connection.h"
#include "server/telemetry/status_page.h"

namespace kernd::telemetry {
namespace {

using Clock = HttpConnection::Clock;

constexpr int kAcceptsAtOnce = 16;  // then those that are open have their turn
constexpr std::size_t kSpareDescriptors = 4;
constexpr std::chrono::milliseconds kAcceptPause(50);  // after a failure that does not pass at once

// A listening socket that does not block, or -1 with errno.
int ListenOn(const addrinfo& address) {
  const int fd = socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  const int on = 1, off = 0;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (address.ai_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  if (bind(fd, address.ai_addr, address.ai_addrlen) == 0 && listen(fd, SOMAXCONN) == 0) return fd;
  const int error = errno;
  close(fd);
  errno = error;
  return -1;
}

int PortOf(int fd) {
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

// Waits, at most until `end`, for one of `fds`.
void PollUntil(std::vector<pollfd>& fds, Clock::time_point end) {
  int timeout = -1;
  if (end != Clock::time_point::max()) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now()).count();
    timeout = static_cast<int>(std::clamp<std::int64_t>(left, 0, 3'600'000));
  }
  if (poll(fds.data(), fds.size(), timeout) >= 0) return;
  for (pollfd& entry : fds) entry.revents = 0;  // interrupted
}

}  // namespace

class HttpServer::Impl {
 public:
  Impl(std::string host, HttpPages pages, absl::Duration connection_time)
      : host_(std::move(host)),
        pages_(std::move(pages)),
        connection_time_(absl::ToChronoNanoseconds(connection_time)) {}
  ~Impl() {
    Stop();
    for (const int fd : spare_) close(fd);
    if (listener_ >= 0) close(listener_);
    if (wake_ >= 0) close(wake_);
  }

  absl::Status Start(int port) {
    const bool v6 = host_.find(':') != std::string::npos;
    const auto text = [&](int number) { return absl::StrCat(v6 ? "[" : "", host_, v6 ? "]:" : ":", number); };
    const auto unavailable = [&](absl::string_view why) {
      return absl::UnavailableError(absl::StrCat("--http-listen is ", text(port), ": cannot be bound: ", why));
    };
    addrinfo hints = {};
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
    addrinfo* found = nullptr;
    const int error = getaddrinfo(host_.c_str(), std::to_string(port).c_str(), &hints, &found);
    if (error != 0) return unavailable(gai_strerror(error));
    for (const addrinfo* at = found; at != nullptr && listener_ < 0; at = at->ai_next) listener_ = ListenOn(*at);
    const int listen_error = errno;
    freeaddrinfo(found);
    if (listener_ < 0) return unavailable(std::strerror(listen_error));
    wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (wake_ < 0) return unavailable(std::strerror(errno));
    port_ = PortOf(listener_);
    address_ = text(port_);
    thread_ = std::thread([this] { Serve(); });
    return absl::OkStatus();
  }

  void Stop() {
    const std::lock_guard lock(stop_mutex_);
    if (!thread_.joinable()) return;
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(wake_, &one, sizeof(one));
    thread_.join();
    // A client that connects now is refused, and not left to wait in the backlog.
    close(std::exchange(listener_, -1));
  }

  const std::string& address() const { return address_; }
  int port() const { return port_; }

 private:
  std::string Answer(const RequestHead& head) const {
    if (head.method != "GET" && head.method != "HEAD") return Render({.status = 405, .body = "GET and HEAD only\n"});
    return Render(Page(head.path), head.method == "GET");
  }

  HttpResponse Page(std::string_view path) const {
    if (path == "/healthz") return {.body = "ok\n"};
    if (path == "/metrics") {
      return {.body = pages_.metrics(), .content_type = "text/plain; version=0.0.4; charset=utf-8"};
    }
    if (path == "/readyz") {
      const absl::Status status = pages_.ready();
      if (status.ok()) return {.body = "ready\n"};
      return {.status = 503, .body = absl::StrCat(status.message(), "\n")};
    }
    if (path == "/") {
      return {.body = std::string(kStatusPage),
              .content_type = "text/html; charset=utf-8",
              .content_security_policy = std::string(kStatusPagePolicy)};
    }
    if (path == "/status.json") return {.body = pages_.status(), .content_type = "application/json"};
    return {.status = 404, .body = "no such page\n"};
  }

  void Serve() {
    std::vector<pollfd> fds;
    for (;;) {
      while (spare_.size() < kSpareDescriptors) {
        const int fd = dup(wake_);
        if (fd < 0) break;
        spare_.push_back(fd);
      }
      // An entry that is not to be polled has no descriptor.
      const bool accepting = Clock::now() >= accept_after_;
      fds = {{wake_, POLLIN, 0}, {accepting ? listener_ : -1, POLLIN, 0}};
      Clock::time_point end = accepting ? Clock::time_point::max() : accept_after_;
      for (const HttpConnection& connection : open_) {
        fds.push_back({connection.fd(), connection.events(), 0});
        end = std::min(end, connection.deadline());
      }
      PollUntil(fds, end);
      if (fds[0].revents != 0) break;
      AdvanceAll(fds.data() + 2);
      if (fds[1].revents != 0) AcceptSome();
    }
    open_.clear();
  }

  // `fds`: one for each open connection, in order.
  void AdvanceAll(const pollfd* fds) {
    const Clock::time_point now = Clock::now();
    for (auto it = open_.begin(); it != open_.end(); ++fds) {
      const bool alive = now < it->deadline() && (fds->revents == 0 || it->Advance(answer_));
      it = alive ? std::next(it) : open_.erase(it);
    }
  }

  void AcceptSome() {
    for (int i = 0; i < kAcceptsAtOnce; ++i) {
      const int fd = accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
      if (fd >= 0) {
        if (open_.size() == kMaxConnections) Shed();
        // Its request may be here already.
        if (!open_.emplace_back(fd, Clock::now() + connection_time_).Advance(answer_)) open_.pop_back();
      } else if ((errno == EMFILE || errno == ENFILE) && !spare_.empty()) {
        close(spare_.back());
        spare_.pop_back();
      } else if (errno != EINTR && errno != ECONNABORTED) {
        if (errno != EAGAIN && errno != EWOULDBLOCK) accept_after_ = Clock::now() + kAcceptPause;
        return;
      }
    }
  }

  void Shed() {
    const auto answered = std::find_if(open_.begin(), open_.end(),
                                       [](const HttpConnection& connection) { return connection.answered(); });
    open_.erase(answered != open_.end() ? answered : open_.begin());
  }

  const std::string host_;
  const HttpPages pages_;
  const std::chrono::nanoseconds connection_time_;
  const HttpConnection::Answer answer_ = [this](const RequestHead& head) { return Answer(head); };
  std::string address_;  // set by Start
  int port_ = -1;        // set by Start
  int listener_ = -1;    // set by Start
  int wake_ = -1;        // set by Start; readable: end
  std::thread thread_;
  std::mutex stop_mutex_;

  // The thread's own.
  std::list<HttpConnection> open_;  // oldest first
  std::vector<int> spare_;
  Clock::time_point accept_after_ = Clock::time_point::min();
};

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() = default;

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const std::string& host, int port, HttpPages pages,
                                                              absl::Duration connection_time) {
  auto impl = std::make_unique<Impl>(host, std::move(pages), connection_time);
  if (absl::Status status = impl->Start(port); !status.ok()) return status;
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

const std::string& HttpServer::address() const {
  return impl_->address();
}
int HttpServer::port() const {
  return impl_->port();
}
void HttpServer::Stop() {
  impl_->Stop();
}

}  // namespace kernd::telemetry
