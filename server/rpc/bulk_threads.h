// Threads for what would keep an I/O thread from its connections: to copy what streams bring, to wait for a device, to
// page-lock memory, to give much of it back. A queue of completions that is never empty, because each copy has brought
// the next message, lets gRPC look at no other connection.
#pragma once

#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace kernd::rpc {

// Thread-safe. Jobs begin in order; a call has at most one at a time, so that its messages keep theirs, and what waits
// is bounded by the calls.
class BulkThreads {
 public:
  // `threads` >= 1.
  explicit BulkThreads(int threads);
  ~BulkThreads() { Stop(); }

  void Run(std::function<void()> job);
  // Ends the threads when all jobs are done. None may come any more.
  void Stop();

 private:
  void Work();
  bool Ready() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return stopping_ || !jobs_.empty(); }

  absl::Mutex mutex_;
  std::deque<std::function<void()>> jobs_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace kernd::rpc
