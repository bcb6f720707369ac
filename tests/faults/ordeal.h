// What every fault has in common: it is done to a daemon that serves somebody else at the same time, and afterwards the
// daemon holds what it held before. Every figure ends in the test's properties, from where tests/bench/run_faults.py
// takes it: `NAME_UNIT`, for example `other_worst_ms`.
#pragma once

#include <grpcpp/channel.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "tests/support/daemon.h"

namespace kernd::testing {

inline constexpr char kMatmul[] = "/kernd.v1.Compute/Matmul";
inline constexpr char kAttention[] = "/kernd.v1.Compute/Attention";
inline constexpr std::int64_t kMiB = std::int64_t{1} << 20;

// `quick` in the ordinary tests, `full` where KERND_FAULTS=full.
int Size(int quick, int full);

// Makes a small, correct call every few milliseconds, on one connection, from its construction to Stop, and checks
// every answer. Any failure is a test failure; only where `refusals` allows it may a call be repeated after UNAVAILABLE
// or RESOURCE_EXHAUSTED, as every client with a retry policy does.
class OtherCaller {
 public:
  enum class Refusals { kNever, kWithRetry };
  OtherCaller(const std::string& endpoint, Refusals refusals);
  ~OtherCaller() { Stop(); }

  struct Report {
    int calls = 0;
    int repeats = 0;
    double worst_ms = 0;  // of one call, with its repeats
  };
  Report Stop();

 private:
  void Loop(const std::string& endpoint);
  // One call, with its repeats; empty where its answer was right, else what was wrong.
  std::string CallOnce(const std::shared_ptr<grpc::Channel>& channel);

  const Refusals refusals_;
  std::atomic<bool> stop_ = false;
  Report report_;
  std::thread thread_;
};

struct Fault {
  std::function<void()> act;
  OtherCaller::Refusals refusals = OtherCaller::Refusals::kNever;
  // How far the resident memory may rise above what it was before, while the fault lasts and after it.
  std::int64_t peak_bytes = 64 * kMiB;
  std::int64_t kept_bytes = 16 * kMiB;
  std::string name;  // before the names of its figures, where a test has several
};

// Acts twice. The first time warms up: what heap and libraries keep from then on is no loss. The second time is
// measured, beside an OtherCaller; when it is over, calls in flight, queue, memory, body budget and descriptors have to
// be back where they were, and the resident memory within `kept_bytes`.
void Endure(const Daemon& daemon, const Fault& fault);

// Of kernd_requests_total, all methods and the codes that `which` names; all codes where it is empty.
double CallsEnded(const Daemon& daemon, const std::string& code = "");

}  // namespace kernd::testing
