// The last calls that went wrong.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/core/call_record.h"

namespace kernd::telemetry {

// Of one call. The texts are as the client chose them: clipped, not escaped.
struct CallError {
  std::uint64_t number = 0;  // 1 for the first since the start, in the order in which they came here
  absl::Time time;
  std::string method;
  std::string request_id;
  std::string peer;
  absl::Status status;
};

// Keeps the newest refusals and, apart from them, the newest faults of the daemon itself (fault.h): no flood of the
// one pushes out the other. Thread-safe; adding allocates, formats and frees nothing under the lock.
class RecentErrors {
 public:
  static constexpr std::size_t kRefusals = 24;
  static constexpr std::size_t kFaults = 8;
  static constexpr std::size_t kMaxTextBytes = 256;  // of method, request id and peer

  // `record.status` is not OK.
  void Add(const core::CallRecord& record, absl::Time now);

  // Newest first.
  std::vector<CallError> Read() const;

 private:
  template <std::size_t kSize>
  struct Ring {
    std::array<CallError, kSize> errors;
    std::size_t next = 0;

    CallError& Oldest() { return errors[std::exchange(next, (next + 1) % kSize)]; }
  };

  mutable std::mutex mutex_;
  std::uint64_t added_ = 0;   // guarded by mutex_
  Ring<kRefusals> refusals_;  // guarded by mutex_
  Ring<kFaults> faults_;      // guarded by mutex_
};

}  // namespace kernd::telemetry
