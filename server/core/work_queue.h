// Admitted calls that wait for a worker: highest priority first, then oldest first. Bounded by admission, not here.
#pragma once

#include <map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "server/core/call.h"

namespace kernd::core {

class WorkQueue {
 public:
  // False after Close: the call was not taken.
  bool Push(CallPtr call, std::uint64_t sequence) ABSL_LOCKS_EXCLUDED(mutex_);

  // Waits for a call. Null once closed and empty.
  CallPtr Pop() ABSL_LOCKS_EXCLUDED(mutex_);

  // Takes a waiting call out. Null where it is not waiting (any more).
  CallPtr Remove(int priority, std::uint64_t sequence) ABSL_LOCKS_EXCLUDED(mutex_);

  // No call is taken from now on; waiting ones are still handed out.
  void Close() ABSL_LOCKS_EXCLUDED(mutex_);

  std::size_t size() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Key {
    int priority;
    std::uint64_t sequence;
    bool operator<(const Key& other) const {
      return priority != other.priority ? priority > other.priority : sequence < other.sequence;
    }
  };

  bool Ready() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return closed_ || !waiting_.empty(); }

  mutable absl::Mutex mutex_;
  std::map<Key, CallPtr> waiting_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace kernd::core
