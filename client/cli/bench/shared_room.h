// Memory that the daemon sees as well, for a call that is made again and again: its operands, once, and room for the
// results of as many calls as are in flight.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "kernd/client/session.h"

namespace kernd::cli {

class SharedRoom {
 public:
  // Room for one result. Gives it back where it goes out of scope; empty: no room.
  class Slot {
   public:
    Slot() = default;
    Slot(SharedRoom* room, std::span<std::byte> bytes) : room_(room), bytes_(bytes) {}
    ~Slot() { GiveBack(); }
    Slot(Slot&& other) noexcept : room_(std::exchange(other.room_, nullptr)), bytes_(std::exchange(other.bytes_, {})) {}
    Slot& operator=(Slot&& other) noexcept {
      std::swap(room_, other.room_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }

    std::span<std::byte> bytes() const { return bytes_; }

   private:
    void GiveBack();

    SharedRoom* room_ = nullptr;
    std::span<std::byte> bytes_;
  };

  // Of `session`, with copies of `operands` in it and `slots` of `result_bytes` each. Errors: those of Session::Share;
  // RESOURCE_EXHAUSTED also where that is more memory than there can be.
  static absl::StatusOr<std::unique_ptr<SharedRoom>> Make(const client::Session& session,
                                                          const std::vector<std::span<const std::byte>>& operands,
                                                          std::int64_t result_bytes, int slots,
                                                          const client::CallOptions& options);
  SharedRoom(const SharedRoom&) = delete;
  SharedRoom& operator=(const SharedRoom&) = delete;

  // The copies, in the order of the operands.
  const std::vector<std::span<const std::byte>>& operands() const { return operands_; }

  // One that nobody else has; empty where all are taken. Its first and last bytes are such that a result that was never
  // written is not taken for one that was. Thread-safe.
  Slot Take();

 private:
  explicit SharedRoom(client::SharedBuffer buffer) : buffer_(std::move(buffer)) {}

  client::SharedBuffer buffer_;
  std::vector<std::span<const std::byte>> operands_;
  std::mutex mutex_;
  std::vector<std::span<std::byte>> free_;  // guarded by mutex_
};

}  // namespace kernd::cli
