#include "client/src/crew.h"

#include <atomic>
#include <memory>
#include <utility>

namespace kernd::client {

Crew::~Crew() {
  std::vector<std::thread> helpers;
  {
    const std::lock_guard lock(mutex_);
    end_ = true;
    helpers.swap(helpers_);
  }
  changed_.notify_all();
  for (std::thread& helper : helpers) helper.join();
}

void Crew::Add(std::function<void()> work, int times) {
  {
    const std::lock_guard lock(mutex_);
    for (int i = 0; i < times; ++i) work_.push_back(work);
    while (helpers_.size() < max_helpers_ && idle_ < work_.size()) {
      helpers_.emplace_back([this] { Help(); });
      ++idle_;
    }
  }
  changed_.notify_all();
}

void Crew::Help() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return end_ || !work_.empty(); });
    if (work_.empty()) return;
    const std::function<void()> work = std::move(work_.front());
    work_.pop_front();
    --idle_;
    lock.unlock();
    work();
    lock.lock();
    ++idle_;
  }
}

void Crew::Run(int parts, const std::function<void(int)>& part) {
  // A helper may come to it when the caller has returned: then there is no part left, and `part` is not touched.
  struct Job {
    std::atomic<int> next = 0;
    std::mutex mutex;
    std::condition_variable done;
    int num_done = 0;
  };
  const auto job = std::make_shared<Job>();
  const auto take = [job, parts, &part] {
    for (int i; (i = job->next.fetch_add(1)) < parts;) {
      part(i);
      const std::lock_guard lock(job->mutex);
      if (++job->num_done == parts) job->done.notify_one();
    }
  };
  if (parts > 1) Add(take, parts - 1);
  take();
  std::unique_lock lock(job->mutex);
  job->done.wait(lock, [&] { return job->num_done == parts; });
}

void Crew::Later(std::function<void()> work) {
  if (max_helpers_ == 0) return work();
  {
    const std::lock_guard lock(mutex_);
    ++later_;
  }
  Add(
      [this, work = std::move(work)] {
        work();
        const std::lock_guard lock(mutex_);
        if (--later_ == 0) changed_.notify_all();
      },
      1);
}

bool Crew::HasLater() {
  const std::lock_guard lock(mutex_);
  return later_ > 0;
}

void Crew::AwaitLater() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return later_ == 0; });
}

}  // namespace kernd::client
