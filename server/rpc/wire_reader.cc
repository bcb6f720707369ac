#include "server/rpc/wire_reader.h"

#include <limits>

namespace kernd::rpc {
namespace {

// Protobuf keeps 16 bytes of room behind what it reads, and counts them.
constexpr std::uint64_t kMaxLength = std::numeric_limits<std::int32_t>::max() - 16;

}  // namespace

WireReader::WireReader(absl::Span<const grpc::Slice> slices) : slices_(slices) {
  for (const grpc::Slice& slice : slices) left_ += static_cast<std::int64_t>(slice.size());
}

void WireReader::Advance() {
  while (at_ == end_) {
    at_ = slices_[next_].begin();
    end_ = slices_[next_++].end();
  }
}

WireReader::Position WireReader::Here() {
  Advance();
  return {.slice = next_ - 1, .offset = static_cast<std::size_t>(at_ - slices_[next_ - 1].begin())};
}

bool WireReader::Varint(int max_bytes, std::uint64_t& value) {
  value = 0;
  for (int i = 0; i < max_bytes; ++i) {
    if (left_ == 0) return false;
    Advance();
    --left_;
    const std::uint64_t byte = *at_++;
    value |= (byte & 0x7f) << (7 * i);
    if (byte < 0x80) return true;
  }
  return false;
}

bool WireReader::Tag(std::uint32_t& tag) {
  std::uint64_t value = 0;
  if (!Varint(5, value)) return false;
  tag = static_cast<std::uint32_t>(value);
  return true;
}

bool WireReader::Length(std::int64_t& length) {
  std::uint64_t value = 0;
  if (!Varint(5, value) || value > kMaxLength) return false;
  length = static_cast<std::int64_t>(value);
  return true;
}

bool WireReader::Append(std::int64_t bytes, std::string& out) {
  return ForEachRun(bytes, [&](const std::uint8_t* data, std::size_t size) {
    out.append(reinterpret_cast<const char*>(data), size);
  });
}

bool WireReader::Skip(std::int64_t bytes) {
  return ForEachRun(bytes, [](const std::uint8_t*, std::size_t) {});
}

}  // namespace kernd::rpc
