// Memory that a client on the same host shares with the daemon. What it holds may change at any moment and is never
// trusted; that it stays mapped is certain, whatever the client does.
//
// Only a memfd that is sealed against shrinking is taken. A region of POSIX shared memory or a file could be cut short
// under a kernel that reads it, which ends the process with SIGBUS; a seal makes that impossible, where a handler would
// have to survive it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace kernd::core {

class SharedRegion {
 public:
  // Maps the first `bytes` of `fd`, which the caller keeps.
  //   INVALID_ARGUMENT    no memfd, not sealed against shrinking, shorter than `bytes`, or not writable
  //   RESOURCE_EXHAUSTED  the system maps no more
  static absl::StatusOr<std::shared_ptr<SharedRegion>> Map(int fd, std::int64_t bytes);
  // The mapping goes with the last call that uses it.
  ~SharedRegion();
  SharedRegion(const SharedRegion&) = delete;
  SharedRegion& operator=(const SharedRegion&) = delete;

  std::int64_t bytes() const { return bytes_; }
  std::byte* data() const { return data_; }

  // The range; both numbers are a client's. OUT_OF_RANGE, naming `field`, where it is not inside.
  absl::StatusOr<absl::Span<std::byte>> Range(std::int64_t offset, std::int64_t bytes, std::string_view field) const;

  // Kept until the region goes, before it is unmapped: what a device needs to read it by itself.
  void Keep(std::shared_ptr<void> registration) { registration_ = std::move(registration); }

 private:
  SharedRegion(std::byte* data, std::int64_t bytes) : data_(data), bytes_(bytes) {}

  std::byte* const data_;
  const std::int64_t bytes_;
  std::shared_ptr<void> registration_;
};

}  // namespace kernd::core
