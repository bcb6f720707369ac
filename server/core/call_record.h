// What is known of a call when it has ended: the source of its log line and of every request metric.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/core/finding.h"
#include "server/core/stage.h"

namespace kernd::core {

struct CallRecord {
  std::string request_id;
  std::string peer;
  std::string method;  // "Compute/Attention": service and method without the package; "unknown" for an unknown path
  std::string shapes;  // "q=F16[1,8,128,64] k=... v=...", empty before decode
  std::string kernel;  // empty where none ran
  absl::Status status;
  StageTimes stages;
  absl::Duration total;
  std::int64_t request_bytes = 0;
  std::int64_t reply_bytes = 0;
  std::int64_t copied_bytes = 0;  // of tensors, from one host buffer to another
  std::int64_t peak_bytes = 0;    // device memory of this call
  std::vector<Finding> findings;  // with --debug-checks
};

// Told of each call once, when the reply has been sent or given up. Thread-safe; must not block for long.
class CallObserver {
 public:
  virtual ~CallObserver() = default;
  virtual void CallEnded(const CallRecord& record) = 0;
};

}  // namespace kernd::core
