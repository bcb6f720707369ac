// The bytes of a message, read where they arrived: over the slices of a body, in place.
#pragma once

#include <grpcpp/support/slice.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"

namespace kernd::rpc {

// Takes exactly what protobuf's own parser takes: varints of at most 10 bytes, tags of 5, lengths below 2 GiB. Every
// read says whether it could be made; after one that could not, the reader is of no more use.
class WireReader {
 public:
  // `slices` must outlive the reader.
  explicit WireReader(absl::Span<const grpc::Slice> slices);

  std::int64_t left() const { return left_; }  // bytes not read yet

  bool Varint(std::uint64_t& value) { return Varint(10, value); }
  bool Tag(std::uint32_t& tag);
  bool Length(std::int64_t& length);

  // The next `bytes`: copied behind `out`, or left out.
  bool Append(std::int64_t bytes, std::string& out);
  bool Skip(std::int64_t bytes);

  // Where the next byte is; there must be one.
  struct Position {
    std::size_t slice = 0, offset = 0;
  };
  Position Here();

 private:
  bool Varint(int max_bytes, std::uint64_t& value);
  // Makes at_ != end_ where there is anything left.
  void Advance();

  template <typename Use>
  bool ForEachRun(std::int64_t bytes, Use use) {
    if (bytes > left_) return false;
    left_ -= bytes;
    while (bytes > 0) {
      Advance();
      const std::int64_t size = bytes < end_ - at_ ? bytes : end_ - at_;
      use(at_, static_cast<std::size_t>(size));
      at_ += size;
      bytes -= size;
    }
    return true;
  }

  const absl::Span<const grpc::Slice> slices_;
  std::size_t next_ = 0;  // slice after the one that is being read
  const std::uint8_t* at_ = nullptr;
  const std::uint8_t* end_ = nullptr;
  std::int64_t left_ = 0;
};

}  // namespace kernd::rpc
