#include "server/telemetry/metrics.h"

#include <algorithm>
#include <utility>

#include "absl/strings/string_view.h"
#include "kernd/kernels/error.h"
#include "prometheus/gauge.h"
#include "prometheus/text_serializer.h"
#include "server/telemetry/process_stats.h"

namespace kernd::telemetry {
namespace {

using prometheus::ClientMetric;
using prometheus::Counter;
using prometheus::Histogram;
using prometheus::MetricFamily;
using prometheus::MetricType;

constexpr char kUnknown[] = "unknown";

// From a kernel to a slow call over a thin line.
const Histogram::BucketBoundaries kSeconds = {1e-5,   2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2,
                                              2.5e-2, 5e-2,   0.1,  0.25, 0.5,    1,    2.5,  5,      10};

// 1 KiB to 64 GiB.
Histogram::BucketBoundaries ByteBuckets() {
  Histogram::BucketBoundaries buckets;
  for (double bytes = 1024; bytes <= 64.0 * 1024 * 1024 * 1024; bytes *= 4) buckets.push_back(bytes);
  return buckets;
}

// Reasons of the two codes that mean "not now" or "not here", then what has no such reason.
constexpr std::array<std::string_view, 10> kRejections = {
    reason::kStarting,  reason::kDraining,  reason::kTooLarge,     reason::kBodyBudget, reason::kMemoryFull,
    reason::kQueueFull, reason::kQuotaFull, reason::kSessionsFull, reason::kTuningBusy, kUnknown};

std::string CodeName(std::size_t code) {
  return absl::StatusCodeToString(static_cast<absl::StatusCode>(code));
}

// The entry of `name`, or of "unknown".
template <typename T>
T& Find(std::unordered_map<std::string, T>& map, const std::string& name) {
  const auto found = map.find(name);
  return found == map.end() ? map.at(kUnknown) : found->second;
}

std::vector<std::string> WithUnknown(std::vector<std::string> names) {
  if (std::find(names.begin(), names.end(), kUnknown) == names.end()) names.push_back(kUnknown);
  return names;
}

double Seconds(absl::Duration duration) {
  return absl::ToDoubleSeconds(duration);
}

using Sample = std::pair<std::vector<ClientMetric::Label>, double>;

MetricFamily Family(MetricType type, const char* name, const char* help, const std::vector<Sample>& samples) {
  MetricFamily family = {name, help, type, {}};
  for (const auto& [labels, value] : samples) {
    ClientMetric& metric = family.metric.emplace_back();
    metric.label = labels;
    (type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
  }
  return family;
}

MetricFamily Gauge(const char* name, const char* help, double value) {
  return Family(MetricType::Gauge, name, help, {{{}, value}});
}

MetricFamily Total(const char* name, const char* help, double value) {
  return Family(MetricType::Counter, name, help, {{{}, value}});
}

MetricFamily Labelled(const char* name, const char* help, const char* label,
                      const std::vector<std::pair<std::string, std::int64_t>>& counts) {
  std::vector<Sample> samples;
  for (const auto& [value, count] : counts) samples.push_back({{{label, value}}, static_cast<double>(count)});
  return Family(MetricType::Counter, name, help, samples);
}

MetricFamily PerPool(const char* name, const char* help, const std::vector<PoolGauges>& pools,
                     std::int64_t PoolGauges::*field) {
  std::vector<Sample> samples;
  for (const PoolGauges& pool : pools) samples.push_back({{{"pool", pool.pool}}, static_cast<double>(pool.*field)});
  return Family(MetricType::Gauge, name, help, samples);
}

void AppendGauges(const Gauges& now, std::vector<MetricFamily>& out) {
  out.push_back(Gauge("kernd_requests_in_flight", "Calls whose headers have arrived and that have not ended.",
                      now.requests_in_flight));
  out.push_back(Gauge("kernd_queue_depth", "Calls admitted and not yet running.", now.queue_depth));
  out.push_back(Gauge("kernd_body_budget_used_bytes", "Bytes reserved for request bodies in flight.",
                      now.body_budget_used_bytes));
  out.push_back(
      Gauge("kernd_body_budget_limit_bytes", "Most bytes of request bodies in flight.", now.body_budget_limit_bytes));
  out.push_back(PerPool("kernd_memory_used_bytes", "Memory for tensors in use.", now.pools, &PoolGauges::used_bytes));
  out.push_back(PerPool("kernd_memory_limit_bytes", "Most memory for tensors.", now.pools, &PoolGauges::limit_bytes));
  out.push_back(PerPool("kernd_memory_peak_bytes", "Most memory for tensors that was in use at once since the start.",
                        now.pools, &PoolGauges::peak_bytes));
  out.push_back(Gauge("kernd_sessions", "Sessions that are open.", now.sessions));
  out.push_back(Gauge("kernd_session_tensors", "Tensors that clients keep in their sessions.", now.session_tensors));
  out.push_back(
      Gauge("kernd_session_tensors_filling", "Of these, those that are being uploaded.", now.tensors_filling));
  out.push_back(Total("kernd_sessions_expired_total", "Sessions that ended because nobody used them for their lease.",
                      now.sessions_expired));
  out.push_back(
      Total("kernd_uploads_abandoned_total", "Tensors given up because no more of them came.", now.uploads_abandoned));
  out.push_back(Total("kernd_log_lines_dropped_total", "Log lines lost because their reader was too slow.",
                      now.log_lines_dropped));
  out.push_back(Gauge("kernd_ready", "1 while the daemon accepts compute calls, else 0.", now.ready));
  out.push_back(Gauge("kernd_time_to_ready_seconds",
                      "From the start of the process to the first readiness; 0 until then.",
                      Seconds(now.time_to_ready)));
  out.push_back(Gauge("kernd_prewarm_seconds", "Time that kernels and declared shapes took to run once; 0 until then.",
                      Seconds(now.prewarm_time)));
  out.push_back(Gauge("kernd_prewarm_steps", "Kernels and declared shapes to run once before the daemon is ready.",
                      now.prewarm_steps));
  out.push_back(Gauge("kernd_prewarm_steps_done", "Of kernd_prewarm_steps, those that have run.", now.prewarm_done));
  out.push_back(
      Gauge("kernd_prewarm_refused", "Declared shapes that cannot be run on this device.", now.prewarm_refused));
  std::vector<Sample> tuning;
  for (const std::string_view state : kTuningFileStates) {
    tuning.push_back({{{"state", std::string(state)}}, state == now.tuning_file ? 1.0 : 0.0});
  }
  out.push_back(Family(MetricType::Gauge, "kernd_tuning_file",
                       "1 for what became of the file of tuned kernels at the start, else 0.", tuning));
  out.push_back(
      Gauge("kernd_tuning_running", "1 while kernels are measured for Autotune, else 0.", now.tuning.running));
  out.push_back(Gauge("kernd_tuned_choices", "Choices that were measured and are in effect.", now.tuning.choices));
  out.push_back(Labelled("kernd_tuning_candidates_total", "Kernels that Autotune has tried, by what became of them.",
                         "verdict", now.tuning.candidates));
  out.push_back(Labelled("kernd_tuning_shapes_total", "Shapes that Autotune was asked for, by what became of them.",
                         "outcome", now.tuning.shapes));
  out.push_back(Total("kernd_tuning_writes_failed_total", "Times that --tuning-file could not be written.",
                      now.tuning.writes_failed));
}

void AppendProcess(const ProcessStats& process, std::vector<MetricFamily>& out) {
  out.push_back(Total("process_cpu_seconds_total", "CPU time of the process, user and system.", process.cpu_seconds));
  out.push_back(Gauge("process_start_time_seconds", "Start of the process, seconds since the epoch.",
                      process.start_time_seconds));
  out.push_back(Gauge("process_resident_memory_bytes", "Memory of the process in RAM.", process.resident_bytes));
  out.push_back(Gauge("process_virtual_memory_bytes", "Address space of the process.", process.virtual_bytes));
  out.push_back(Gauge("process_open_fds", "File descriptors open.", process.open_fds));
  out.push_back(Gauge("process_max_fds", "Most file descriptors open.", process.max_fds));
  out.push_back(Gauge("process_threads", "Threads of the process.", process.threads));
}

}  // namespace

Metrics::Metrics(const std::vector<std::string>& methods, const std::vector<std::string>& kernels,
                 const BuildLabels& build, GaugeSource gauges)
    : gauges_(std::move(gauges)) {
  prometheus::BuildGauge()
      .Name("kernd_build_info")
      .Help("Always 1; the labels say what runs.")
      .Register(registry_)
      .Add({{"version", build.version},
            {"revision", build.revision},
            {"backend", build.backend},
            {"compiler", build.compiler},
            {"cuda_toolkit", build.cuda_toolkit}})
      .Set(1);

  auto& requests = prometheus::BuildCounter()
                       .Name("kernd_requests_total")
                       .Help("Calls that have ended, by method and gRPC status code.")
                       .Register(registry_);
  auto& seconds = prometheus::BuildHistogram()
                      .Name("kernd_request_seconds")
                      .Help("Time from a call's headers to its end.")
                      .Register(registry_);
  auto& request_bytes = prometheus::BuildCounter()
                            .Name("kernd_request_bytes_total")
                            .Help("Bytes of request messages received.")
                            .Register(registry_);
  auto& reply_bytes = prometheus::BuildCounter()
                          .Name("kernd_reply_bytes_total")
                          .Help("Bytes of reply messages sent.")
                          .Register(registry_);
  auto& copied_bytes = prometheus::BuildCounter()
                           .Name("kernd_copied_bytes_total")
                           .Help("Bytes of tensors that the daemon itself copied from one host buffer to another.")
                           .Register(registry_);
  for (const std::string& method : WithUnknown(methods)) {
    const prometheus::Labels labels = {{"method", method}};
    MethodMetrics& metrics = methods_[method];
    for (std::size_t code = 0; code < kNumCodes; ++code) {
      metrics.by_code[code] = &requests.Add({{"method", method}, {"code", CodeName(code)}});
    }
    metrics.seconds = &seconds.Add(labels, kSeconds);
    metrics.request_bytes = &request_bytes.Add(labels);
    metrics.reply_bytes = &reply_bytes.Add(labels);
    metrics.copied_bytes = &copied_bytes.Add(labels);
  }

  auto& stages = prometheus::BuildHistogram()
                     .Name("kernd_stage_seconds")
                     .Help("Time spent in each stage, of calls that entered it. Stages may overlap.")
                     .Register(registry_);
  for (std::size_t i = 0; i < core::kNumStages; ++i) {
    stage_seconds_[i] = &stages.Add({{"stage", std::string(core::kStageNames[i])}}, kSeconds);
  }
  peak_memory_ = &prometheus::BuildHistogram()
                      .Name("kernd_request_peak_memory_bytes")
                      .Help("Most memory for tensors that one call held at once.")
                      .Register(registry_)
                      .Add({}, ByteBuckets());

  auto& kernel_calls = prometheus::BuildCounter()
                           .Name("kernd_kernel_calls_total")
                           .Help("Calls that ran, by kernel.")
                           .Register(registry_);
  for (const std::string& kernel : WithUnknown(kernels))
    kernel_calls_[kernel] = &kernel_calls.Add({{"kernel", kernel}});

  auto& findings = prometheus::BuildCounter()
                       .Name("kernd_debug_findings_total")
                       .Help("Tensors of calls in which --debug-checks found NaN or infinities, or writes past them.")
                       .Register(registry_);
  with_nan_ = &findings.Add({{"kind", "nan"}});
  with_inf_ = &findings.Add({{"kind", "inf"}});
  overruns_ = &findings.Add({{"kind", "overrun"}});

  auto& rejected = prometheus::BuildCounter()
                       .Name("kernd_rejected_total")
                       .Help("Calls refused with RESOURCE_EXHAUSTED or UNAVAILABLE, by reason.")
                       .Register(registry_);
  for (const std::string_view name : kRejections) {
    rejected_[std::string(name)] = &rejected.Add({{"reason", std::string(name)}});
  }
}

void Metrics::CallEnded(const core::CallRecord& record) {
  const MethodMetrics& method = Find(methods_, record.method);
  const auto code = static_cast<std::size_t>(record.status.code());
  method.by_code[code < kNumCodes ? code : static_cast<std::size_t>(absl::StatusCode::kUnknown)]->Increment();
  method.seconds->Observe(Seconds(record.total));
  method.request_bytes->Increment(static_cast<double>(record.request_bytes));
  method.reply_bytes->Increment(static_cast<double>(record.reply_bytes));
  method.copied_bytes->Increment(static_cast<double>(record.copied_bytes));
  for (std::size_t i = 0; i < core::kNumStages; ++i) {
    // A stage that the call never entered says nothing about how long the stage takes.
    const absl::Duration time = record.stages[static_cast<core::Stage>(i)];
    if (time > absl::ZeroDuration()) stage_seconds_[i]->Observe(Seconds(time));
  }
  if (!record.kernel.empty()) Find(kernel_calls_, record.kernel)->Increment();
  if (record.peak_bytes > 0) peak_memory_->Observe(static_cast<double>(record.peak_bytes));
  if (!record.status.ok()) CountRejection(record.status);
  CountFindings(record.findings);
}

void Metrics::CountFindings(const std::vector<core::Finding>& findings) {
  for (const core::Finding& finding : findings) {
    if (finding.nan > 0) with_nan_->Increment();
    if (finding.inf > 0) with_inf_->Increment();
    if (finding.overrun) overruns_->Increment();
  }
}

void Metrics::CountRejection(const absl::Status& status) {
  if (!absl::IsResourceExhausted(status) && !absl::IsUnavailable(status)) return;
  Find(rejected_, DetailOf(status).reason)->Increment();
}

std::string Metrics::Text() const {
  std::vector<MetricFamily> families = registry_.Collect();
  AppendGauges(gauges_(), families);
  AppendProcess(ReadProcessStats(), families);
  // The registry's order is that of its hash tables; people read this page, too.
  std::sort(families.begin(), families.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  for (MetricFamily& family : families) {
    std::sort(family.metric.begin(), family.metric.end(),
              [](const auto& a, const auto& b) { return a.label < b.label; });
  }
  return prometheus::TextSerializer().Serialize(families);
}

std::vector<CallCount> Metrics::CallCounts() const {
  std::vector<CallCount> counts;
  for (const auto& [method, metrics] : methods_) {
    for (std::size_t code = 0; code < kNumCodes; ++code) {
      const auto calls = static_cast<std::uint64_t>(metrics.by_code[code]->Value());
      if (calls > 0) counts.push_back({.method = method, .code = static_cast<absl::StatusCode>(code), .calls = calls});
    }
  }
  return counts;
}

std::map<std::string, std::uint64_t> Metrics::KernelCalls() const {
  std::map<std::string, std::uint64_t> calls;
  for (const auto& [kernel, counter] : kernel_calls_) calls[kernel] = static_cast<std::uint64_t>(counter->Value());
  return calls;
}

}  // namespace kernd::telemetry
