// A plain connection, for what gRPC does not tell: why nobody answers, who does, and what a page over HTTP/1 says.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "client/cli/net/target.h"

namespace kernd::cli {

enum class Trouble {
  kNone,
  kNoName,       // the name of the host does not resolve
  kNoFile,       // the unix socket does not exist
  kRefused,      // nothing listens there
  kForbidden,    // no right to use the unix socket, or a firewall that says so
  kUnreachable,  // no way to that host, and all other failures
  kSilent,       // no answer in time
  kClosed,       // the peer closed the connection
  kInterrupted,
};

struct Failure {
  Trouble trouble = Trouble::kNone;
  std::string why;  // the system's word
};

// How long to wait for a peer.
struct Patience {
  absl::Time end;
  std::vector<int> interrupts = {};  // a descriptor of these that becomes readable ends the wait at once
};

class Socket {
 public:
  // Tries each address of the name in turn. None and `failure`, the last one's, where there is no connection. Looking
  // up a name takes as long as the system's resolver wants.
  static std::optional<Socket> Connect(const Target& target, const Patience& patience, Failure& failure);

  Socket(Socket&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  ~Socket();

  // All of it.
  Failure Send(std::string_view bytes, const Patience& patience);
  // Appends at most `max` bytes, at least one. kClosed at the end.
  Failure Receive(std::size_t max, const Patience& patience, std::string& bytes);

 private:
  explicit Socket(int fd) : fd_(fd) {}
  int fd_;
};

// What an HTTP/1 server answers.
struct Page {
  int code = 0;
  std::string body;
};

// GET `path`. None and `failure` where no whole reply comes: kUnreachable for one that is no HTTP/1, or beyond 4 MiB.
std::optional<Page> HttpGet(const Target& target, const std::string& path, const Patience& patience, Failure& failure);

}  // namespace kernd::cli
