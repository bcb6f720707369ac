#include "client/src/shared_regions.h"

#include <iterator>

namespace kernd::client {

void SharedRegions::Add(std::uint64_t region, std::span<std::byte> memory) {
  const std::scoped_lock lock(mutex_);
  regions_[memory.data()] = {region, memory.size()};
}

void SharedRegions::Remove(std::span<std::byte> memory) {
  const std::scoped_lock lock(mutex_);
  regions_.erase(memory.data());
}

std::optional<SharedRegions::Place> SharedRegions::Find(std::span<const std::byte> bytes,
                                                        std::int64_t alignment) const {
  if (bytes.empty()) return std::nullopt;
  const std::scoped_lock lock(mutex_);
  const auto after = regions_.upper_bound(bytes.data());
  if (after == regions_.begin()) return std::nullopt;
  const auto& [start, region] = *std::prev(after);
  const auto offset = static_cast<std::size_t>(bytes.data() - start);
  if (offset > region.bytes || bytes.size() > region.bytes - offset) return std::nullopt;
  if (alignment <= 0 || static_cast<std::int64_t>(offset) % alignment != 0) return std::nullopt;
  return Place{region.id, static_cast<std::int64_t>(offset)};
}

}  // namespace kernd::client
