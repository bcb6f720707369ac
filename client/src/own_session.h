// The session that a client keeps for tensors of its own.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/src/session_link.h"

namespace kernd::client {

// Thread-safe.
class OwnSession {
 public:
  explicit OwnSession(std::shared_ptr<Wire> wire) : wire_(std::move(wire)) {}
  // Closes it.
  ~OwnSession();
  OwnSession(const OwnSession&) = delete;
  OwnSession& operator=(const OwnSession&) = delete;

  // Opens it where there is none; of several callers at once, one does. A daemon that lets no tensors be resident, or
  // no more sessions, is asked again only after a while: until then it is what it said.
  absl::StatusOr<std::shared_ptr<const SessionLink>> Get(const CallTerms& terms);
  // The daemon does not know `link` any more: the next Get opens another one.
  void Drop(const std::shared_ptr<const SessionLink>& link);

  // Get failed so: calls must do without.
  static bool IsRefusal(const absl::Status& status);
  // A call in the session failed because the daemon has restarted, or the lease has ended.
  static bool IsGone(const absl::Status& status);

 private:
  const std::shared_ptr<Wire> wire_;
  std::mutex mutex_;
  std::condition_variable_any opened_;
  bool opening_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<const SessionLink> link_ ABSL_GUARDED_BY(mutex_);
  absl::Status refusal_ ABSL_GUARDED_BY(mutex_);
  absl::Time ask_again_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
};

}  // namespace kernd::client
