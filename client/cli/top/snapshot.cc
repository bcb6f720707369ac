#include "client/cli/top/snapshot.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace kernd::cli::top {
namespace {

using nlohmann::json;

PoolRow Pool(const json& pool) {
  return {pool.at("name"), pool.at("used_bytes"), pool.at("peak_bytes"), pool.at("limit_bytes")};
}

void ReadCalls(const json& calls, Snapshot& s) {
  s.calls = calls.at("total");
  s.failed = calls.at("failed_total");
  s.calls_recent = calls.at("recent");
  s.failed_recent = calls.at("failed_recent");
  for (const json& row : calls.at("by_method")) {
    s.methods.push_back({row.at("method"), row.at("code"), row.at("total"), row.at("recent")});
  }
}

void ReadProcess(const json& process, Snapshot& s) {
  s.start_time = process.at("start_time_seconds");
  s.uptime = process.at("uptime_seconds");
  s.cpu_seconds = process.at("cpu_seconds");
  s.resident_bytes = process.at("resident_bytes");
  s.threads = process.at("threads");
  s.open_fds = process.at("open_fds");
  s.max_fds = process.at("max_fds");
}

Snapshot Read(const json& status) {
  Snapshot s;
  s.time = status.at("time_seconds");
  s.version = status.at("program").at("version");
  s.backend = status.at("program").at("backend");
  s.state = status.at("state").at("name");
  s.why = status.at("state").at("why");
  ReadProcess(status.at("process"), s);
  if (!status.at("devices").empty()) s.device = status.at("devices").at(0).at("name");
  const json& load = status.at("load");
  s.in_flight = load.at("calls_in_flight");
  s.queued = load.at("calls_queued");
  s.bodies = {"bodies", load.at("body_budget_used_bytes"), 0, load.at("body_budget_limit_bytes")};
  for (const json& pool : status.at("pools")) s.pools.push_back(Pool(pool));
  s.recent_seconds = status.at("recent_seconds");
  ReadCalls(status.at("calls"), s);
  for (const json& row : status.at("latency")) {
    s.latency.push_back({row.at("stage"), row.at("recent"), row.at("p50_seconds"), row.at("p90_seconds"),
                         row.at("p99_seconds"), row.at("max_seconds")});
  }
  for (const json& row : status.at("kernels")) s.kernels.push_back({row.at("name"), row.at("total")});
  for (const json& row : status.at("errors")) {
    s.errors.push_back({row.at("time_seconds"), row.at("method"), row.at("code"), row.at("message"), row.at("fault")});
  }
  std::stable_sort(s.errors.begin(), s.errors.end(), [](const auto& a, const auto& b) { return a.time > b.time; });
  return s;
}

}  // namespace

absl::StatusOr<Snapshot> SnapshotOf(const json& status) {
  try {
    if (status.at("schema") != 1) {
      return absl::InvalidArgumentError("the daemon's status is of another version: use the kernctl that came with it");
    }
    return Read(status);
  } catch (const json::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat("this is no status of a kernd: ", error.what()));
  }
}

Rates RatesOf(const Snapshot& now, const Snapshot* earlier) {
  const bool same = earlier != nullptr && earlier->start_time == now.start_time && earlier->time < now.time &&
                    earlier->calls <= now.calls && earlier->failed <= now.failed;
  if (same) {
    const double seconds = now.time - earlier->time;
    return {static_cast<double>(now.calls - earlier->calls) / seconds,
            static_cast<double>(now.failed - earlier->failed) / seconds,
            std::max(0.0, (now.cpu_seconds - earlier->cpu_seconds) / seconds)};
  }
  // A daemon that is younger than the window.
  const double seconds = std::min(now.recent_seconds, now.uptime);
  if (seconds <= 0) return {};
  return {static_cast<double>(now.calls_recent) / seconds, static_cast<double>(now.failed_recent) / seconds,
          now.uptime > 0 ? now.cpu_seconds / now.uptime : 0};
}

}  // namespace kernd::cli::top
