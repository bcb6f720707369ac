#include "server/tune/feed.h"

#include <utility>

namespace kernd::tune {

void Feed::Wake() {
  if (wake_) wake_();
}

void Feed::Push(Progress progress) {
  absl::MutexLock lock(&mutex_);
  if (!over_ && !waiting_.empty() && waiting_.back().kind == Progress::Kind::kRunning) {
    waiting_.back() = std::move(progress);
    return;
  }
  mutex_.Await(absl::Condition(this, &Feed::HasRoom));
  if (over_) return;
  waiting_.push_back(std::move(progress));
  if (waiting_.size() == 1) Wake();
}

void Feed::End(absl::StatusOr<Progress> last) {
  absl::MutexLock lock(&mutex_);
  if (end_) return;
  end_ = last.status();
  if (last.ok()) waiting_.push_back(*std::move(last));  // one more than kMost at most
  over_ = true;
  Wake();
}

bool Feed::Ready() const {
  absl::MutexLock lock(&mutex_);
  return !waiting_.empty() || end_;
}

absl::StatusOr<Progress> Feed::Take(bool& last) {
  absl::MutexLock lock(&mutex_);
  if (waiting_.empty()) return end_.value_or(absl::InternalError("nothing to take"));
  Progress progress = std::move(waiting_.front());
  waiting_.pop_front();
  last = waiting_.empty() && end_ && end_->ok();
  return progress;
}

void Feed::Leave() {
  {
    absl::MutexLock lock(&mutex_);
    wake_ = nullptr;
    over_ = true;
    waiting_.clear();
  }
  stop_.request_stop();
}

void Feed::Stop(absl::Status why) {
  {
    absl::MutexLock lock(&mutex_);
    over_ = true;
    if (!end_) {
      end_ = std::move(why);
      Wake();
    }
  }
  stop_.request_stop();
}

}  // namespace kernd::tune
