#include "server/telemetry/status_json.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "absl/time/clock.h"
#include "kernd/kernels/error.h"
#include "server/telemetry/fault.h"
#include "server/telemetry/printable.h"
#include "server/telemetry/process_stats.h"

namespace kernd::telemetry {
namespace {

using Json = nlohmann::ordered_json;

Json Text(std::string_view text) {
  return Printable(text, kMaxStatusTextBytes);
}

Json Texts(const std::vector<std::string>& texts) {
  Json out = Json::array();
  for (const std::string& text : texts) out.push_back(Text(text));
  return out;
}

double Epoch(absl::Time time) {
  return absl::ToDoubleSeconds(time - absl::UnixEpoch());
}

Json Program(const DaemonFacts& facts) {
  return {{"version", Text(facts.build.version)},
          {"revision", Text(facts.build.revision)},
          {"compiler", Text(facts.build.compiler)},
          {"cuda_toolkit", Text(facts.build.cuda_toolkit)},
          {"backend", Text(facts.build.backend)}};
}

Json Process(absl::Time now) {
  const ProcessStats process = ReadProcessStats();
  return {{"start_time_seconds", process.start_time_seconds},
          {"uptime_seconds", std::max(0.0, Epoch(now) - process.start_time_seconds)},
          {"cpu_seconds", process.cpu_seconds},
          {"resident_bytes", process.resident_bytes},
          {"threads", process.threads},
          {"open_fds", process.open_fds},
          {"max_fds", process.max_fds}};
}

Json Device(const DeviceStatus& device) {
  return {{"uuid", Text(device.uuid)},
          {"name", Text(device.name)},
          {"tier", Text(device.tier)},
          {"compute_capability", Text(device.compute_capability)},
          {"pci", Text(device.pci)},
          {"driver", Text(device.driver)},
          {"runtime", Text(device.runtime)},
          {"processors", device.processors},
          {"memory_bytes", device.memory_bytes},
          {"hardware_has", Texts(device.hardware_has)},
          {"build_has", Texts(device.build_has)},
          {"kernels_use", Texts(device.kernels_use)}};
}

Json Pool(const PoolGauges& pool) {
  return {{"name", Text(pool.pool)},
          {"used_bytes", pool.used_bytes},
          {"peak_bytes", pool.peak_bytes},
          {"limit_bytes", pool.limit_bytes}};
}

Json Load(const Gauges& gauges) {
  return {{"calls_in_flight", gauges.requests_in_flight},
          {"calls_queued", gauges.queue_depth},
          {"body_budget_used_bytes", gauges.body_budget_used_bytes},
          {"body_budget_limit_bytes", gauges.body_budget_limit_bytes},
          {"log_lines_dropped", gauges.log_lines_dropped}};
}

// Since the start by the metrics, so that this page and Prometheus agree; a call that ends in between is in one alone.
Json Calls(const std::vector<CallCount>& since_start, const RecentCalls& recent) {
  struct Row {
    std::uint64_t total = 0, recent = 0;
  };
  std::map<std::pair<std::string, absl::StatusCode>, Row> rows;
  Row all, failed;
  for (const CallCount& count : since_start) {
    rows[{count.method, count.code}].total = count.calls;
    all.total += count.calls;
    if (count.code != absl::StatusCode::kOk) failed.total += count.calls;
  }
  for (const CallCount& count : recent.calls) {
    rows[{count.method, count.code}].recent = count.calls;
    all.recent += count.calls;
    if (count.code != absl::StatusCode::kOk) failed.recent += count.calls;
  }
  Json by_method = Json::array(), slots = Json::array();
  for (const auto& [key, row] : rows) {
    by_method.push_back({{"method", Text(key.first)},
                         {"code", absl::StatusCodeToString(key.second)},
                         {"total", row.total},
                         {"recent", row.recent}});
  }
  for (const SlotCounts& slot : recent.slots) slots.push_back({{"ok", slot.ok}, {"failed", slot.failed}});
  return {{"total", all.total},
          {"failed_total", failed.total},
          {"recent", all.recent},
          {"failed_recent", failed.recent},
          {"slot_seconds", SlidingCounts::kSlot.count()},
          {"slots", std::move(slots)},
          {"by_method", std::move(by_method)}};
}

Json Latency(std::string_view stage, const LatencySummary& summary) {
  return {{"stage", stage},
          {"recent", summary.count},
          {"p50_seconds", absl::ToDoubleSeconds(summary.p50)},
          {"p90_seconds", absl::ToDoubleSeconds(summary.p90)},
          {"p99_seconds", absl::ToDoubleSeconds(summary.p99)},
          {"max_seconds", absl::ToDoubleSeconds(summary.max)}};
}

Json Error(const CallError& error) {
  const ErrorDetail detail = DetailOf(error.status);
  return {{"number", error.number},
          {"time_seconds", Epoch(error.time)},
          {"method", Text(error.method)},
          {"code", absl::StatusCodeToString(error.status.code())},
          {"fault", IsFault(error.status.code())},
          {"reason", Text(detail.reason)},
          {"field", Text(detail.field)},
          {"message", Text({error.status.message().data(), error.status.message().size()})},
          {"request_id", Text(error.request_id)},
          {"peer", Text(error.peer)}};
}

// The array of what `make` makes of each.
template <typename Items, typename Make>
Json Each(const Items& items, Make make) {
  Json out = Json::array();
  for (const auto& item : items) out.push_back(make(item));
  return out;
}

}  // namespace

std::string StatusJson(const DaemonFacts& facts, const DaemonState& state, const Metrics& metrics,
                       const RecentCalls& recent) {
  const absl::Time now = absl::Now();
  Json latency = Json::array({Latency("total", recent.total)});
  for (std::size_t i = 0; i < core::kNumStages; ++i) {
    latency.push_back(Latency(core::kStageNames[i], recent.stages[i]));
  }
  const std::map<std::string, std::uint64_t> kernel_calls = metrics.KernelCalls();
  Json kernels = Each(facts.kernels, [&](const KernelStatus& kernel) -> Json {
    const auto calls = kernel_calls.find(kernel.name);
    return {{"name", Text(kernel.name)},
            {"operation", Text(kernel.operation)},
            {"how", Text(kernel.how)},
            {"total", calls == kernel_calls.end() ? 0 : calls->second}};
  });
  const Json status = {
      {"schema", 1},
      {"time_seconds", Epoch(now)},
      {"program", Program(facts)},
      {"process", Process(now)},
      {"state",
       {{"name", Text(state.name)},
        {"why", Text(state.why)},
        {"time_to_ready_seconds", absl::ToDoubleSeconds(state.gauges.time_to_ready)}}},
      {"devices", Each(facts.devices, Device)},
      {"devices_not_used", Texts(facts.devices_not_used)},
      {"options_not_used", Texts(facts.options_not_used)},
      {"pools", Each(state.gauges.pools, Pool)},
      {"load", Load(state.gauges)},
      {"recent_seconds", absl::ToDoubleSeconds(recent.window)},
      {"calls", Calls(metrics.CallCounts(), recent)},
      {"latency", std::move(latency)},
      {"latency_max_relative_error", LatencyWindow::kMaxRelativeError},
      {"kernels", std::move(kernels)},
      {"errors", Each(recent.errors, Error)},
  };
  return status.dump() + "\n";
}

}  // namespace kernd::telemetry
