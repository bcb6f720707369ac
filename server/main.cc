// kernd: wiring only. Reads the options, builds the layers from the inside out, serves until a signal, and takes them
// down in reverse. Exit codes: 0 drained, or printed what was asked for; 1 calls had to be cancelled, or a failure;
// 2 bad options; 3 an address cannot be bound; 4 no such backend here.
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "kernd/kernels/error.h"
#include "server/config/build_info.h"
#include "server/config/options.h"
#include "server/core/engine.h"
#include "server/cpu/backend.h"
#include "server/gpu/probe.h"
#include "server/rpc/handlers.h"
#include "server/rpc/server.h"
#include "server/telemetry/http_server.h"
#include "server/telemetry/log.h"
#include "server/telemetry/metrics.h"
#include "spdlog/spdlog.h"

namespace kernd {
namespace {

constexpr int kExitFailure = 1, kExitOptions = 2, kExitListen = 3, kExitBackend = 4;

// Buffers of tensors come and go with every call. By default glibc gives them back to the system each time, and the
// page faults of the next call then cost several times the call itself: keep them. TrimPool gives them back on request.
void SetUpHeap() {
#ifdef __GLIBC__
  mallopt(M_ARENA_MAX, 1);
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, INT_MAX);
  mallopt(M_TOP_PAD, 16 << 20);
#endif
}

// Debian builds Abseil with its debug checks, so that every lock in gRPC walks a global graph to look for deadlocks.
void SetUpLocks() {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
}

// As many descriptors as the system lets this process have.
void RaiseDescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
}

sigset_t StopSignals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  return set;
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

// The daemon from options to exit code.
int Serve(const config::ServerOptions& options) {
  const absl::Time started = absl::Now();
  const config::BuildInfo& build = config::GetBuildInfo();
  telemetry::Log log({.level = options.logging.level, .json = options.logging.json});
  spdlog::info("{} starting", config::VersionLine());

  const std::vector<std::string> gpus = gpu::Probe();
  if (options.compute.backend == config::BackendChoice::kCuda) {
    spdlog::error("--backend cuda: this version has no CUDA backend ({}); use --backend cpu",
                  absl::StrJoin(gpus, "; "));
    return kExitBackend;
  }
  if (options.compute.backend == config::BackendChoice::kAuto) {
    spdlog::warn("--backend auto: serving on the CPU ({})", absl::StrJoin(gpus, "; "));
  }

  core::Engine engine({.memory_limit = options.limits.memory_bytes,
                       .max_queued_calls = options.limits.max_queued_calls,
                       .max_reply_bytes = options.limits.max_message_bytes},
                      cpu::MakeBackend({.threads = options.compute.cpu_threads,
                                        .memory_total = config::ReadMachineLimits().memory_bytes}));
  rpc::MethodTable methods;
  rpc::AddComputeMethods(engine, methods);
  rpc::AddDeviceMethods(engine,
                        {.version = build.version,
                         .revision = build.revision,
                         .compiler = build.compiler,
                         .cuda_toolkit = build.cuda_toolkit,
                         .epoch = std::random_device{}() | std::uint64_t{std::random_device{}()} << 32,
                         .max_message_bytes = options.limits.max_message_bytes,
                         .not_used = gpus},
                        methods);
  methods.AddMissingMethods();

  rpc::Gate gate({.body_budget = options.limits.body_budget_bytes,
                  .default_body_bytes = options.limits.default_body_bytes,
                  .max_message_bytes = options.limits.max_message_bytes},
                 engine);
  std::atomic<bool> draining = false;
  std::atomic<std::int64_t> ready_after_ns = 0;
  std::atomic<const rpc::Server*> serving = nullptr;
  std::vector<std::string> kernels;
  for (const VariantInfo& variant : engine.backend().Variants()) kernels.push_back(variant.name);
  telemetry::Metrics metrics(methods.Names(), kernels,
                             {.version = build.version,
                              .revision = build.revision,
                              .backend = std::string(engine.backend().name()),
                              .compiler = build.compiler},
                             [&] {
                               const core::Engine::Load load = engine.load();
                               const rpc::Server* server = serving.load();
                               return telemetry::Gauges{
                                   .requests_in_flight = server == nullptr ? 0 : server->in_flight(),
                                   .queue_depth = load.queued,
                                   .body_budget_used_bytes = gate.bodies().used(),
                                   .body_budget_limit_bytes = gate.bodies().limit(),
                                   .pools = {{.pool = "memory",
                                              .used_bytes = load.memory_used,
                                              .limit_bytes = load.memory_limit,
                                              .peak_bytes = load.memory_peak}},
                                   .log_lines_dropped = log.lines_dropped(),
                                   .ready = engine.ready() && !draining,
                                   .time_to_ready = absl::Nanoseconds(ready_after_ns.load())};
                             });
  telemetry::CallLog call_log(log);
  std::vector<core::CallObserver*> observer_list = {&metrics};
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
        {.title = config::VersionLine(), .metrics = [&metrics] { return metrics.Text(); }, .ready = std::move(ready)});
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

  const absl::Status warm = engine.Start(
      [](int done, int total, std::string_view what) { spdlog::debug("prewarm {}/{} {}", done, total, what); });
  if (!warm.ok()) {
    spdlog::error("prewarm failed: {}", std::string(warm.message()));
    return kExitFailure;
  }
  ready_after_ns = absl::ToInt64Nanoseconds(absl::Now() - started);
  (*server)->health().SetServing(true);
  spdlog::info("ready after {:.3f} s: backend {}, {} threads, {} kernels", absl::ToDoubleSeconds(absl::Now() - started),
               engine.backend().name(), options.compute.cpu_threads, kernels.size());

  const sigset_t stop_signals = StopSignals();
  int signal_number = 0;
  sigwait(&stop_signals, &signal_number);
  // From now on a second signal ends the process at once.
  signal(signal_number, SIG_DFL);
  pthread_sigmask(SIG_UNBLOCK, &stop_signals, nullptr);

  draining = true;
  (*server)->health().SetServing(false);
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
  SetUpHeap();
  SetUpLocks();
  RaiseDescriptorLimit();
  signal(SIGPIPE, SIG_IGN);
  // Before any thread exists, so that every thread leaves them to sigwait.
  const sigset_t stop_signals = StopSignals();
  pthread_sigmask(SIG_BLOCK, &stop_signals, nullptr);

  const absl::StatusOr<config::Invocation> invocation = config::ParseOptions(argc, argv, config::VersionLine());
  if (!invocation.ok()) {
    std::fprintf(stderr, "kernd: %s\n", std::string(invocation.status().message()).c_str());
    return kExitOptions;
  }
  if (invocation->print) {
    std::fputs(invocation->print->c_str(), stdout);
    return 0;
  }
  return Serve(invocation->options);
}

}  // namespace
}  // namespace kernd

int main(int argc, char** argv) {
  return kernd::Main(argc, argv);
}
