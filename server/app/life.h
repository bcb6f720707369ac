// How far the daemon has come, and what its pages, probes and metrics say of it. Written by the thread that starts and
// ends it, read by any.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "server/core/engine.h"
#include "server/core/session_store.h"
#include "server/rpc/gate.h"
#include "server/rpc/server.h"
#include "server/telemetry/log.h"
#include "server/telemetry/metrics.h"
#include "server/telemetry/status_json.h"
#include "server/tune/tuner.h"

namespace kernd {

struct Life {
  std::atomic<bool> draining = false, device_lost = false;
  std::atomic<const rpc::Server*> serving = nullptr;  // from when it listens until it has drained
  std::atomic<std::int64_t> ready_after_ns = 0;       // 0: not yet
  std::atomic<std::int64_t> prewarmed = 0, to_prewarm = 0, prewarm_refused = 0, prewarm_ns = 0;
};

// The parts that are asked, all of which outlive it.
class LifeReport {
 public:
  struct Parts {
    const Life& life;
    const core::Engine& engine;
    const core::SessionStore& sessions;
    const rpc::Gate& gate;
    const telemetry::Log& log;
    const tune::Tuner& tuner;
    std::string tuning_file;  // as SelectedBackend has it
  };
  explicit LifeReport(Parts parts) : parts_(std::move(parts)) {}

  // All thread-safe.
  telemetry::Gauges Gauges() const;
  telemetry::DaemonState State() const;
  // UNAVAILABLE and why, in a word, where calls had better go elsewhere.
  absl::Status Ready() const;

 private:
  const Parts parts_;
};

}  // namespace kernd
