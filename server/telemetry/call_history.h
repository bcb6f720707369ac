// What the status page says of calls: the last minute, and the last errors. What is counted since the start are the
// metrics.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/core/call_record.h"
#include "server/telemetry/call_count.h"
#include "server/telemetry/latency_window.h"
#include "server/telemetry/recent_errors.h"
#include "server/telemetry/sliding_counts.h"

namespace kernd::telemetry {

struct SlotCounts {
  std::uint64_t ok = 0, failed = 0;
};

struct RecentCalls {
  absl::Duration window;                                // how far back the counts and times reach
  std::vector<CallCount> calls;                         // those that are not 0, by method and code
  std::array<SlotCounts, SlidingCounts::kSlots> slots;  // oldest first; the last is under way
  LatencySummary total;                                 // headers to end
  std::array<LatencySummary, core::kNumStages> stages;  // of calls that entered them
  std::vector<CallError> errors;                        // newest first, however old
};

// Thread-safe; takes no lock but at the turn of a slot, and where a call has failed. 0.4 MiB.
class CallHistory : public core::CallObserver {
 public:
  // `methods`: the names that calls will bring; any other counts as "unknown".
  explicit CallHistory(std::vector<std::string> methods);

  void CallEnded(const core::CallRecord& record) override { Add(record, core::SteadyNow()); }
  // The same, at a time of the caller's choice.
  void Add(const core::CallRecord& record, core::SteadyTime now);

  RecentCalls Read(core::SteadyTime now = core::SteadyNow()) const;

 private:
  const core::SteadyTime started_ = core::SteadyNow();
  const std::vector<std::string> methods_;  // the last: "unknown"
  const std::unordered_map<std::string, std::size_t> method_indices_;
  SlidingCounts counts_;  // [method][code]
  LatencyWindow total_;
  std::array<LatencyWindow, core::kNumStages> stages_;
  RecentErrors errors_;
};

}  // namespace kernd::telemetry
