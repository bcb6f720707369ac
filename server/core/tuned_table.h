// The choices that were measured, as plans read them: on any thread, while others replace them.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "kernd/kernels/tuning.h"

namespace kernd::core {

class TunedTable {
 public:
  // As they are now; null: there are none. They stay as they are while they are held.
  std::shared_ptr<const TunedChoices> Read() const ABSL_LOCKS_EXCLUDED(mutex_) {
    if (!any_.load(std::memory_order_acquire)) return nullptr;  // most daemons have none, and plan often
    absl::MutexLock lock(&mutex_);
    return choices_;
  }

  // For plans that are made from now on.
  void Replace(TunedChoices choices) ABSL_LOCKS_EXCLUDED(mutex_) {
    auto next = choices.empty() ? nullptr : std::make_shared<const TunedChoices>(std::move(choices));
    absl::MutexLock lock(&mutex_);
    any_.store(next != nullptr, std::memory_order_release);
    choices_.swap(next);
  }

 private:
  mutable absl::Mutex mutex_;
  std::shared_ptr<const TunedChoices> choices_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> any_ = false;
};

}  // namespace kernd::core
