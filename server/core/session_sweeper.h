// Looks at a session store now and then, so that what is over gives its memory back although nobody asks.
#pragma once

#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/core/session_store.h"

namespace kernd::core {

class SessionSweeper {
 public:
  // `store` must outlive the sweeper.
  SessionSweeper(SessionStore& store, absl::Duration every) : thread_([this, &store, every] { Loop(store, every); }) {}
  ~SessionSweeper() {
    {
      absl::MutexLock lock(&mutex_);
      stopping_ = true;
    }
    thread_.join();
  }

 private:
  void Loop(SessionStore& store, absl::Duration every) {
    absl::MutexLock lock(&mutex_);
    while (!mutex_.AwaitWithTimeout(absl::Condition(&stopping_), every)) store.Sweep();
  }

  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace kernd::core
