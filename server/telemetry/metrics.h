// Every metric of the daemon. Those of calls are counted when a call ends; those of the daemon's state are asked for
// when somebody scrapes. README.md lists them.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "prometheus/counter.h"
#include "prometheus/histogram.h"
#include "prometheus/registry.h"
#include "server/core/call_record.h"
#include "server/core/stage.h"
#include "server/telemetry/call_count.h"

namespace kernd::telemetry {

// What became of the file of tuned choices.
inline constexpr std::array<std::string_view, 6> kTuningFileStates = {"none",  "missing", "loaded",
                                                                      "stale", "unsafe",  "damaged"};

struct PoolGauges {
  std::string pool;
  std::int64_t used_bytes = 0;
  std::int64_t limit_bytes = 0;
  std::int64_t peak_bytes = 0;  // most that was used at once
};

// What Autotune has done since the start.
struct TuningGauges {
  bool running = false;      // now
  std::int64_t choices = 0;  // in effect now
  std::int64_t writes_failed = 0;
  std::vector<std::pair<std::string, std::int64_t>> candidates, shapes;  // by what became of them
};

// The state of the daemon at one moment.
struct Gauges {
  std::int64_t requests_in_flight = 0;
  std::int64_t queue_depth = 0;
  std::int64_t body_budget_used_bytes = 0;
  std::int64_t body_budget_limit_bytes = 0;
  std::vector<PoolGauges> pools;
  std::int64_t sessions = 0, session_tensors = 0, tensors_filling = 0;  // now
  std::int64_t sessions_expired = 0, uploads_abandoned = 0;             // since the start
  std::int64_t log_lines_dropped = 0;                                   // since the start
  bool ready = false;
  absl::Duration time_to_ready;  // from the start of the process to the first readiness; 0 until then
  // Kernels and declared shapes that run once before that.
  absl::Duration prewarm_time;       // 0 until it has ended
  std::int64_t prewarm_steps = 0;    // in all
  std::int64_t prewarm_done = 0;     // of them
  std::int64_t prewarm_refused = 0;  // declared shapes that cannot be run here
  std::string tuning_file = "none";  // one of kTuningFileStates
  TuningGauges tuning;
};

// Called from the thread that scrapes; must not block for long.
using GaugeSource = std::function<Gauges()>;

struct BuildLabels {
  std::string version;
  std::string revision;
  std::string backend;
  std::string compiler;
  std::string cuda_toolkit;
};

// Every combination of the labels known beforehand exists from the start with value 0, so that a rate over the first
// event is right. Thread-safe.
class Metrics : public core::CallObserver {
 public:
  // `methods` and `kernels`: the names that calls will bring; any other counts as "unknown".
  Metrics(const std::vector<std::string>& methods, const std::vector<std::string>& kernels, const BuildLabels& build,
          GaugeSource gauges);

  // A quarter of a microsecond, half where threads meet: one look-up by method and one by kernel, then pointers.
  void CallEnded(const core::CallRecord& record) override;

  // The page for Prometheus, text format 0.0.4.
  std::string Text() const;

  // Calls since the start, those that are not 0.
  std::vector<CallCount> CallCounts() const;
  // The same by kernel, with those that are 0.
  std::map<std::string, std::uint64_t> KernelCalls() const;

 private:
  struct MethodMetrics {
    std::array<prometheus::Counter*, kNumCodes> by_code;
    prometheus::Histogram* seconds;
    prometheus::Counter* request_bytes;
    prometheus::Counter* reply_bytes;
    prometheus::Counter* copied_bytes;
  };

  void CountRejection(const absl::Status& status);
  void CountFindings(const std::vector<core::Finding>& findings);

  prometheus::Registry registry_;
  std::unordered_map<std::string, MethodMetrics> methods_;
  std::unordered_map<std::string, prometheus::Counter*> kernel_calls_;
  std::unordered_map<std::string, prometheus::Counter*> rejected_;
  std::array<prometheus::Histogram*, core::kNumStages> stage_seconds_;
  prometheus::Histogram* peak_memory_;
  prometheus::Counter *with_nan_, *with_inf_, *overruns_;
  const GaugeSource gauges_;
};

}  // namespace kernd::telemetry
