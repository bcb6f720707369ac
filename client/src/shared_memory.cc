#include "client/src/shared_memory.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/time/clock.h"
#include "client/src/relay.h"
#include "client/src/status.h"
#include "kernd/client/error.h"
#include "kernd/v1/tensors.pb.h"

namespace kernd::client {
namespace {

constexpr char kRegister[] = "/kernd.v1.Tensors/RegisterSharedMemory";
constexpr char kUnregister[] = "/kernd.v1.Tensors/UnregisterSharedMemory";

// Most that a destructor waits for.
constexpr absl::Duration kGoodbye = absl::Seconds(1);

std::string SystemError(const std::string& what) {
  return what + ": " + std::strerror(errno);
}

absl::Status NoMemory(std::int64_t bytes) {
  return LocalError(absl::StatusCode::kResourceExhausted, "", "bytes",
                    SystemError("no memfd of " + std::to_string(bytes) + " bytes"));
}

absl::Status NoSocket(const std::string& path) {
  return NotConnected("unix:" + path, absl::StatusCode::kUnavailable, std::strerror(errno));
}

absl::StatusOr<grpc::ByteBuffer> Call(const SessionLink& link, const char* method,
                                      const google::protobuf::MessageLite& message, const CallTerms& terms) {
  Pieces request;
  request.Message(message);
  return link.wire().transport.Call(method, request, terms);
}

absl::StatusOr<std::string> SocketOf(const SessionLink& link, const CallTerms& terms) {
  const Transport& transport = link.wire().transport;
  if (!transport.options().shared_memory_socket.empty()) return transport.options().shared_memory_socket;
  absl::StatusOr<grpc::ByteBuffer> reply = transport.Call("/kernd.v1.Device/GetCapabilities", Pieces(), terms);
  KERND_CLIENT_RETURN_IF_ERROR(reply.status());
  absl::StatusOr<Capabilities> capabilities = DecodeCapabilities(*std::move(reply));
  KERND_CLIENT_RETURN_IF_ERROR(capabilities.status());
  if (!capabilities->shared_memory_socket.empty()) return std::move(capabilities->shared_memory_socket);
  return LocalError(absl::StatusCode::kFailedPrecondition, reason::kSharedMemoryOff, "",
                    "this daemon takes no shared memory: it was started without --shared-memory-socket");
}

}  // namespace

absl::StatusOr<std::string> HandOver(const std::string& path, int fd, absl::Time deadline) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return InvalidField("shared_memory_socket", path, "must be a path of at most 107 bytes");
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  const int peer = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (peer < 0) return NoSocket(path);
  const absl::Cleanup close_peer = [peer] { close(peer); };
  if (connect(peer, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) return NoSocket(path);

  char byte = 'm';
  iovec data = {.iov_base = &byte, .iov_len = 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &fd, sizeof(fd));
  if (sendmsg(peer, &message, MSG_NOSIGNAL) != 1) return NoSocket(path);

  pollfd answer = {.fd = peer, .events = POLLIN, .revents = 0};
  int ready = 0;
  do {
    const auto left = std::clamp<std::int64_t>(absl::ToInt64Milliseconds(deadline - absl::Now()), 0, 60'000);
    ready = poll(&answer, 1, static_cast<int>(left));
  } while ((ready < 0 && errno == EINTR) || (ready == 0 && absl::Now() < deadline));
  if (ready == 0) return NotConnected("unix:" + path, absl::StatusCode::kDeadlineExceeded, "no answer in time");
  char token[64];
  const ssize_t got = recv(peer, token, sizeof(token), 0);
  if (got <= 0) return NotConnected("unix:" + path, absl::StatusCode::kUnavailable, "the daemon hung up");
  return std::string(token, static_cast<std::size_t>(got));
}

absl::StatusOr<std::unique_ptr<SharedMemory>> SharedMemory::Make(std::shared_ptr<const SessionLink> link,
                                                                 std::int64_t bytes, const CallTerms& terms) {
  if (bytes <= 0) return InvalidField("bytes", std::to_string(bytes), "must be positive");
  const absl::StatusOr<std::string> path = SocketOf(*link, terms);
  KERND_CLIENT_RETURN_IF_ERROR(path.status());
  const int fd = memfd_create("kernd", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return NoMemory(bytes);
  const absl::Cleanup close_fd = [fd] { close(fd); };  // the mappings stay
  if (ftruncate(fd, bytes) != 0 || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) return NoMemory(bytes);
  const auto size = static_cast<std::size_t>(bytes);
  void* const data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) return NoMemory(bytes);
  const std::uint64_t region = OwnId();
  std::unique_ptr<SharedMemory> memory(new SharedMemory(link, {static_cast<std::byte*>(data), size}, region));

  absl::StatusOr<std::string> token = HandOver(*path, fd, terms.deadline);
  KERND_CLIENT_RETURN_IF_ERROR(token.status());
  v1::RegisterSharedMemoryRequest request;
  request.set_session_id(link->session().id);
  request.set_region_id(region);
  request.set_name(*std::move(token));
  request.set_size_bytes(bytes);
  KERND_CLIENT_RETURN_IF_ERROR(Call(*link, kRegister, request, terms).status());
  link->shared().Add(region, memory->bytes_);
  memory->registered_ = true;
  return memory;
}

SharedMemory::~SharedMemory() {
  if (registered_) {
    link_->shared().Remove(bytes_);
    CallOptions options;
    options.timeout = kGoodbye;
    options.retry = RetryPolicy{.max_attempts = 1};
    v1::UnregisterSharedMemoryRequest request;
    request.set_session_id(link_->session().id);
    request.set_region_id(region_);
    // Where the session has ended, its regions have gone.
    if (const absl::StatusOr<CallTerms> terms = link_->Terms(options); terms.ok()) {
      Call(*link_, kUnregister, request, *terms).status().IgnoreError();
    }
  }
  munmap(bytes_.data(), bytes_.size());
}

}  // namespace kernd::client
