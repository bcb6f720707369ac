// Tuning as the daemon offers it: one at a time, on a thread of its own, with choices that are in effect at once and
// kept in the file of --tuning-file.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/core/byte_budget.h"
#include "server/core/engine.h"
#include "server/core/shape_list.h"
#include "server/tune/feed.h"
#include "server/tune/measure.h"

namespace kernd::tune {

inline constexpr double kMaxBudgetSeconds = 24 * 3600;

class Tuner {
 public:
  struct Options {
    std::string file;  // empty: nobody may tune
    TuningVersion version;
    std::vector<core::DeclaredShape> declared;  // what is tuned where a request names nothing
  };

  // Since the start.
  struct Counts {
    std::array<std::int64_t, kVerdictNames.size()> candidates = {};
    std::array<std::int64_t, kOutcomeNames.size()> shapes = {};
    std::int64_t writes_failed = 0;  // of the file
    std::int64_t choices = 0;        // in effect now
    bool running = false;            // now
  };

  // What a tuning tells is told to `observer` as well, from its thread. The engine and `host` (memory for operands, in
  // bytes) must outlive the tuner.
  using Observer = std::function<void(const Progress&)>;
  Tuner(core::Engine& engine, core::ByteBudget& host, Options options, Observer observer);
  // As Stop, and waits.
  ~Tuner();

  // Begins. The tuning ends early when the reader leaves the feed, and after `budget_s` seconds (0: no limit) with what
  // it has; shapes that it did not come to are told as such.
  //   INVALID_ARGUMENT     a shape, or budget_s, breaks a rule; or there is nothing to tune
  //   FAILED_PRECONDITION  TUNING_OFF: the operator has not let clients tune
  //   RESOURCE_EXHAUSTED   TUNING_BUSY: another one is on; retry_after is set
  //   UNAVAILABLE          STARTING, DRAINING
  absl::StatusOr<std::shared_ptr<Feed>> Start(absl::Span<const std::string> shapes, double budget_s,
                                              std::function<void()> wake) ABSL_LOCKS_EXCLUDED(mutex_);

  // The daemon ends: so does the tuning that is on, soon, and no other begins.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

  Counts counts() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  absl::StatusOr<std::vector<core::DeclaredShape>> Select(absl::Span<const std::string> texts) const;
  void Run(const std::vector<core::DeclaredShape>& shapes, absl::Time end, const std::shared_ptr<Feed>& feed);
  // Brings a shape's result into effect and into the file. What it could not do, for people; empty: all is well.
  std::string Keep(const Measurement& measured) ABSL_LOCKS_EXCLUDED(mutex_);
  void Tell(const Progress& progress, Feed& feed) ABSL_LOCKS_EXCLUDED(mutex_);

  core::Engine& engine_;
  core::ByteBudget& host_;
  const Options options_;
  const Observer observer_;

  mutable absl::Mutex mutex_;
  std::shared_ptr<Feed> running_ ABSL_GUARDED_BY(mutex_);  // null: none is on
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  Counts counts_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_ ABSL_GUARDED_BY(mutex_);  // of the last one
};

}  // namespace kernd::tune
