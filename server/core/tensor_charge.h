// What a tensor of a session costs: its memory on the device, and what the daemon keeps of it beside, on its heap. Both
// are charged to the session, to all sessions together, and to the memory that calls use as well, so that a client can
// make the daemon hold no more than its quota, however small its tensors are.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "server/core/byte_budget.h"

namespace kernd::core {

// Gives back when it goes. Move-only.
class TensorCharge {
 public:
  // Tensors are counted in units of this many bytes, as devices give memory.
  static constexpr std::int64_t kUnit = 512;
  // Beside its memory: its record, its place in tables, what is known of its pieces while it is filled, or of why that
  // failed. Measured: SessionCostTest.ATensorCostsNoMoreThanItIsChargedFor.
  static constexpr std::int64_t kRecordBytes = 2048;

  // What there is for the tensors of one session, or of all.
  struct Budget {
    Budget(std::int64_t bytes, std::int64_t tensors) : bytes(bytes), tensors(tensors) {}
    ByteBudget bytes, tensors;
  };
  // Charges may outlive the session, and the store.
  struct Budgets {
    std::shared_ptr<Budget> session, all;
    ByteBudget* device = nullptr;  // shared with the calls; outlives every charge
  };

  // Of a tensor of `bytes`: its record, and its memory.
  //   RESOURCE_EXHAUSTED (TOO_LARGE)    can never fit
  //   RESOURCE_EXHAUSTED (QUOTA_FULL)   not beside what the session holds now; field "id": it is one tensor too many
  //   RESOURCE_EXHAUSTED (MEMORY_FULL)  not now; retry_after is set
  static absl::StatusOr<TensorCharge> Take(const Budgets& budgets, std::int64_t bytes);
  // Whether Take would succeed, had `back` bytes of one tensor been given back before.
  static bool WouldFit(const Budgets& budgets, std::int64_t bytes, std::int64_t back);

  // What the memory of a tensor of `bytes` is charged for.
  static std::int64_t MemoryBytes(std::int64_t bytes);

  TensorCharge() = default;
  TensorCharge(TensorCharge&&) = default;
  TensorCharge& operator=(TensorCharge&& other) noexcept {  // an exchange: a lease must go before its budget
    session_.swap(other.session_);
    all_.swap(other.all_);
    of_session_ = std::move(other.of_session_);
    of_all_ = std::move(other.of_all_);
    of_device_ = std::move(other.of_device_);
    place_in_session_ = std::move(other.place_in_session_);
    place_in_all_ = std::move(other.place_in_all_);
    return *this;
  }

  // The memory's part, which may go before or after the record's, which stays here.
  TensorCharge SplitMemory();
  std::int64_t bytes() const { return of_session_.bytes(); }

 private:
  std::shared_ptr<Budget> session_, all_;  // live longer than what is taken from them
  ByteBudget::Lease of_session_, of_all_, of_device_, place_in_session_, place_in_all_;
};

}  // namespace kernd::core
