// A real kernd as a child process, on free ports of the loopback.
#pragma once

#include <sys/types.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace kernd::testing {

// Whether daemons of this run serve from the GPU: KERND_TEST_BACKEND is "cuda". Otherwise it is the CPU.
bool OnGpu();

// The flag that bounds the memory for tensors: "64MiB", which is the least that a GPU takes.
std::string MemoryLimit(const std::string& bytes);

class Daemon {
 public:
  // Starts kernd with `flags` behind --listen and --http-listen on free ports and --backend $KERND_TEST_BACKEND (cpu
  // where it is not set), and waits until it has bound the ports; with `wait_ready` also until it serves. Null, with a
  // test failure, where it does not come up within 30 s. `runner`: a command that becomes kernd, with the words before
  // its path.
  static std::unique_ptr<Daemon> Start(const std::vector<std::string>& flags = {}, bool wait_ready = true,
                                       const std::vector<std::string>& runner = {});
  // Kills it where Stop was not called.
  ~Daemon();

  const std::string& endpoint() const { return grpc_; }
  const std::string& http() const { return http_; }
  pid_t pid() const { return pid_; }

  void Signal(int number);
  // Waits for the end, at most `seconds`. The exit code; 128 + n where signal n ended it; -1 after the time.
  int Wait(double seconds);
  // SIGTERM, then Wait.
  int Stop(double seconds = 20);

  std::int64_t ResidentBytes() const;
  std::int64_t PeakResidentBytes() const;
  // Seconds of processor time so far, all threads.
  double CpuSeconds() const;
  // What it has written to standard error.
  std::string Log() const;
  // Samples of /metrics: `name{labels}` to value.
  std::map<std::string, double> Metrics() const;
  // Waits until a sample of /metrics has this value; false after 20 s. A client has its reply before the daemon has
  // counted the call, so state is waited for, never read once.
  bool WaitForMetric(const std::string& sample, double value) const;

 private:
  Daemon() = default;
  std::int64_t StatusField(const char* name) const;

  std::string grpc_, http_, folder_;
  pid_t pid_ = -1;
};

// GET http://`address``path`: status code and body; code 0 where there is no answer.
std::pair<int, std::string> HttpGet(const std::string& address, const std::string& path);

}  // namespace kernd::testing
