#include "client/cli/interrupt.h"

#include <atomic>
#include <chrono>

namespace kernd::cli {
namespace {

constexpr auto kTick = std::chrono::milliseconds(50);

std::atomic<bool> seen = false;  // set by a handler, on any thread
static_assert(std::atomic<bool>::is_always_lock_free);

}  // namespace

StopOnInterrupt::StopOnInterrupt() {
  seen = false;
  struct sigaction action = {};
  action.sa_handler = [](int) { seen = true; };
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
  sigaction(SIGINT, &action, &before_);
  thread_ = std::thread([this] { Watch(); });
}

StopOnInterrupt::~StopOnInterrupt() {
  {
    const std::lock_guard lock(mutex_);
    end_ = true;
  }
  ended_.notify_one();
  thread_.join();
  sigaction(SIGINT, &before_, nullptr);
}

// A handler may set a flag and little else: it is looked at here, and here a call is cancelled.
void StopOnInterrupt::Watch() {
  std::unique_lock lock(mutex_);
  while (!end_ && !seen) ended_.wait_for(lock, kTick);
  if (seen) stop_.request_stop();
}

}  // namespace kernd::cli
