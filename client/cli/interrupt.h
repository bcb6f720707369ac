// Ctrl-C as a wish to see what there is so far.
#pragma once

#include <signal.h>

#include <condition_variable>
#include <mutex>
#include <stop_token>
#include <thread>

namespace kernd::cli {

// While it lives, the first Ctrl-C requests a stop, within a tenth of a second; the second one ends the program as
// ever. One at a time.
class StopOnInterrupt {
 public:
  StopOnInterrupt();
  ~StopOnInterrupt();
  StopOnInterrupt(const StopOnInterrupt&) = delete;
  StopOnInterrupt& operator=(const StopOnInterrupt&) = delete;

  std::stop_token token() const { return stop_.get_token(); }

 private:
  void Watch();

  struct sigaction before_ = {};
  std::stop_source stop_;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool end_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace kernd::cli
