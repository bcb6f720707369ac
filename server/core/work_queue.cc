#include "server/core/work_queue.h"

namespace kernd::core {

bool WorkQueue::Push(CallPtr call, std::uint64_t sequence) {
  absl::MutexLock lock(&mutex_);
  if (closed_) return false;
  const Key key{call->priority, sequence};
  waiting_.emplace(key, std::move(call));
  return true;
}

CallPtr WorkQueue::Pop() {
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(this, &WorkQueue::Ready));
  if (waiting_.empty()) return nullptr;
  CallPtr call = std::move(waiting_.begin()->second);
  waiting_.erase(waiting_.begin());
  return call;
}

CallPtr WorkQueue::Remove(int priority, std::uint64_t sequence) {
  absl::MutexLock lock(&mutex_);
  const auto it = waiting_.find(Key{priority, sequence});
  if (it == waiting_.end()) return nullptr;
  CallPtr call = std::move(it->second);
  waiting_.erase(it);
  return call;
}

void WorkQueue::Close() {
  absl::MutexLock lock(&mutex_);
  closed_ = true;
}

std::size_t WorkQueue::size() const {
  absl::MutexLock lock(&mutex_);
  return waiting_.size();
}

}  // namespace kernd::core
