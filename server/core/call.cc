#include "server/core/call.h"

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernd/kernels/error.h"

namespace kernd::core {

void Call::Finish(absl::Status final_status) {
  if (finished_.exchange(true)) return;
  status = std::move(final_status);
  on_planned = nullptr;
  if (!status.ok()) {
    results.clear();
    kept.clear();
  }
  for (Step& step : program.steps) {
    std::visit(
        [](auto& s) {
          for (Operand* operand : s.operands()) operand->Release();
        },
        step);
  }
  // Moved out first: what it holds must not live as long as the results.
  const Done done = std::move(done_);
  done(*this);
}

absl::Status Call::CheckWanted() const {
  // The deadline first: a client that leaves because its deadline passed is told so.
  if (absl::Now() >= deadline) {
    return WithDetail(absl::DeadlineExceededError("the deadline passed before the call could run"),
                      {.reason = std::string(reason::kDeadline)});
  }
  if (abandoned_.load(std::memory_order_relaxed)) {
    return WithDetail(absl::CancelledError("cancelled by the client before the call could run"),
                      {.reason = std::string(reason::kCancelled)});
  }
  return absl::OkStatus();
}

}  // namespace kernd::core
