// What /status.json of a daemon says, as far as kernctl top shows it. server/telemetry/README.md has the schema.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace kernd::cli::top {

struct MethodRow {
  std::string method, code;
  std::int64_t total = 0, recent = 0;
};

struct LatencyRow {
  std::string stage;
  std::int64_t recent = 0;
  double p50 = 0, p90 = 0, p99 = 0, max = 0;  // seconds
};

struct KernelRow {
  std::string name;
  std::int64_t total = 0;
};

struct PoolRow {
  std::string name;
  std::int64_t used = 0, peak = 0, limit = 0;  // bytes
};

struct ErrorRow {
  double time = 0;  // seconds since 1970
  std::string method, code, message;
  bool fault = false;  // the daemon's own
};

// Texts are the daemon's: whoever prints them makes them fit for a terminal.
struct Snapshot {
  double time = 0, start_time = 0, uptime = 0;  // seconds
  std::string version, backend, state, why;
  std::string device;  // the first one's name
  double cpu_seconds = 0;
  std::int64_t resident_bytes = 0, threads = 0, open_fds = 0, max_fds = 0;
  std::int64_t in_flight = 0, queued = 0;
  std::int64_t calls = 0, failed = 0, calls_recent = 0, failed_recent = 0;
  double recent_seconds = 0;  // the time that "recent" means
  PoolRow bodies;
  std::vector<PoolRow> pools;
  std::vector<MethodRow> methods;
  std::vector<LatencyRow> latency;  // "total" first
  std::vector<KernelRow> kernels;
  std::vector<ErrorRow> errors;  // newest first
};

// INVALID_ARGUMENT where this is no status of schema 1.
absl::StatusOr<Snapshot> SnapshotOf(const nlohmann::json& status);

// What happened between two snapshots, a second.
struct Rates {
  double calls = 0, failed = 0, cpu = 0;  // cpu: in CPUs
};

// By the difference to an earlier one of the same process, where there is one, else over the recent time.
Rates RatesOf(const Snapshot& now, const Snapshot* earlier);

}  // namespace kernd::cli::top
