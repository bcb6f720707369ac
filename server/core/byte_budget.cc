#include "server/core/byte_budget.h"

namespace kernd::core {

bool ByteBudget::Lease::Resize(std::int64_t bytes) {
  if (budget_ == nullptr) return bytes == 0;
  if (bytes > bytes_) {
    if (!budget_->Take(bytes - bytes_)) return false;
  } else {
    budget_->Give(bytes_ - bytes);
  }
  bytes_ = bytes;
  return true;
}

ByteBudget::Lease ByteBudget::Lease::Split(std::int64_t bytes) {
  bytes_ -= bytes;
  return Lease(budget_, bytes);
}

void ByteBudget::Lease::Reset() {
  if (budget_ != nullptr) budget_->Give(bytes_);
  budget_ = nullptr;
  bytes_ = 0;
}

bool ByteBudget::Reserve(std::int64_t bytes, Lease& lease) {
  if (!Take(bytes)) return false;
  lease = Lease(this, bytes);
  return true;
}

bool ByteBudget::Take(std::int64_t bytes) {
  std::int64_t used = used_.load(std::memory_order_relaxed);
  do {
    // As a difference: used + bytes could wrap.
    if (bytes > limit_ - used) return false;
  } while (!used_.compare_exchange_weak(used, used + bytes, std::memory_order_acquire));
  std::int64_t peak = peak_.load(std::memory_order_relaxed);
  while (peak < used + bytes && !peak_.compare_exchange_weak(peak, used + bytes, std::memory_order_relaxed)) {
  }
  return true;
}

}  // namespace kernd::core
