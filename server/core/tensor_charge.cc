#include "server/core/tensor_charge.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "kernd/kernels/error.h"
#include "kernd/kernels/tensor.h"
#include "server/core/session_errors.h"

namespace kernd::core {
namespace {

// When memory that others hold is worth asking for again: what calls hold, and what sessions do.
constexpr absl::Duration kRetryCalls = absl::Milliseconds(50);
constexpr absl::Duration kRetrySessions = absl::Seconds(1);

// Of the record and of the memory, in whole units. What 63 bits cannot count is more than any limit.
std::int64_t Needed(std::int64_t bytes) {
  const std::optional<std::int64_t> up = CheckedAdd(bytes, TensorCharge::kUnit - 1 + TensorCharge::kRecordBytes);
  return up ? *up / TensorCharge::kUnit * TensorCharge::kUnit : std::numeric_limits<std::int64_t>::max();
}

}  // namespace

absl::StatusOr<TensorCharge> TensorCharge::Take(const Budgets& budgets, std::int64_t bytes) {
  const std::int64_t needed = Needed(bytes);
  Budget &session = *budgets.session, &all = *budgets.all;
  ByteBudget& device = *budgets.device;
  if (needed > session.bytes.limit()) return CanNeverFit(needed, session.bytes.limit(), "the session's quota");
  const std::int64_t limit = std::min(all.bytes.limit(), device.limit());
  if (needed > limit) return CanNeverFit(needed, limit, "there for tensors of sessions");
  TensorCharge charge;
  charge.session_ = budgets.session;
  charge.all_ = budgets.all;
  if (!session.tensors.Reserve(1, charge.place_in_session_)) return SessionHasTooMany(session.tensors.limit());
  if (!all.tensors.Reserve(1, charge.place_in_all_)) return TooManyInAll(all.tensors.limit(), kRetrySessions);
  if (!session.bytes.Reserve(needed, charge.of_session_)) {
    return DoesNotFitNow(reason::kQuotaFull, needed, session.bytes.used(), session.bytes.limit(), "the session's quota",
                         std::nullopt);
  }
  if (!all.bytes.Reserve(needed, charge.of_all_)) {
    return DoesNotFitNow(reason::kMemoryFull, needed, all.bytes.used(), all.bytes.limit(), "all sessions",
                         kRetrySessions);
  }
  if (!device.Reserve(needed, charge.of_device_)) {
    return DoesNotFitNow(reason::kMemoryFull, needed, device.used(), device.limit(), "the device", kRetryCalls);
  }
  return charge;
}

bool TensorCharge::WouldFit(const Budgets& budgets, std::int64_t bytes, std::int64_t back) {
  const auto fits = [needed = Needed(bytes) - back](const ByteBudget& budget) {
    return needed <= budget.limit() - budget.used();
  };
  return fits(budgets.session->bytes) && fits(budgets.all->bytes) && fits(*budgets.device);
}

std::int64_t TensorCharge::MemoryBytes(std::int64_t bytes) {
  return Needed(bytes) - kRecordBytes;
}

TensorCharge TensorCharge::SplitMemory() {
  TensorCharge memory;
  memory.session_ = session_;
  memory.all_ = all_;
  const std::int64_t bytes = of_session_.bytes() - kRecordBytes;
  memory.of_session_ = of_session_.Split(bytes);
  memory.of_all_ = of_all_.Split(bytes);
  memory.of_device_ = of_device_.Split(bytes);
  return memory;
}

}  // namespace kernd::core
