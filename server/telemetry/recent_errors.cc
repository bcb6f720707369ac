#include "server/telemetry/recent_errors.h"

#include <algorithm>
#include <utility>

#include "server/telemetry/fault.h"

namespace kernd::telemetry {

void RecentErrors::Add(const core::CallRecord& record, absl::Time now) {
  CallError error = {.time = now,
                     .method = record.method.substr(0, kMaxTextBytes),
                     .request_id = record.request_id.substr(0, kMaxTextBytes),
                     .peer = record.peer.substr(0, kMaxTextBytes),
                     .status = record.status};
  const std::lock_guard lock(mutex_);
  error.number = ++added_;
  // What it takes the place of is freed after the lock.
  std::swap(IsFault(error.status.code()) ? faults_.Oldest() : refusals_.Oldest(), error);
}

std::vector<CallError> RecentErrors::Read() const {
  std::vector<CallError> all;
  {
    const std::lock_guard lock(mutex_);
    all.assign(refusals_.errors.begin(), refusals_.errors.end());
    all.insert(all.end(), faults_.errors.begin(), faults_.errors.end());
  }
  std::erase_if(all, [](const CallError& error) { return error.number == 0; });
  std::sort(all.begin(), all.end(), [](const CallError& a, const CallError& b) { return a.number > b.number; });
  return all;
}

}  // namespace kernd::telemetry
