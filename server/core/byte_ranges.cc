#include "server/core/byte_ranges.h"

#include <algorithm>
#include <iterator>

namespace kernd::core {
namespace {

// Each piece, a node of 64 bytes, is then less than two percent of the tensor.
constexpr std::int64_t kBytesOfPiece = 4096;

}  // namespace

std::size_t ByteRanges::PiecesFor(std::int64_t bytes) {
  return std::min(kMinPieces + static_cast<std::size_t>(bytes / kBytesOfPiece), kMaxPieces);
}

ByteRanges::Added ByteRanges::Add(std::int64_t begin, std::int64_t end) {
  if (begin == end) return Added::kPresent;
  const auto [there_begin, there_end] = FirstOverlap(begin, end);
  if (there_begin != there_end) {
    return there_begin <= begin && end <= there_end ? Added::kPresent : Added::kOverlap;
  }
  // Nothing overlaps, so at most one range ends where this one begins, and one begins where it ends.
  const auto after = ranges_.lower_bound(end);
  const auto before = after == ranges_.begin() ? ranges_.end() : std::prev(after);
  const bool joins_before = before != ranges_.end() && before->second == begin;
  const bool joins_after = after != ranges_.end() && after->first == end;
  if (!joins_before && !joins_after && ranges_.size() >= max_pieces_) return Added::kTooMany;
  if (joins_after) {
    end = after->second;
    ranges_.erase(after);
  }
  if (joins_before) {
    before->second = end;
  } else {
    ranges_.emplace(begin, end);
  }
  return Added::kNew;
}

std::pair<std::int64_t, std::int64_t> ByteRanges::FirstOverlap(std::int64_t begin, std::int64_t end) const {
  if (begin == end) return {0, 0};
  auto it = ranges_.upper_bound(begin);
  if (it != ranges_.begin() && std::prev(it)->second > begin) --it;
  return it != ranges_.end() && it->first < end ? *it : std::pair<const std::int64_t, std::int64_t>{0, 0};
}

}  // namespace kernd::core
