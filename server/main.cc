// kernd: wiring only. Reads the options, builds the layers from the inside out, serves until a signal, and takes them
// down in reverse. What it ends with: app/exit_code.h.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "server/app/daemon_facts.h"
#include "server/app/exit_code.h"
#include "server/app/layer_options.h"
#include "server/app/life.h"
#include "server/app/port_file.h"
#include "server/app/prewarm.h"
#include "server/app/select_backend.h"
#include "server/app/tuning.h"
#include "server/config/build_info.h"
#include "server/config/options.h"
#include "server/config/process_setup.h"
#include "server/config/unused.h"
#include "server/config/variables.h"
#include "server/core/engine.h"
#include "server/core/session_store.h"
#include "server/core/session_sweeper.h"
#include "server/core/shape_list.h"
#include "server/rpc/handlers.h"
#include "server/rpc/handover.h"
#include "server/rpc/library_log.h"
#include "server/rpc/server.h"
#include "server/telemetry/call_history.h"
#include "server/telemetry/http_server.h"
#include "server/telemetry/log.h"
#include "server/telemetry/metrics.h"
#include "server/telemetry/status_json.h"
#include "server/telemetry/throttle.h"
#include "server/tune/tuner.h"
#include "spdlog/spdlog.h"

namespace kernd {
namespace {

// Calls on a lost GPU end at once; this is for their answers.
constexpr absl::Duration kDrainWhenLost = absl::Seconds(2);

// Debian builds Abseil with its debug checks, so that every lock in gRPC walks a global graph to look for deadlocks.
void SetUpLocks() {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
}

// What gRPC and protobuf report is seldom news, and some of it clients can cause: a few lines a minute.
void LogLibraryLine(rpc::LibrarySeverity severity, const std::string& line) {
  static telemetry::Throttle throttle(10, absl::Minutes(1));
  if (severity == rpc::LibrarySeverity::kInfo) return spdlog::debug("{}", line);
  const std::optional<std::int64_t> kept_back = throttle.Admit(absl::Now());
  if (!kept_back) return;
  if (*kept_back > 0) spdlog::warn("{} more lines of gRPC and protobuf were not written", *kept_back);
  spdlog::warn("{}", line);
}

// Several observers as one.
class Observers final : public core::CallObserver {
 public:
  explicit Observers(std::vector<core::CallObserver*> all) : all_(std::move(all)) {}
  void CallEnded(const core::CallRecord& record) override {
    for (core::CallObserver* observer : all_) observer->CallEnded(record);
  }

 private:
  const std::vector<core::CallObserver*> all_;
};

// The daemon from options to exit code.
int Serve(const config::ServerOptions& options, const std::vector<core::DeclaredShape>& declared) {
  const absl::Time started = absl::Now();
  const config::BuildInfo& build = config::GetBuildInfo();
  telemetry::Log log({.level = options.logging.level, .json = options.logging.json});
  spdlog::info("{} starting", config::VersionLine());
  for (const std::string& line : config::UnknownVariables(environ)) spdlog::warn("{}", line);
  const int cpus = config::ReadMachineLimits().cpus;
  if (options.compute.cpu_threads > cpus) {
    spdlog::warn("--cpu-threads is {}: this process may use {} CPUs, on which its threads will take turns",
                 options.compute.cpu_threads, cpus);
  }

  Life life;
  absl::StatusOr<SelectedBackend> selected = SelectBackend(options, [&](const absl::Status& why) {
    spdlog::error("the GPU is lost, and with it this process: {}", std::string(why.message()));
    life.device_lost = true;
    kill(getpid(), SIGTERM);
  });
  if (!selected.ok()) {
    spdlog::error("--backend cuda: {}", std::string(selected.status().message()));
    return BackendExitCode(selected.status());
  }
  if (selected->tuning_file == "missing") {
    spdlog::info("--tuning-file is not there yet: the first tuning writes it");
  } else if (!selected->tuning_said.empty()) {
    spdlog::warn("--tuning-file is not used: {}", selected->tuning_said);
  }
  if (!selected->kept_back.empty()) spdlog::warn("--backend auto: serving on the CPU ({})", selected->kept_back);
  const std::vector<std::string> unused = config::UnusedOptions(options, config::ReadMachineLimits(), selected->on_gpu);
  for (const std::string& line : unused) spdlog::warn("{}", line);

  core::Engine engine({.memory_limit = selected->memory_limit,
                       .max_queued_calls = options.limits.max_queued_calls,
                       .max_reply_bytes = options.limits.max_message_bytes},
                      std::move(selected->backend));
  const std::string& socket = options.shared_memory.socket;
  std::unique_ptr<rpc::Handover> handover;  // null: off
  if (!socket.empty()) {
    absl::StatusOr<std::unique_ptr<rpc::Handover>> listening = rpc::Handover::Start(socket);
    if (!listening.ok()) {
      spdlog::error("--shared-memory-socket: {}", std::string(listening.status().message()));
      return kExitListen;
    }
    handover = *std::move(listening);
  }
  core::SessionStore sessions(SessionsOf(options.sessions, selected->resident_limit,
                                         handover == nullptr ? 0 : options.shared_memory.limit_bytes),
                              {.memory = engine.memory(), .allocate = [&engine](std::int64_t bytes) {
                                 return engine.backend().AllocateTensor(bytes);
                               }});
  core::SessionSweeper sweeper(sessions, SweepEvery(options.sessions));
  rpc::MethodTable methods;
  const rpc::ServerFacts server_facts = {.version = build.version,
                                         .revision = build.revision,
                                         .compiler = build.compiler,
                                         .cuda_toolkit = build.cuda_toolkit,
                                         .epoch = std::random_device{}() | std::uint64_t{std::random_device{}()} << 32,
                                         .max_message_bytes = options.limits.max_message_bytes,
                                         .advertise = options.listen.advertise,
                                         .shared_memory_socket = socket,
                                         .not_used = selected->not_used};
  rpc::AddComputeMethods(engine, sessions, server_facts.epoch, methods);
  rpc::AddDeviceMethods(engine, server_facts, methods);
  rpc::AddTensorMethods(sessions, engine.backend(), server_facts, methods);
  rpc::AddSharedMemoryMethods(sessions, engine.backend(), handover.get(), server_facts.epoch, methods);

  rpc::Gate gate({.body_budget = options.limits.body_budget_bytes,
                  .default_body_bytes = options.limits.default_body_bytes,
                  .max_message_bytes = options.limits.max_message_bytes},
                 engine);
  tune::Tuner tuner(engine, gate.bodies(),
                    {.file = options.compute.tuning_file, .version = selected->tuning_version, .declared = declared},
                    LogTuning);
  rpc::AddAutotune(tuner, methods);
  methods.AddMissingMethods();
  const LifeReport report({.life = life,
                           .engine = engine,
                           .sessions = sessions,
                           .gate = gate,
                           .log = log,
                           .tuner = tuner,
                           .tuning_file = selected->tuning_file});
  const telemetry::DaemonFacts facts = FactsOf(build, engine.backend(), selected->not_used, unused);
  std::vector<std::string> kernels;
  for (const telemetry::KernelStatus& kernel : facts.kernels) kernels.push_back(kernel.name);
  telemetry::Metrics metrics(methods.Names(), kernels, facts.build, [&] { return report.Gauges(); });
  telemetry::CallHistory history(methods.Names());
  telemetry::CallLog call_log(log);
  std::vector<core::CallObserver*> observer_list = {&metrics, &history};
  if (options.logging.calls) observer_list.push_back(&call_log);
  Observers observers(observer_list);

  absl::StatusOr<std::unique_ptr<rpc::Server>> server =
      rpc::Server::Start(TransportOf(options), methods, gate, observers);
  if (!server.ok()) {
    spdlog::error("{}", std::string(server.status().message()));
    return kExitListen;
  }
  life.serving = server->get();

  std::unique_ptr<telemetry::HttpServer> http;
  if (options.listen.http) {
    absl::StatusOr<std::unique_ptr<telemetry::HttpServer>> started_http = telemetry::HttpServer::Start(
        options.listen.http->host, options.listen.http->port,
        {.metrics = [&] { return metrics.Text(); },
         .ready = [&] { return report.Ready(); },
         .status = [&] { return telemetry::StatusJson(facts, report.State(), metrics, history.Read()); }});
    if (!started_http.ok()) {
      spdlog::error("{}", std::string(started_http.status().message()));
      return kExitListen;
    }
    http = *std::move(started_http);
  }
  const std::string http_address = http == nullptr ? "off" : http->address();
  spdlog::info("listening: grpc {}, http {}", absl::StrJoin((*server)->addresses(), " "), http_address);
  if (!options.listen.port_file.empty()) {
    const absl::Status written = WritePortFile(
        options.listen.port_file, "grpc=" + (*server)->addresses().front() + "\nhttp=" + http_address + "\n");
    if (!written.ok()) {
      spdlog::error("{}", std::string(written.message()));
      return kExitFailure;
    }
  }

  if (const absl::Status warm = Prewarm(engine, declared, life); !warm.ok()) {
    spdlog::error("prewarm failed: {}", std::string(warm.message()));
    return life.device_lost ? kExitDeviceLost : kExitFailure;
  }
  life.ready_after_ns = absl::ToInt64Nanoseconds(absl::Now() - started);
  (*server)->health().SetServing(true);
  spdlog::info("ready after {:.3f} s: backend {}, {} threads, {} kernels", absl::ToDoubleSeconds(absl::Now() - started),
               engine.backend().name(), options.compute.cpu_threads, kernels.size());

  const sigset_t stop_signals = config::StopSignals();
  int signal_number = 0;
  sigwait(&stop_signals, &signal_number);
  config::EndAtOnceOnStopSignals();  // a second one

  life.draining = true;
  tuner.Stop();
  (*server)->health().SetServing(false);
  if (life.device_lost) {
    (*server)->Drain(kDrainWhenLost);
    return kExitDeviceLost;
  }
  spdlog::info("signal {}: not ready; taking calls for another {}", signal_number,
               absl::FormatDuration(options.lifecycle.drain_delay));
  absl::SleepFor(options.lifecycle.drain_delay);
  spdlog::info("draining: {} calls in flight, at most {}", (*server)->in_flight(),
               absl::FormatDuration(options.lifecycle.drain_timeout));
  const bool clean = (*server)->Drain(options.lifecycle.drain_timeout);
  life.serving = nullptr;
  if (http != nullptr) http->Stop();
  if (!clean) spdlog::error("the drain ran out of time: calls were cancelled");
  spdlog::info("stopped");
  return clean ? kExitDrained : kExitFailure;
}

int Main(int argc, char** argv) {
  config::HoldStopSignals();
  config::LetTeamsSleep(argv);
  config::SetUpHeap();
  SetUpLocks();

  const absl::StatusOr<config::Invocation> invocation = config::ParseOptions(argc, argv, config::VersionLine());
  if (!invocation.ok()) {
    std::fprintf(stderr, "kernd: %s\n", std::string(invocation.status().message()).c_str());
    return kExitOptions;
  }
  const absl::StatusOr<std::vector<core::DeclaredShape>> declared =
      core::ParseShapes(invocation->options.compute.prewarm, "--prewarm");
  if (!declared.ok()) {
    std::fprintf(stderr, "kernd: %s\n", std::string(declared.status().message()).c_str());
    return kExitOptions;
  }
  if (invocation->print) {
    for (const std::string& line : config::UnknownVariables(environ)) std::fprintf(stderr, "kernd: %s\n", line.c_str());
    std::fputs(invocation->print->c_str(), stdout);
    return 0;
  }
  const absl::Status descriptors = config::RaiseDescriptorLimit(NeededDescriptors(invocation->options));
  if (!descriptors.ok()) {
    std::fprintf(stderr, "kernd: %s\n", std::string(descriptors.message()).c_str());
    return kExitOptions;
  }
  rpc::RouteLibraryLogs(LogLibraryLine);
  return Serve(invocation->options, *declared);
}

}  // namespace
}  // namespace kernd

int main(int argc, char** argv) {
  return kernd::Main(argc, argv);
}
