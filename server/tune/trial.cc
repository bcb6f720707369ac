#include "server/tune/trial.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "kernd/kernels/error.h"

namespace kernd::tune {
namespace {

constexpr int kPriority = -1000;  // clients have -100 to 100
constexpr absl::Duration kPatience = absl::Seconds(10);

}  // namespace

bool Until::Over() const {
  return stop.stop_requested() || absl::Now() >= end;
}

bool Pause(absl::Duration wait, const Until& until) {
  absl::Notification stopped;
  const std::stop_callback on_stop(until.stop, [&] { stopped.Notify(); });
  stopped.WaitForNotificationWithDeadline(std::min(absl::Now() + wait, until.end));
  return !until.Over();
}

absl::StatusOr<core::CallPtr> RunOnce(core::Engine& engine, const core::Step& step, const Until& until) {
  absl::Duration waited = absl::ZeroDuration();
  while (!until.Over()) {
    core::Program program;
    program.steps.push_back(step);
    const auto done = std::make_shared<absl::Notification>();
    const auto call = std::make_shared<core::Call>(std::move(program), absl::InfiniteFuture(), kPriority,
                                                   [done](core::Call&) { done->Notify(); });
    {
      // Before the call begins, so that it is abandoned whenever the stop comes.
      const std::stop_callback on_stop(until.stop, [&] { engine.Abandon(call); });
      engine.Submit(call);
      if (!done->WaitForNotificationWithDeadline(until.end)) engine.Abandon(call);
      done->WaitForNotification();
    }
    if (call->status.ok()) return call;
    const std::optional<absl::Duration> retry = DetailOf(call->status).retry_after;
    if (!absl::IsResourceExhausted(call->status) || !retry || waited >= kPatience) {
      if (until.Over()) break;  // which is why
      return call->status;
    }
    waited += *retry;
    Pause(*retry, until);
  }
  return absl::CancelledError("the tuning has ended");
}

}  // namespace kernd::tune
