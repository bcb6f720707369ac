#include "client/cli/bench/shared_room.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernd/kernels/error.h"

namespace kernd::cli {
namespace {

constexpr std::int64_t kAlignment = 64;  // of a cache line, for any element type
constexpr std::size_t kMarked = 64;      // bytes at both ends of a slot
constexpr int kMark = 0xa5;

// Adds `bytes` and what aligns them. False where the sum does not fit.
bool Add(std::int64_t bytes, std::int64_t* sum) {
  const bool wraps = __builtin_add_overflow(*sum, bytes, sum) || __builtin_add_overflow(*sum, kAlignment - 1, sum);
  *sum -= *sum % kAlignment;
  return !wraps;
}

void Mark(std::span<std::byte> bytes) {
  const std::size_t size = std::min(kMarked, bytes.size());
  if (size == 0) return;
  std::memset(bytes.data(), kMark, size);
  std::memset(bytes.data() + bytes.size() - size, kMark, size);
}

}  // namespace

void SharedRoom::Slot::GiveBack() {
  if (room_ == nullptr) return;
  Mark(bytes_);
  const std::lock_guard lock(room_->mutex_);
  room_->free_.push_back(bytes_);
}

absl::StatusOr<std::unique_ptr<SharedRoom>> SharedRoom::Make(const client::Session& session,
                                                             const std::vector<std::span<const std::byte>>& operands,
                                                             std::int64_t result_bytes, int slots,
                                                             const client::CallOptions& options) {
  std::int64_t total = 0;
  bool fits = true;
  for (const std::span<const std::byte> operand : operands) fits = fits && Add(std::ssize(operand), &total);
  for (int i = 0; i < slots; ++i) fits = fits && Add(result_bytes, &total);
  if (!fits) {
    return absl::ResourceExhaustedError(
        absl::StrCat("shared memory for ", slots, " results of ", result_bytes, " bytes: 2^63 bytes and more"));
  }
  KERND_ASSIGN_OR_RETURN(client::SharedBuffer buffer, session.Share(std::max<std::int64_t>(total, 1), options));
  std::unique_ptr<SharedRoom> room(new SharedRoom(std::move(buffer)));
  std::int64_t at = 0;
  const auto next = [&](std::int64_t bytes) {
    const std::span<std::byte> part =
        room->buffer_.bytes().subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(bytes));
    Add(bytes, &at);
    return part;
  };
  for (const std::span<const std::byte> operand : operands) {
    const std::span<std::byte> part = next(std::ssize(operand));
    std::copy(operand.begin(), operand.end(), part.begin());
    room->operands_.push_back(part);
  }
  for (int i = 0; i < slots; ++i) {
    room->free_.push_back(next(result_bytes));
    Mark(room->free_.back());
  }
  return room;
}

SharedRoom::Slot SharedRoom::Take() {
  const std::lock_guard lock(mutex_);
  if (free_.empty()) return {};
  const std::span<std::byte> bytes = free_.back();
  free_.pop_back();
  return {this, bytes};
}

}  // namespace kernd::cli
