// Where clients on this host hand over memory: a unix socket beside gRPC's, which passes no descriptors. A client
// connects, sends one byte with one descriptor, and is told a token; Tensors.RegisterSharedMemory names the token and
// takes the descriptor. Who may connect is a matter of the socket file's permissions.
#pragma once

#include <unistd.h>

#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace kernd::rpc {

// A descriptor, closed when it goes.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

class Handover {
 public:
  // Both bounded: what a client opens here costs descriptors.
  static constexpr std::size_t kMaxConnections = 16;  // that have sent nothing yet; the oldest makes room
  static constexpr std::size_t kMaxWaiting = 64;      // descriptors that nobody has claimed; the oldest makes room

  // Listens on `path`. A connection has `patience` to send its descriptor, and as long again to claim it. Errors of
  // ListenUnix.
  static absl::StatusOr<std::unique_ptr<Handover>> Start(const std::string& path,
                                                         absl::Duration patience = absl::Seconds(10));
  ~Handover();

  const std::string& path() const { return path_; }

  // The descriptor behind a token, once. NOT_FOUND: there is none, or no longer.
  absl::StatusOr<Descriptor> Claim(const std::string& token);

  std::size_t waiting() const;

 private:
  struct Connection {
    Descriptor socket;
    absl::Time deadline;
  };
  struct Waiting {
    Descriptor descriptor;
    absl::Time deadline;
  };

  Handover(std::string path, Descriptor listener, Descriptor wake, absl::Duration patience)
      : path_(std::move(path)), listener_(std::move(listener)), wake_(std::move(wake)), patience_(patience) {}
  void Loop();
  void Accept();
  // Reads what has come and answers it. The connection has then ended.
  void Receive(const Connection& connection);
  // Takes back what nobody has come for; milliseconds until there may be more, or -1.
  int Expire();

  const std::string path_;
  const Descriptor listener_, wake_;
  const absl::Duration patience_;
  std::vector<Connection> connections_;  // oldest first; the thread's own
  mutable absl::Mutex mutex_;
  std::map<std::string, Waiting> waiting_ ABSL_GUARDED_BY(mutex_);  // by token
  std::thread thread_;
};

}  // namespace kernd::rpc
