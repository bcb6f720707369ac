// Signs of life at the bottom of a terminal, for work that takes longer than a second.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <ostream>
#include <string>
#include <thread>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace kernd::cli {

// A bar. Draws on `err` where `on`, else does nothing. What else is written to the terminal goes between Hide and the
// next Step. Gone when it goes out of scope.
class Progress {
 public:
  Progress(std::ostream& err, bool on, std::int64_t total, absl::Time start = absl::Now());
  ~Progress() { Hide(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // `done` of the total are done at `now`, and `part` (0 to 1) of `what`, which is next.
  void Step(std::int64_t done, const std::string& what, absl::Time now = absl::Now(), double part = 0);
  void Hide();

 private:
  std::ostream& err_;
  const bool on_;
  const std::int64_t total_;
  const absl::Time start_;
  bool shown_ = false;
};

// For work that cannot say how far it is, such as one long call: what is being done, and for how long already. Draws
// from a thread of its own; nothing else may be written to `err` while it lives. Gone when it goes out of scope.
class Busy {
 public:
  // `most`: when the work will be given up; infinite: not at all. Draws once `patience` is over.
  Busy(std::ostream& err, bool on, const std::string& what, absl::Duration most = absl::InfiniteDuration(),
       absl::Duration patience = absl::Seconds(1));
  ~Busy();
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;

 private:
  void Draw();

  std::ostream& err_;
  const std::string what_;
  const absl::Duration most_, patience_;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool end_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace kernd::cli
