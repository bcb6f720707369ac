// One load on a daemon, and what came of it.
//
// Closed loop: each of `concurrency` threads sends its next call when it has the reply to the last one. The daemon sets
// the pace: one that stands still is asked nothing meanwhile, and shows it once for each thread.
//
// Open loop: calls are due at times that nobody but the clock sets, as they are where users do not wait for each other.
// Latency counts from the time a call was due, not from when it could at last be sent: a daemon that stands still for
// 200 ms at 1,000 calls a second has made 200 of them late, and all of these are in the quantiles (the "coordinated
// omission" of tools that leave them out). There is no queue of the bench's own: a free thread takes the next due time,
// and sleeps until then or is late already.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "absl/time/time.h"
#include "client/cli/bench/arrivals.h"
#include "client/cli/bench/call.h"
#include "client/cli/bench/histogram.h"
#include "client/cli/report.h"
#include "kernd/client/client.h"

namespace kernd::cli {

struct Load {
  std::optional<double> rate;  // calls due each second; absent: closed loop
  ArrivalKind arrivals = ArrivalKind::kPoisson;
  int concurrency = 1;      // threads: most calls in flight
  absl::Duration warmup;    // calls due in it are made and not measured
  absl::Duration duration;  // calls due in it are measured
  std::uint64_t seed = 0;   // of due times, and of the draws from the mix
  int check_every = 0;      // bits of each n-th reply of a thread are compared with the first one; 0: of none
};

struct LoadResult {
  Load load;
  absl::Duration window;  // load.duration, or less where the run was stopped

  // Of measured calls. A call that was cut off counts in `latency` with the time until then: it took longer.
  Histogram latency;    // open: from due to the reply; closed: from sent to the reply
  Histogram roundtrip;  // from sent to the reply: in an open loop what would be reported without the correction
  Histogram lateness;   // open: from due to sent, for want of a free thread or of the machine's attention
  Histogram server;     // Timing.total_us

  // Means over the replies in `roundtrip`, in microseconds.
  std::array<double, kNumStages> stage_us{};  // as Stages has them
  double server_us = 0;

  // Closed: what each thread managed while it was measured, summed up. Open: replies within the window. Errors are not
  // in it.
  double calls_per_second = 0;
  double sent_per_second = 0, received_per_second = 0;  // bytes of operands and results

  // Of all calls, warm-up included. An error is "RESOURCE_EXHAUSTED (QUEUE_FULL)", or "WRONG RESULT"; no time of such a
  // call is in the histograms.
  std::map<std::string, std::int64_t> errors;
  std::int64_t num_errors = 0, num_wrong = 0;
  std::string first_error;   // its message
  std::int64_t checked = 0;  // replies whose bits were compared
  // Due, and without a reply when the run ended: never sent in an overload that lasted longer than twice the window, or
  // in flight when the run was stopped.
  std::int64_t cut_off = 0;
};

// Runs until the window is over and the calls due in it have come back; an overload is worked off for as long as the
// window once more. `calls` have had their First; each is drawn by its weight. No retries: a refusal is a result.
// `go_on` is called from this thread some times a second with the time so far; false stops the run, calls in flight
// included.
LoadResult RunLoad(const client::Client& client, std::span<const BenchCall> calls, const Load& load,
                   client::CallOptions options, const std::function<bool(absl::Duration)>& go_on);

}  // namespace kernd::cli
