// Descriptors that come over the unix socket: claimed once, bounded, and never leaked.
#include <dirent.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>

#include "server/rpc/handover.h"
#include "tests/support/memfd.h"

namespace kernd::rpc {
namespace {

int OpenDescriptors() {
  DIR* const folder = opendir("/proc/self/fd");
  int count = 0;
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

class HandoverTest : public ::testing::Test {
 protected:
  void Open(absl::Duration patience = absl::Minutes(10)) {
    path_ = ::testing::TempDir() + "kernd_handover_" + std::to_string(getpid());
    handover_ = *Handover::Start(path_, patience);
  }

  int Connect() const {
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path_.data(), path_.size());
    EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    return fd;
  }

  // What the daemon answers to a byte that comes with `fds`; empty where it hangs up.
  std::string Send(const std::vector<int>& fds) const {
    const int socket = Connect();
    char byte = 'm';
    iovec data = {.iov_base = &byte, .iov_len = 1};
    std::vector<char> control(CMSG_SPACE(sizeof(int) * fds.size()));
    msghdr message = {};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    if (!fds.empty()) {
      message.msg_control = control.data();
      message.msg_controllen = control.size();
      cmsghdr* const header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
      std::memcpy(CMSG_DATA(header), fds.data(), sizeof(int) * fds.size());
    }
    EXPECT_EQ(sendmsg(socket, &message, 0), 1);
    char token[64];
    const ssize_t got = recv(socket, token, sizeof(token), 0);
    close(socket);
    return got > 0 ? std::string(token, static_cast<std::size_t>(got)) : "";
  }

  std::string path_;
  std::unique_ptr<Handover> handover_;
};

TEST_F(HandoverTest, ADescriptorIsClaimedOnce) {
  Open();
  const int memory = testing::MakeMemfd(100);
  const std::string token = Send({memory});
  EXPECT_EQ(token.size(), 32u);
  EXPECT_NE(Send({memory}), token);
  const auto claimed = handover_->Claim(token);
  ASSERT_TRUE(claimed.ok()) << claimed.status();
  ASSERT_EQ(pwrite(memory, "x", 1, 7), 1);
  char read = 0;
  EXPECT_EQ(pread(claimed->get(), &read, 1, 7), 1);
  EXPECT_EQ(read, 'x');
  EXPECT_NE(fcntl(claimed->get(), F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_EQ(handover_->Claim(token).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(handover_->Claim("").status().code(), absl::StatusCode::kNotFound);
  close(memory);
}

TEST_F(HandoverTest, MessagesWithoutADescriptorAreHungUpOn) {
  Open();
  EXPECT_EQ(Send({}), "");
  const int silent = Connect();
  close(silent);
  EXPECT_EQ(handover_->waiting(), 0u);
}

TEST_F(HandoverTest, NothingIsLeaked) {
  const int before = OpenDescriptors();
  Open();
  const int memory = testing::MakeMemfd(100);
  std::vector<int> silent;
  for (std::size_t i = 0; i < 2 * Handover::kMaxConnections; ++i) silent.push_back(Connect());
  std::vector<std::string> tokens;
  for (std::size_t i = 0; i < Handover::kMaxWaiting + 2; ++i) tokens.push_back(Send({memory, memory, memory}));
  EXPECT_EQ(handover_->waiting(), Handover::kMaxWaiting);
  EXPECT_FALSE(handover_->Claim(tokens.front()).ok()) << "the oldest made room";
  EXPECT_TRUE(handover_->Claim(tokens.back()).ok());
  // One for each that waits, of those that have not spoken at most so many, and the socket's own two.
  EXPECT_LE(OpenDescriptors() - before,
            static_cast<int>(Handover::kMaxWaiting + silent.size() + Handover::kMaxConnections + 4));
  for (const int fd : silent) close(fd);
  handover_.reset();
  close(memory);
  EXPECT_EQ(OpenDescriptors(), before);
  EXPECT_NE(access(path_.c_str(), F_OK), 0);
}

TEST_F(HandoverTest, WhatNobodyClaimsIsClosed) {
  Open(absl::Milliseconds(20));
  const int silent = Connect();
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  EXPECT_EQ(Send({ends[1]}).size(), 32u);
  close(ends[1]);
  char byte;
  EXPECT_EQ(read(ends[0], &byte, 1), 0) << "ends when the daemon has closed the other end";
  EXPECT_EQ(recv(silent, &byte, 1, 0), 0);
  close(ends[0]);
  close(silent);
}

}  // namespace
}  // namespace kernd::rpc
