#include "server/rpc/watchdog.h"

namespace kernd::rpc {
namespace {

constexpr absl::Duration kLook = absl::Milliseconds(500);

}  // namespace

Watchdog::Watchdog() : thread_([this] { Loop(); }) {}

Watchdog::~Watchdog() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

void Watchdog::Expect(grpc::ServerContext* context, absl::Duration within) {
  const core::SteadyTime due = core::SteadyNow() + absl::ToChronoNanoseconds(within);
  absl::MutexLock lock(&mutex_);
  due_[context] = due;
}

void Watchdog::Forget(grpc::ServerContext* context) {
  absl::MutexLock lock(&mutex_);
  due_.erase(context);
}

void Watchdog::Loop() {
  absl::MutexLock lock(&mutex_);
  while (!mutex_.AwaitWithTimeout(absl::Condition(&stopping_), kLook)) {
    const core::SteadyTime now = core::SteadyNow();
    for (auto it = due_.begin(); it != due_.end();) {
      if (it->second > now) {
        ++it;
        continue;
      }
      it->first->TryCancel();  // under the lock, so that the context is still there
      it = due_.erase(it);
    }
  }
}

}  // namespace kernd::rpc
