// Threads that help callers with work that falls into parts.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"

namespace kernd::client {

// Thread-safe. Callers do their own work, helpers join in where they are free: with all of them busy, or none, it takes
// longer and nothing waits for anybody.
class Crew {
 public:
  // At most so many threads; each is started when there is work that nobody is free for.
  explicit Crew(int helpers) : max_helpers_(static_cast<std::size_t>(helpers)) {}
  // Does what Later was given, and ends the threads.
  ~Crew();
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  // Runs `part` for 0 to `parts` - 1, several at a time, this thread among others; returns when all have returned.
  void Run(int parts, const std::function<void(int)>& part);

  // Runs `work` on a helper, or here where there is to be none. It must not own what owns this object.
  void Later(std::function<void()> work);
  // Whether something that Later was given is not done yet.
  bool HasLater();
  void AwaitLater();

 private:
  void Add(std::function<void()> work, int times);
  void Help();

  const std::size_t max_helpers_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> helpers_ ABSL_GUARDED_BY(mutex_);
  std::size_t idle_ ABSL_GUARDED_BY(mutex_) = 0;
  int later_ ABSL_GUARDED_BY(mutex_) = 0;
  bool end_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace kernd::client
