// A set of byte offsets as merged ranges: what of a tensor has arrived.
#pragma once

#include <cstdint>
#include <map>
#include <utility>

namespace kernd::core {

class ByteRanges {
 public:
  // Pieces apart from each other. Streams that fill a tensor from several places need a few; a client that scatters
  // single bytes must not make the daemon remember each.
  static constexpr std::size_t kMaxPieces = 4096;

  enum class Added {
    kNew,      // disjoint from all before; added
    kPresent,  // wholly there already
    kOverlap,  // in part; not added
    kTooMany,  // would be one piece more than kMaxPieces; not added
  };

  // 0 <= begin <= end. An empty range is there always.
  Added Add(std::int64_t begin, std::int64_t end);

  // Of the ranges that [begin, end) overlaps, the first; {0, 0} where there is none.
  std::pair<std::int64_t, std::int64_t> FirstOverlap(std::int64_t begin, std::int64_t end) const;

  std::size_t pieces() const { return ranges_.size(); }
  void Clear() { ranges_.clear(); }

 private:
  std::map<std::int64_t, std::int64_t> ranges_;  // begin to end; neither overlapping nor touching
};

}  // namespace kernd::core
