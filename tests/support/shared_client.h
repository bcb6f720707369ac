// A client that shares memory, step by step, as anybody would write one.
#pragma once

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "kernd/v1/tensors.grpc.pb.h"
#include "tests/support/memfd.h"
#include "tests/support/raw_client.h"

namespace kernd::testing {

// The token that the daemon's socket gives for `fd`; empty where it gives none.
inline std::string HandOver(const std::string& path, int fd) {
  const int peer = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  char byte = 'm', token[64];
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
  ssize_t got = -1;
  if (connect(peer, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 && sendmsg(peer, &message, 0) == 1) {
    got = recv(peer, token, sizeof(token), 0);
  }
  close(peer);
  return got > 0 ? std::string(token, static_cast<std::size_t>(got)) : "";
}

// A sealed memfd, mapped.
class Memory {
 public:
  explicit Memory(std::int64_t bytes) : fd_(MakeMemfd(bytes)), bytes_(static_cast<std::size_t>(bytes)) {
    data_ = static_cast<std::byte*>(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0));
    if (data_ == MAP_FAILED) std::abort();
  }
  ~Memory() {
    munmap(data_, bytes_);
    close(fd_);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  int fd() const { return fd_; }
  std::span<std::byte> bytes() const { return {data_, bytes_}; }
  void Write(std::int64_t offset, const std::string& data) const {
    std::memcpy(data_ + offset, data.data(), data.size());
  }
  std::string Read(std::int64_t offset, std::size_t bytes) const {
    return {reinterpret_cast<const char*>(data_) + offset, bytes};
  }

 private:
  const int fd_;
  const std::size_t bytes_;
  std::byte* data_;
};

inline RawReply Register(v1::Tensors::Stub& stub, const v1::RegisterSharedMemoryRequest& request) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  v1::RegisterSharedMemoryReply reply;
  return Explained(stub.RegisterSharedMemory(&context, request, &reply));
}

inline RawReply Unregister(v1::Tensors::Stub& stub, const std::string& session, std::uint64_t region) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  v1::UnregisterSharedMemoryRequest request;
  request.set_session_id(session);
  request.set_region_id(region);
  v1::UnregisterSharedMemoryReply reply;
  return Explained(stub.UnregisterSharedMemory(&context, request, &reply));
}

}  // namespace kernd::testing
