#include "server/rpc/unix_socket.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernd/kernels/error.h"

namespace kernd::rpc {
namespace {

constexpr int kBacklog = 1024;

absl::Status SystemError(const std::string& what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(errno)));
}

}  // namespace

absl::StatusOr<int> ListenUnix(const std::string& path, int type) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return InvalidField("listen", "unix:" + path, "a socket path has 1 to 107 bytes");
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  struct stat there {};
  if (lstat(path.c_str(), &there) == 0) {
    // Only a socket is ever replaced, and only one that nobody listens on: left over from a daemon that was killed.
    if (!S_ISSOCK(there.st_mode))
      return absl::UnavailableError(absl::StrCat("unix:", path, " exists and is no socket"));
    const int probe = socket(AF_UNIX, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (probe < 0) return SystemError("cannot open a unix socket");
    if (connect(probe, reinterpret_cast<sockaddr*>(&address), sizeof(address)) < 0 && errno == ECONNREFUSED) {
      unlink(path.c_str());
    }
    close(probe);
  }
  const int listener = socket(AF_UNIX, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (listener < 0) return SystemError("cannot open a unix socket");
  if (bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof(address)) < 0 || listen(listener, kBacklog) < 0) {
    const absl::Status status = SystemError("cannot listen on unix:" + path);
    close(listener);
    return status;
  }
  return listener;
}

}  // namespace kernd::rpc
