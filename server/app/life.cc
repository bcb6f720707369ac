#include "server/app/life.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "server/app/tuning.h"

namespace kernd {
namespace {

// The engine's reservations, those of sessions among them, and what the backend holds beside them.
std::vector<telemetry::PoolGauges> Pools(const core::Engine& engine, const core::SessionStore::Use& sessions) {
  const core::Engine::Load load = engine.load();
  std::vector<telemetry::PoolGauges> pools = {{.pool = "memory",
                                               .used_bytes = load.memory_used,
                                               .limit_bytes = load.memory_limit,
                                               .peak_bytes = load.memory_peak}};
  pools.push_back(
      {.pool = "resident", .used_bytes = sessions.used, .limit_bytes = sessions.limit, .peak_bytes = sessions.peak});
  if (sessions.shared_limit > 0) {
    pools.push_back({.pool = "shared",
                     .used_bytes = sessions.shared_used,
                     .limit_bytes = sessions.shared_limit,
                     .peak_bytes = sessions.shared_peak});
  }
  for (const core::PoolUse& use : engine.backend().Pools()) {
    pools.push_back({.pool = use.pool, .used_bytes = use.used, .limit_bytes = use.limit, .peak_bytes = use.peak});
  }
  return pools;
}

}  // namespace

telemetry::Gauges LifeReport::Gauges() const {
  const Life& life = parts_.life;
  const core::Engine::Load load = parts_.engine.load();
  const core::SessionStore::Use kept = parts_.sessions.use();
  const rpc::Server* const server = life.serving.load();
  return {.requests_in_flight = server == nullptr ? 0 : server->in_flight(),
          .queue_depth = load.queued,
          .body_budget_used_bytes = parts_.gate.bodies().used(),
          .body_budget_limit_bytes = parts_.gate.bodies().limit(),
          .pools = Pools(parts_.engine, kept),
          .sessions = kept.sessions,
          .session_tensors = kept.tensors,
          .tensors_filling = kept.filling,
          .sessions_expired = kept.expired,
          .uploads_abandoned = kept.abandoned,
          .log_lines_dropped = parts_.log.lines_dropped(),
          .ready = Ready().ok(),
          .time_to_ready = absl::Nanoseconds(life.ready_after_ns.load()),
          .prewarm_time = absl::Nanoseconds(life.prewarm_ns.load()),
          .prewarm_steps = life.to_prewarm,
          .prewarm_done = life.prewarmed,
          .prewarm_refused = life.prewarm_refused,
          .tuning_file = parts_.tuning_file,
          .tuning = TuningOf(parts_.tuner.counts())};
}

telemetry::DaemonState LifeReport::State() const {
  const Life& life = parts_.life;
  telemetry::DaemonState now = {.name = "ready", .why = "", .gauges = Gauges()};
  if (life.device_lost) {
    now.name = "lost";
    now.why = "the GPU is lost, and with it this process";
  } else if (life.draining) {
    now.name = "draining";
    now.why = "told to end; ends when its calls have";
  } else if (!parts_.engine.ready()) {
    now.name = "starting";
    now.why = life.to_prewarm == 0
                  ? "warming up"
                  : absl::StrCat("warming up, ", life.prewarmed.load(), " of ", life.to_prewarm.load());
  }
  return now;
}

absl::Status LifeReport::Ready() const {
  if (parts_.life.draining) return absl::UnavailableError("draining");
  return parts_.engine.ready() ? absl::OkStatus() : absl::UnavailableError("starting");
}

}  // namespace kernd
