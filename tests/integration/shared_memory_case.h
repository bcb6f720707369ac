// A daemon that takes shared memory, and sessions that have some; for the tests of shared_memory_test.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <string>
#include <thread>

#include "gtest/gtest.h"
#include "tests/support/daemon.h"
#include "tests/support/session_case.h"
#include "tests/support/shared_client.h"

namespace kernd::testing {

inline constexpr char kShared[] = "kernd_memory_used_bytes{pool=\"shared\"}";
inline constexpr std::int64_t kMiB = std::int64_t{1} << 20;

// `tensor` without its data: in the region, from byte `offset` on.
inline v1::Tensor In(v1::Tensor tensor, std::uint64_t region, std::int64_t offset,
                     std::initializer_list<std::int64_t> strides = {}) {
  tensor.mutable_shared()->set_region_id(region);
  tensor.mutable_shared()->set_offset_bytes(offset);
  for (const std::int64_t stride : strides) tensor.add_strides(stride);
  return tensor;
}

// Lines of a file of /proc that name a memfd: mappings, or descriptors.
inline int Mappings(pid_t pid) {
  std::ifstream maps("/proc/" + std::to_string(pid) + "/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find("/memfd:test") != std::string::npos ? 1 : 0;
  return count;
}
inline int Descriptors(pid_t pid) {
  int count = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd")) {
    count += std::filesystem::read_symlink(entry, error).string().find("/memfd:test") != std::string::npos ? 1 : 0;
  }
  return count;
}

class SharedMemoryTest : public SessionCase {
 protected:
  static void SetUpTestSuite() {
    socket_ = ::testing::TempDir() + "kernd_shared_" + std::to_string(getpid());
    daemon_ = Daemon::Start({"--shared-memory-socket", socket_, "--shared-memory-limit", "16MiB"}).release();
  }
  static void TearDownTestSuite() {
    EXPECT_TRUE(daemon_->WaitForMetric(kShared, 0)) << "every test gave back what it held";
    EXPECT_TRUE(daemon_->WaitForMetric("kernd_memory_used_bytes{pool=\"memory\"}", 0));
    EXPECT_EQ(Mappings(daemon_->pid()), 0);
    // Those that nobody claimed are given up after ten seconds.
    for (int tries = 0; tries < 200 && Descriptors(daemon_->pid()) != 0; ++tries) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    EXPECT_EQ(Descriptors(daemon_->pid()), 0);
    EXPECT_EQ(daemon_->Stop(), 0);
    EXPECT_FALSE(std::filesystem::exists(socket_));
    delete daemon_;
  }
  SharedMemoryTest() : SessionCase(daemon_->endpoint()) {}

  v1::RegisterSharedMemoryRequest Registration(std::uint64_t region, std::int64_t bytes, const std::string& token) {
    v1::RegisterSharedMemoryRequest request;
    request.set_session_id(session_.opened.session_id());
    request.set_region_id(region);
    request.set_size_bytes(bytes);
    request.set_name(token);
    return request;
  }
  RawReply Share(std::uint64_t region, std::int64_t bytes, int fd) {
    return Register(*session_.stub, Registration(region, bytes, HandOver(socket_, fd)));
  }
  void MustShare(std::uint64_t region, const Memory& memory) {
    const RawReply reply = Share(region, static_cast<std::int64_t>(memory.bytes().size()), memory.fd());
    ASSERT_TRUE(reply.status.ok()) << reply.status.error_message();
  }
  RawReply Forget(std::uint64_t region) { return Unregister(*session_.stub, session_.opened.session_id(), region); }

  static inline Daemon* daemon_ = nullptr;
  static inline std::string socket_;
};

}  // namespace kernd::testing
