// Which memory of this process a session shares with its daemon.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <span>

#include "absl/base/thread_annotations.h"

namespace kernd::client {

// Thread-safe.
class SharedRegions {
 public:
  struct Place {
    std::uint64_t region = 0;
    std::int64_t offset_bytes = 0;
  };

  void Add(std::uint64_t region, std::span<std::byte> memory);
  void Remove(std::span<std::byte> memory);

  // Where `bytes`, not empty, lie in a region; none where they do not, or not at a multiple of `alignment` bytes.
  std::optional<Place> Find(std::span<const std::byte> bytes, std::int64_t alignment) const;

 private:
  struct Region {
    std::uint64_t id;
    std::size_t bytes;
  };
  mutable std::mutex mutex_;
  std::map<const std::byte*, Region> regions_ ABSL_GUARDED_BY(mutex_);  // by their start
};

// A result's type is the daemon's to tell: aligned for every one.
inline constexpr std::int64_t kResultAlignment = 8;

}  // namespace kernd::client
