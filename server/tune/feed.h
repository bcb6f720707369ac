// What a tuning tells, on its way from the thread that measures to the one that sends. A reader that does not read
// holds a bounded number of messages, and the tuning with them, until it is cancelled.
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <stop_token>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/tune/progress.h"

namespace kernd::tune {

class Feed {
 public:
  static constexpr std::size_t kMost = 64;  // messages

  // `wake` is called, from any thread, when there is something to take after there was nothing. It must not block, or
  // call the feed.
  explicit Feed(std::function<void()> wake) : wake_(std::move(wake)) {}

  // Of the writer. Waits while the feed is full, unless it was stopped; a kRunning takes the place of one before it.
  void Push(Progress progress) ABSL_LOCKS_EXCLUDED(mutex_);
  // The last one. OK: there was one more; else what the reader gets when it has taken all there is.
  void End(absl::StatusOr<Progress> last) ABSL_LOCKS_EXCLUDED(mutex_);
  // Requested once nobody waits any more.
  std::stop_token stopped() const { return stop_.get_token(); }

  // Of the reader. Whether Take has something.
  bool Ready() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Only when ready. `last`: there will be no more.
  absl::StatusOr<Progress> Take(bool& last) ABSL_LOCKS_EXCLUDED(mutex_);
  // The reader goes: when this has returned, `wake` is not called any more.
  void Leave() ABSL_LOCKS_EXCLUDED(mutex_);

  // Of anybody. The writer is to end soon; the reader gets `why` in place of how it ends then.
  void Stop(absl::Status why) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  bool HasRoom() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return over_ || waiting_.size() < kMost; }
  void Wake() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  std::function<void()> wake_ ABSL_GUARDED_BY(mutex_);  // null: the reader has left
  std::deque<Progress> waiting_ ABSL_GUARDED_BY(mutex_);
  bool over_ ABSL_GUARDED_BY(mutex_) = false;                // stopped: nothing is taken in any more
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);  // set: nothing comes after `waiting_`
  std::stop_source stop_;
};

}  // namespace kernd::tune
