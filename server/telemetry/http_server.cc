#include "server/telemetry/http_server.h"

#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/telemetry/http_connection.h"

namespace kernd::telemetry {
namespace {

using std::chrono::milliseconds;

constexpr int kThreads = 2;
constexpr std::size_t kMaxWaiting = 64;
constexpr std::size_t kMaxRequestBytes = 16384;

// Set in the thread that accepts, around a connection for which there is no room.
thread_local bool shedding = false;

// The library's own pool queues without limit. A task owns its socket, so one that finds no room has to run all the
// same, and closes the socket at once because `shedding` is set.
class BoundedPool : public httplib::TaskQueue {
 public:
  BoundedPool() {
    for (int i = 0; i < kThreads; ++i) threads_.emplace_back([this] { Work(); });
  }

  void enqueue(std::function<void()> task) override {
    {
      const std::lock_guard lock(mutex_);
      if (tasks_.size() < kMaxWaiting) {
        tasks_.push_back(std::move(task));
        wake_.notify_one();
        return;
      }
    }
    shedding = true;
    task();
    shedding = false;
  }

  void shutdown() override {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  void Work() {
    for (;;) {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return ending_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      const std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> tasks_;  // guarded by mutex_
  bool ending_ = false;                      // guarded by mutex_
  std::vector<std::thread> threads_;
};

// The library's server with sockets that can be cut off from outside.
class Server : public httplib::Server {
 public:
  explicit Server(absl::Duration connection_time) : connection_time_(absl::ToChronoNanoseconds(connection_time)) {
    new_task_queue = [] { return new BoundedPool; };
    set_payload_max_length(kMaxRequestBytes);
    // The library's default is SO_REUSEPORT, with which two daemons would share a port unnoticed.
    set_socket_options([](socket_t fd) {
      const int on = 1;
      setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    });
    set_default_headers({{"Cache-Control", "no-store"}, {"X-Content-Type-Options", "nosniff"}});
  }

  // Connections that are being served fail from now on, and later ones are closed unread.
  void CutOff() {
    const std::lock_guard lock(mutex_);
    cut_off_ = true;
    for (const socket_t fd : open_) ::shutdown(fd, SHUT_RDWR);
  }

  // Serves until StopListening, or until accept fails.
  void Listen() {
    // The library has closed the socket, and forgotten it only if it was told to stop.
    if (!listen_after_bind()) svr_sock_ = INVALID_SOCKET;
  }

  // Closes a socket that was bound and never listened on, which the library does not.
  void CloseUnused() {
    const socket_t fd = svr_sock_.exchange(INVALID_SOCKET);
    if (fd != INVALID_SOCKET) ::close(fd);
  }

  // Makes Listen return; no effect unless it runs.
  void StopListening() {
    if (is_running() && svr_sock_ != INVALID_SOCKET) stop();
  }

 private:
  bool process_and_close_socket(socket_t fd) override {
    bool served = false;
    if (!shedding && Open(fd)) {
      HttpConnection connection(fd, HttpConnection::Clock::now() + connection_time_, kMaxRequestBytes);
      bool closed = false;
      served = process_request(connection, /*close_connection=*/true, closed, nullptr);
      const std::lock_guard lock(mutex_);
      open_.erase(fd);
    }
    ::shutdown(fd, SHUT_RDWR);
    ::close(fd);
    return served;
  }

  bool Open(socket_t fd) {
    const std::lock_guard lock(mutex_);
    return !cut_off_ && open_.insert(fd).second;
  }

  const std::chrono::nanoseconds connection_time_;
  std::mutex mutex_;
  bool cut_off_ = false;     // guarded by mutex_
  std::set<socket_t> open_;  // guarded by mutex_
};

}  // namespace

class HttpServer::Impl {
 public:
  Impl(std::string host, HttpPages pages, absl::Duration connection_time)
      : host_(std::move(host)), pages_(std::move(pages)), server_(connection_time) {
    AddPages();
  }
  ~Impl() { Stop(); }

  absl::Status Start(int port) {
    if (port == 0) {
      port_ = server_.bind_to_any_port(host_);
    } else {
      port_ = server_.bind_to_port(host_, port) ? port : -1;
    }
    const bool v6 = host_.find(':') != std::string::npos;
    address_ = absl::StrCat(v6 ? "[" : "", host_, v6 ? "]:" : ":", port_ < 0 ? port : port_);
    if (port_ < 0) {
      return absl::UnavailableError(absl::StrCat("--http-listen is ", address_, ": the address cannot be bound"));
    }
    thread_ = std::thread([this] { Serve(); });
    return absl::OkStatus();
  }

  void Stop() {
    const std::lock_guard lock(stop_mutex_);
    if (!thread_.joinable()) return;
    stopping_ = true;
    server_.CutOff();
    // Stopping takes effect only while the library listens, and the thread may be just about to.
    for (std::unique_lock done_lock(done_mutex_); !done_;) {
      server_.StopListening();
      done_changed_.wait_for(done_lock, milliseconds(5));
    }
    thread_.join();
  }

  const std::string& address() const { return address_; }
  int port() const { return port_; }

 private:
  void AddPages() {
    server_.Get("/", [this](const httplib::Request&, httplib::Response& response) {
      response.set_content(
          absl::StrCat(pages_.title, "\n\n/metrics  for Prometheus\n/healthz  200 while the process lives\n",
                       "/readyz   200 while calls are accepted, else 503 and why\n"),
          "text/plain; charset=utf-8");
    });
    server_.Get("/metrics", [this](const httplib::Request&, httplib::Response& response) {
      response.set_content(pages_.metrics(), "text/plain; version=0.0.4; charset=utf-8");
    });
    server_.Get("/healthz", [](const httplib::Request&, httplib::Response& response) {
      response.set_content("ok\n", "text/plain; charset=utf-8");
    });
    server_.Get("/readyz", [this](const httplib::Request&, httplib::Response& response) {
      const absl::Status status = pages_.ready();
      response.status = status.ok() ? 200 : 503;
      response.set_content(status.ok() ? "ready\n" : absl::StrCat(status.message(), "\n"), "text/plain; charset=utf-8");
    });
  }

  // The library gives up, and closes its socket, on every failure of accept but one; some pass (a connection reset
  // before it was accepted, a machine out of file descriptors), so bind again.
  void Serve() {
    bool bound = true;
    while (!stopping_) {
      if (bound) server_.Listen();
      if (stopping_) break;
      std::unique_lock lock(done_mutex_);
      done_changed_.wait_for(lock, milliseconds(100), [this] { return stopping_.load(); });
      bound = server_.bind_to_port(host_, port_);
    }
    server_.CloseUnused();
    const std::lock_guard lock(done_mutex_);
    done_ = true;
    done_changed_.notify_all();
  }

  const std::string host_;
  const HttpPages pages_;
  std::string address_;  // set by Start
  int port_ = -1;        // set by Start
  Server server_;
  std::thread thread_;
  std::atomic<bool> stopping_ = false;
  std::mutex stop_mutex_;
  std::mutex done_mutex_;
  std::condition_variable done_changed_;
  bool done_ = false;  // guarded by done_mutex_
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
