// Plain blocking sockets with the system's own settings, as in any first example of them.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace kernd::bench {

// Closed with its owner.
class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket();
  Socket(Socket&& other) noexcept;
  Socket& operator=(Socket&&) = delete;

  // To HOST:PORT (an IPv4 address) or unix:PATH.
  static absl::StatusOr<Socket> Connect(const std::string& target);
  // On 127.0.0.1 and any free port, or unix:PATH. `address`: where to connect to.
  static absl::StatusOr<Socket> Listen(const std::string& target, std::string& address);

  absl::StatusOr<Socket> Accept() const;
  // All bytes. UNAVAILABLE where the peer has gone.
  absl::Status Send(const void* data, std::size_t size) const;
  absl::Status Receive(void* data, std::size_t size) const;

 private:
  int fd_;
};

}  // namespace kernd::bench
