// Small calls, idle cost and refusals of a real daemon beside a bare gRPC server, both in processes of their own, met
// by the same kind of client in turns. Prints one JSON object; run_service_small.py keeps it.
#include <sched.h>
#include <spawn.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "kernd/v1/compute.grpc.pb.h"
#include "nlohmann/json.hpp"
#include "tests/support/daemon.h"
#include "tests/support/paths.h"
#include "tests/support/raw_client.h"
#include "tests/support/requests.h"

namespace kernd::testing {
namespace {

using Clock = std::chrono::steady_clock;

double Since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double Quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(q * static_cast<double>(values.size() - 1))];
}

// Servers on one core, the client on another: where the scheduler puts them moves every number by a factor of two. A
// child inherits its parent's core. No effect where there is one core only.
void PinTo(int which) {
  static const std::vector<int> cores = [] {
    cpu_set_t allowed;
    sched_getaffinity(0, sizeof(allowed), &allowed);
    std::vector<int> list;
    for (int i = 0; i < CPU_SETSIZE; ++i) {
      if (CPU_ISSET(i, &allowed)) list.push_back(i);
    }
    return list;
  }();
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(cores[static_cast<std::size_t>(which) % cores.size()], &one);
  sched_setaffinity(0, sizeof(one), &one);
}

// The peer as a child process.
class Echo {
 public:
  Echo() {
    int out[2];
    if (pipe(out) != 0) std::exit(1);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    std::string program = ProgramPath("service_peer"), kind = "raw", threads = "--threads=1";
    char* argv[] = {program.data(), kind.data(), threads.data(), nullptr};
    if (posix_spawn(&pid_, program.c_str(), &actions, nullptr, argv, environ) != 0) std::exit(1);
    posix_spawn_file_actions_destroy(&actions);
    close(out[1]);
    FILE* lines = fdopen(out[0], "r");
    char endpoint[64];
    if (std::fscanf(lines, "%63s", endpoint) != 1) std::exit(1);
    std::fclose(lines);
    endpoint_ = endpoint;
  }
  ~Echo() { kill(pid_, SIGKILL); }
  const std::string& endpoint() const { return endpoint_; }

 private:
  pid_t pid_ = -1;
  std::string endpoint_;
};

class Client {
 public:
  explicit Client(const std::string& endpoint) : stub_(v1::Compute::NewStub(Connect(endpoint))) {
    *request_.mutable_matmul()->mutable_a() = F32({16, 16});
    *request_.mutable_matmul()->mutable_b() = F32({16, 16});
  }
  // Seconds of one call.
  double Call() {
    grpc::ClientContext context;
    v1::MatmulReply reply;
    const Clock::time_point start = Clock::now();
    const grpc::Status status = stub_->Matmul(&context, request_, &reply);
    const double seconds = Since(start);
    if (!status.ok()) {
      std::fprintf(stderr, "the call failed: %s\n", status.error_message().c_str());
      std::exit(1);
    }
    return seconds;
  }

 private:
  v1::MatmulRequest request_;
  const std::unique_ptr<v1::Compute::Stub> stub_;
};

nlohmann::json Row(const std::string& name, double value, double peer_value) {
  return {{"name", name},
          {"value", value * 1e6},
          {"unit", "us"},
          {"peer", "grpc-raw-echo"},
          {"peer_value", peer_value * 1e6},
          {"ratio", peer_value / value}};
}

// In blocks, one server after the other, so that both meet the same machine.
void SmallCalls(Client& kernd, Client& echo, nlohmann::json& rows) {
  constexpr int kBlocks = 100, kCalls = 100;
  std::vector<double> ours, theirs;
  for (int block = 0; block < kBlocks; ++block) {
    for (int i = 0; i < kCalls; ++i) (block == 0 ? kernd.Call() : (ours.push_back(kernd.Call()), 0.0));
    for (int i = 0; i < kCalls; ++i) (block == 0 ? echo.Call() : (theirs.push_back(echo.Call()), 0.0));
  }
  rows.push_back(Row("service/small/matmul16/p50", Quantile(ours, 0.5), Quantile(theirs, 0.5)));
  rows.push_back(Row("service/small/matmul16/p99", Quantile(ours, 0.99), Quantile(theirs, 0.99)));
}

// One call of each after ten idle seconds, ten times; who goes first alternates.
void CallsAfterIdle(Client& kernd, Client& echo, nlohmann::json& rows) {
  std::vector<double> ours, theirs;
  for (int i = 0; i < 10; ++i) {
    std::this_thread::sleep_for(std::chrono::seconds(10));
    if (i % 2 == 0) ours.push_back(kernd.Call());
    theirs.push_back(echo.Call());
    if (i % 2 == 1) ours.push_back(kernd.Call());
  }
  rows.push_back(Row("service/idle10s/matmul16/median", Quantile(ours, 0.5), Quantile(theirs, 0.5)));
  rows.push_back(Row("service/idle10s/matmul16/max", Quantile(ours, 1), Quantile(theirs, 1)));
}

// A declared 512 MB call that is refused: until the client has the answer, and by how much the daemon grows.
void Refusals(nlohmann::json& rows) {
  const auto daemon = Daemon::Start({"--max-message-bytes", "256MiB"});
  const std::string body(std::size_t{512} << 20, '\0');
  const auto channel = Connect(daemon->endpoint());
  const std::int64_t before = daemon->PeakResidentBytes();
  std::vector<double> seconds;
  for (int i = 0; i < 10; ++i) {
    const Clock::time_point start = Clock::now();
    const RawReply reply = RawCall(channel, "/kernd.v1.Compute/Matmul", body,
                                   {.metadata = {{"kernd-body-bytes", std::to_string(body.size())}}});
    // The client's own copy of the body into a slice is not the daemon's time; it is measured and taken off.
    const Clock::time_point copied = Clock::now();
    const grpc::Slice slice(body);
    seconds.push_back(std::chrono::duration<double>(copied - start).count() - Since(copied));
    if (reply.status.error_code() != grpc::StatusCode::RESOURCE_EXHAUSTED) std::exit(1);
  }
  rows.push_back({{"name", "service/refused/512MiB/median"}, {"value", Quantile(seconds, 0.5) * 1e3}, {"unit", "ms"}});
  rows.push_back({{"name", "service/refused/512MiB/daemon_growth"},
                  {"value", static_cast<double>(daemon->PeakResidentBytes() - before) / 1e6},
                  {"unit", "MB"}});
}

}  // namespace

int Main() {
  nlohmann::json rows = nlohmann::json::array();
  PinTo(1);
  const auto daemon = Daemon::Start({"--log-calls", "false"});
  if (daemon == nullptr) return 1;
  const Echo echo_server;
  PinTo(0);
  Client kernd(daemon->endpoint()), echo(echo_server.endpoint());
  SmallCalls(kernd, echo, rows);
  rows.push_back({{"name", "service/idle/resident"},
                  {"value", static_cast<double>(daemon->ResidentBytes()) / (1 << 20)},
                  {"unit", "MiB"}});
  const double cpu = daemon->CpuSeconds();
  const Clock::time_point start = Clock::now();
  CallsAfterIdle(kernd, echo, rows);
  rows.push_back({{"name", "service/idle/cpu"},
                  {"value", 100 * (daemon->CpuSeconds() - cpu) / Since(start)},
                  {"unit", "% of a core"}});
  Refusals(rows);
  std::printf("%s\n", nlohmann::json{{"results", rows}}.dump(1).c_str());
  return 0;
}

}  // namespace kernd::testing

int main() {
  return kernd::testing::Main();
}
