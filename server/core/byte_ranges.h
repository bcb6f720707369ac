// A set of byte offsets as merged ranges: what of a tensor has arrived.
#pragma once

#include <cstdint>
#include <map>
#include <utility>

namespace kernd::core {

class ByteRanges {
 public:
  // Pieces apart from each other. Streams that fill a tensor from several places need a few; a client that scatters
  // single bytes must not make the daemon remember each, nor more than the bytes are worth.
  static constexpr std::size_t kMinPieces = 16, kMaxPieces = 4096;
  // So many of a tensor of `bytes`. Chunks of 2 KiB and more may come in any order, or, of tensors beyond 16 MiB, those
  // of 1/8192 of the tensor and more.
  static std::size_t PiecesFor(std::int64_t bytes);

  enum class Added {
    kNew,      // disjoint from all before; added
    kPresent,  // wholly there already
    kOverlap,  // in part; not added
    kTooMany,  // would be one piece more than `max_pieces`; not added
  };

  explicit ByteRanges(std::size_t max_pieces = kMaxPieces) : max_pieces_(max_pieces) {}

  // 0 <= begin <= end. An empty range is there always.
  Added Add(std::int64_t begin, std::int64_t end);

  // Of the ranges that [begin, end) overlaps, the first; {0, 0} where there is none.
  std::pair<std::int64_t, std::int64_t> FirstOverlap(std::int64_t begin, std::int64_t end) const;

  std::size_t pieces() const { return ranges_.size(); }
  std::size_t max_pieces() const { return max_pieces_; }
  void Clear() { ranges_.clear(); }

 private:
  const std::size_t max_pieces_;
  std::map<std::int64_t, std::int64_t> ranges_;  // begin to end; neither overlapping nor touching
};

}  // namespace kernd::core
