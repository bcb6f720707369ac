// A memfd from its making to the daemon's region of it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/src/session_link.h"

namespace kernd::client {

class SharedMemory {
 public:
  // Makes `bytes` of memory, hands them over at the daemon's socket and registers them in the session. Errors of
  // Session::Share.
  static absl::StatusOr<std::unique_ptr<SharedMemory>> Make(std::shared_ptr<const SessionLink> link, std::int64_t bytes,
                                                            const CallTerms& terms);
  // Unregisters, waiting at most a second, and unmaps.
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  std::span<std::byte> bytes() const { return bytes_; }

 private:
  SharedMemory(std::shared_ptr<const SessionLink> link, std::span<std::byte> bytes, std::uint64_t region)
      : link_(std::move(link)), bytes_(bytes), region_(region) {}

  const std::shared_ptr<const SessionLink> link_;
  const std::span<std::byte> bytes_;
  const std::uint64_t region_;
  bool registered_ = false;
};

// The token that the daemon behind the unix socket `path` gives for `fd`. UNAVAILABLE, NOT_CONNECTED;
// DEADLINE_EXCEEDED.
absl::StatusOr<std::string> HandOver(const std::string& path, int fd, absl::Time deadline);

}  // namespace kernd::client
