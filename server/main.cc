// kernd: wiring only. Reads the options, builds the layers from the inside out, serves until a signal, and takes them
// down in reverse. Exit codes: 0 drained, or printed what was asked for; 1 calls had to be cancelled, or a failure;
// 2 bad options, or too few open files allowed; 3 an address cannot be bound; 4 no such backend or GPU here;
// 5 the GPU driver is missing or too old; 6 no kernels for the GPU; 7 the GPU was lost while serving; 128 + n ended by
// signal n, the second one.
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "kernd/kernels/error.h"
#include "server/config/build_info.h"
#include "server/config/options.h"
#include "server/config/process_setup.h"
#include "server/config/variables.h"
#include "server/core/engine.h"
#include "server/core/session_store.h"
#include "server/core/session_sweeper.h"
#include "server/core/shape_list.h"
#include "server/daemon_facts.h"
#include "server/rpc/handlers.h"
#include "server/rpc/handover.h"
#include "server/rpc/library_log.h"
#include "server/rpc/server.h"
#include "server/select_backend.h"
#include "server/telemetry/call_history.h"
#include "server/telemetry/http_server.h"
#include "server/telemetry/log.h"
#include "server/telemetry/metrics.h"
#include "server/telemetry/status_json.h"
#include "server/telemetry/throttle.h"
#include "spdlog/spdlog.h"

namespace kernd {
namespace {

constexpr int kExitFailure = 1, kExitOptions = 2, kExitListen = 3, kExitBackend = 4, kExitDriver = 5,
              kExitNoKernels = 6, kExitDeviceLost = 7;

// Calls on a lost GPU end at once; this is for their answers.
constexpr absl::Duration kDrainWhenLost = absl::Seconds(2);

// A supervisor can tell what to do: nothing helps but another build or machine (4, 6), a newer driver (5), or a
// restart.
int BackendExitCode(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kFailedPrecondition: return kExitDriver;
    case absl::StatusCode::kNotFound: return kExitBackend;
    case absl::StatusCode::kUnimplemented: return kExitNoKernels;
    default: return kExitFailure;
  }
}

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

// Open files without which the daemon is no use: what the libraries and each I/O thread open, the HTTP port's
// connections, and some clients.
std::int64_t NeededDescriptors(const config::ServerOptions& options) {
  return 64 + 4 * options.compute.io_threads + static_cast<std::int64_t>(options.listen.grpc.size()) +
         static_cast<std::int64_t>(options.listen.http ? telemetry::HttpServer::kMaxConnections : 0) +
         static_cast<std::int64_t>(
             options.shared_memory.socket.empty() ? 0 : rpc::Handover::kMaxConnections + rpc::Handover::kMaxWaiting);
}

// Written whole or not at all, so that a reader never sees half of it.
absl::Status WritePortFile(const std::string& path, const std::string& text) {
  struct stat there {};
  if (stat(path.c_str(), &there) == 0 && !S_ISREG(there.st_mode)) {
    return absl::UnavailableError("cannot write --port-file " + path + ": it is there and no regular file");
  }
  const std::string temporary = path + ".tmp";
  std::ofstream(temporary) << text << std::flush;
  if (std::rename(temporary.c_str(), path.c_str()) != 0) {
    const absl::Status status =
        absl::UnavailableError("cannot write --port-file " + path + ": " + std::strerror(errno));
    unlink(temporary.c_str());
    return status;
  }
  return absl::OkStatus();
}

core::SessionStore::Options Sessions(const config::SessionOptions& options, std::int64_t resident_limit,
                                     std::int64_t shared_limit) {
  return {.resident_limit = resident_limit,
          .session_quota = std::min(options.quota.Of(resident_limit), resident_limit),
          .max_sessions = options.max_sessions,
          .shared_limit = shared_limit,
          .default_lease = options.lease,
          .max_lease = config::kMaxSessionLease,
          .fill_timeout = options.fill_timeout};
}

// Often enough that nothing stays much longer than its time.
absl::Duration SweepEvery(const config::SessionOptions& options) {
  return std::min(absl::Seconds(1), std::min(options.lease, options.fill_timeout) / 4);
}

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

rpc::TransportOptions Transport(const config::ServerOptions& options) {
  rpc::TransportOptions transport;
  for (const config::Address& address : options.listen.grpc) transport.listen.push_back(config::AddressText(address));
  transport.io_threads = options.compute.io_threads;
  transport.max_message_bytes = options.limits.max_message_bytes;
  transport.quota_bytes = options.limits.body_budget_bytes + options.limits.body_budget_bytes / 2;
  transport.max_concurrent_streams = options.limits.max_concurrent_streams;
  transport.handshake_timeout = options.lifecycle.handshake_timeout;
  transport.keepalive_time = options.lifecycle.keepalive_time;
  transport.keepalive_timeout = options.lifecycle.keepalive_timeout;
  transport.max_connection_age = options.lifecycle.max_connection_age;
  transport.receive_stall = options.lifecycle.receive_stall;
  transport.send_stall = options.lifecycle.send_stall;
  return transport;
}

// Of the heap; what a large call's operands take, and what small machines can spare.
std::size_t HeapToTouch() {
  return static_cast<std::size_t>(std::min<std::int64_t>(32 << 20, config::ReadMachineLimits().memory_bytes / 64));
}

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

  std::atomic<bool> device_lost = false;
  absl::StatusOr<SelectedBackend> selected = SelectBackend(options, [&](const absl::Status& why) {
    spdlog::error("the GPU is lost, and with it this process: {}", std::string(why.message()));
    device_lost = true;
    kill(getpid(), SIGTERM);
  });
  if (!selected.ok()) {
    spdlog::error("--backend cuda: {}", std::string(selected.status().message()));
    return BackendExitCode(selected.status());
  }
  if (!selected->tuning_said.empty()) spdlog::warn("--tuning-file is not used: {}", selected->tuning_said);
  if (!selected->kept_back.empty()) spdlog::warn("--backend auto: serving on the CPU ({})", selected->kept_back);

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
  core::SessionStore sessions(
      Sessions(options.sessions, selected->resident_limit, handover == nullptr ? 0 : options.shared_memory.limit_bytes),
      {.memory = engine.memory(),
       .allocate = [&engine](std::int64_t bytes) { return engine.backend().AllocateTensor(bytes); }});
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
  methods.AddMissingMethods();

  rpc::Gate gate({.body_budget = options.limits.body_budget_bytes,
                  .default_body_bytes = options.limits.default_body_bytes,
                  .max_message_bytes = options.limits.max_message_bytes},
                 engine);
  std::atomic<bool> draining = false;
  std::atomic<std::int64_t> ready_after_ns = 0;
  std::atomic<const rpc::Server*> serving = nullptr;
  std::atomic<std::int64_t> prewarmed = 0, to_prewarm = 0, prewarm_refused = 0, prewarm_ns = 0;
  const auto gauges = [&] {
    const core::Engine::Load load = engine.load();
    const core::SessionStore::Use kept = sessions.use();
    const rpc::Server* server = serving.load();
    return telemetry::Gauges{.requests_in_flight = server == nullptr ? 0 : server->in_flight(),
                             .queue_depth = load.queued,
                             .body_budget_used_bytes = gate.bodies().used(),
                             .body_budget_limit_bytes = gate.bodies().limit(),
                             .pools = Pools(engine, kept),
                             .sessions = kept.sessions,
                             .session_tensors = kept.tensors,
                             .tensors_filling = kept.filling,
                             .sessions_expired = kept.expired,
                             .uploads_abandoned = kept.abandoned,
                             .log_lines_dropped = log.lines_dropped(),
                             .ready = engine.ready() && !draining,
                             .time_to_ready = absl::Nanoseconds(ready_after_ns.load()),
                             .prewarm_time = absl::Nanoseconds(prewarm_ns.load()),
                             .prewarm_steps = to_prewarm,
                             .prewarm_done = prewarmed,
                             .prewarm_refused = prewarm_refused,
                             .tuning_file = selected->tuning_file};
  };
  const auto state = [&] {
    telemetry::DaemonState now = {.name = "ready", .gauges = gauges()};
    if (device_lost) {
      now.name = "lost";
      now.why = "the GPU is lost, and with it this process";
    } else if (draining) {
      now.name = "draining";
      now.why = "told to end; ends when its calls have";
    } else if (!engine.ready()) {
      now.name = "starting";
      now.why =
          to_prewarm == 0 ? "warming up" : absl::StrCat("warming up, ", prewarmed.load(), " of ", to_prewarm.load());
    }
    return now;
  };
  const telemetry::DaemonFacts facts = FactsOf(build, engine.backend(), selected->not_used);
  std::vector<std::string> kernels;
  for (const telemetry::KernelStatus& kernel : facts.kernels) kernels.push_back(kernel.name);
  telemetry::Metrics metrics(methods.Names(), kernels, facts.build, gauges);
  telemetry::CallHistory history(methods.Names());
  telemetry::CallLog call_log(log);
  std::vector<core::CallObserver*> observer_list = {&metrics, &history};
  if (options.logging.calls) observer_list.push_back(&call_log);
  Observers observers(observer_list);

  absl::StatusOr<std::unique_ptr<rpc::Server>> server =
      rpc::Server::Start(Transport(options), methods, gate, observers);
  if (!server.ok()) {
    spdlog::error("{}", std::string(server.status().message()));
    return kExitListen;
  }
  serving = server->get();

  std::unique_ptr<telemetry::HttpServer> http;
  if (options.listen.http) {
    auto ready = [&]() -> absl::Status {
      if (draining) return absl::UnavailableError("draining");
      return engine.ready() ? absl::OkStatus() : absl::UnavailableError("starting");
    };
    absl::StatusOr<std::unique_ptr<telemetry::HttpServer>> started_http = telemetry::HttpServer::Start(
        options.listen.http->host, options.listen.http->port,
        {.metrics = [&] { return metrics.Text(); },
         .ready = std::move(ready),
         .status = [&] { return telemetry::StatusJson(facts, state(), metrics, history.Read()); }});
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

  const core::SteadyTime prewarm_began = core::SteadyNow();
  config::TouchHeap(HeapToTouch());
  const absl::Status warm = engine.Start(
      [&](int done, int total, std::string_view what) {
        to_prewarm = total;
        prewarmed = done;
        spdlog::debug("prewarm {}/{} {}", done, total, what);
      },
      declared,
      [&](const core::DeclaredShape& shape, const absl::Status& why) {
        ++prewarm_refused;
        spdlog::warn("--prewarm {} cannot be run here: {}", shape.text, std::string(why.message()));
      });
  if (!warm.ok()) {
    spdlog::error("prewarm failed: {}", std::string(warm.message()));
    return device_lost ? kExitDeviceLost : kExitFailure;
  }
  prewarm_ns = absl::ToInt64Nanoseconds(core::Since(prewarm_began));
  spdlog::info("prewarm took {:.3f} s: {} kernels, {} shapes of which {} cannot be run here", prewarm_ns.load() * 1e-9,
               to_prewarm.load() - static_cast<std::int64_t>(declared.size()), declared.size(), prewarm_refused.load());
  ready_after_ns = absl::ToInt64Nanoseconds(absl::Now() - started);
  (*server)->health().SetServing(true);
  spdlog::info("ready after {:.3f} s: backend {}, {} threads, {} kernels", absl::ToDoubleSeconds(absl::Now() - started),
               engine.backend().name(), options.compute.cpu_threads, kernels.size());

  const sigset_t stop_signals = config::StopSignals();
  int signal_number = 0;
  sigwait(&stop_signals, &signal_number);
  config::EndAtOnceOnStopSignals();  // a second one

  draining = true;
  (*server)->health().SetServing(false);
  if (device_lost) {
    (*server)->Drain(kDrainWhenLost);
    return kExitDeviceLost;
  }
  spdlog::info("signal {}: not ready; taking calls for another {}", signal_number,
               absl::FormatDuration(options.lifecycle.drain_delay));
  absl::SleepFor(options.lifecycle.drain_delay);
  spdlog::info("draining: {} calls in flight, at most {}", (*server)->in_flight(),
               absl::FormatDuration(options.lifecycle.drain_timeout));
  const bool clean = (*server)->Drain(options.lifecycle.drain_timeout);
  serving = nullptr;
  if (http != nullptr) http->Stop();
  if (!clean) spdlog::error("the drain ran out of time: calls were cancelled");
  spdlog::info("stopped");
  return clean ? 0 : kExitFailure;
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
