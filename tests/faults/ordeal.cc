#include "tests/faults/ordeal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <vector>

#include "kernd/v1/device.pb.h"
#include "tests/support/raw_client.h"
#include "tests/support/requests.h"

namespace kernd::testing {
namespace {

using Clock = std::chrono::steady_clock;
using grpc::StatusCode;

constexpr auto kPause = std::chrono::milliseconds(3);
constexpr int kRepeats = 100;

double MillisecondsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

std::int64_t OpenDescriptors(const Daemon& daemon) {
  const auto folder = std::filesystem::directory_iterator("/proc/" + std::to_string(daemon.pid()) + "/fd");
  return std::distance(begin(folder), end(folder));
}

// The resident memory of a daemon that has given back what its heap keeps for the next call.
std::int64_t TrimmedResidentBytes(const Daemon& daemon) {
  v1::TrimPoolReply reply;
  const RawReply raw = Call(Connect(daemon.endpoint()), "/kernd.v1.Device/TrimPool", v1::TrimPoolRequest(), reply);
  EXPECT_TRUE(raw.status.ok()) << raw.status.error_message();
  return daemon.ResidentBytes();
}

void AwaitRest(const Daemon& daemon) {
  for (const char* gauge : {"kernd_requests_in_flight", "kernd_queue_depth", "kernd_body_budget_used_bytes",
                            "kernd_memory_used_bytes{pool=\"memory\"}"}) {
    EXPECT_TRUE(daemon.WaitForMetric(gauge, 0)) << gauge << " is " << daemon.Metrics()[gauge];
  }
}

// The largest resident memory of a daemon while this lives.
class PeakWatch {
 public:
  explicit PeakWatch(const Daemon& daemon)
      : thread_([this, &daemon] {
          while (!stop_) {
            peak_ = std::max<std::int64_t>(peak_, daemon.ResidentBytes());
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
          }
        }) {}
  ~PeakWatch() { Stop(); }
  std::int64_t Stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
    return peak_;
  }

 private:
  std::atomic<bool> stop_ = false;
  std::atomic<std::int64_t> peak_ = 0;
  std::thread thread_;
};

}  // namespace

int Size(int quick, int full) {
  const char* size = std::getenv("KERND_FAULTS");
  return size != nullptr && std::strcmp(size, "full") == 0 ? full : quick;
}

OtherCaller::OtherCaller(const std::string& endpoint, Refusals refusals)
    : refusals_(refusals), thread_([this, endpoint] { Loop(endpoint); }) {}

OtherCaller::Report OtherCaller::Stop() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
  return report_;
}

void OtherCaller::Loop(const std::string& endpoint) {
  const auto channel = Connect(endpoint);
  while (!stop_) {
    const auto start = Clock::now();
    const std::string wrong = CallOnce(channel);
    report_.worst_ms = std::max(report_.worst_ms, MillisecondsSince(start));
    ++report_.calls;
    if (!wrong.empty()) {
      ADD_FAILURE() << "call " << report_.calls << " of the other caller, after " << MillisecondsSince(start)
                    << " ms: " << wrong;
      return;
    }
    std::this_thread::sleep_for(kPause);
  }
}

std::string OtherCaller::CallOnce(const std::shared_ptr<grpc::Channel>& channel) {
  v1::MatmulReply reply;
  RawReply raw;
  for (int attempt = 0; attempt < kRepeats; ++attempt) {
    raw = Call(channel, kMatmul, SmallMatmul(), reply, {.metadata = {{"kernd-body-bytes", "128"}}});
    const StatusCode code = raw.status.error_code();
    const bool refused =
        code == StatusCode::UNAVAILABLE || (code == StatusCode::RESOURCE_EXHAUSTED && raw.retry_after_s);
    if (!refused || refusals_ == Refusals::kNever) break;
    ++report_.repeats;
    std::this_thread::sleep_for(std::chrono::duration<double>(raw.retry_after_s.value_or(0.02)));
  }
  if (!raw.status.ok()) {
    return std::to_string(raw.status.error_code()) + " " + raw.reason + " " + raw.status.error_message();
  }
  return Floats(reply.d()) == std::vector<float>{19, 22, 43, 50} ? "" : "a wrong answer";
}

void Endure(const Daemon& daemon, const Fault& fault) {
  const auto record = [&](const std::string& name, double value) {
    ::testing::Test::RecordProperty((fault.name.empty() ? "" : fault.name + "_") + name, std::to_string(value));
  };
  { OtherCaller warm(daemon.endpoint(), fault.refusals); }
  fault.act();
  AwaitRest(daemon);
  if (::testing::Test::HasFailure()) return;
  const std::int64_t resident = TrimmedResidentBytes(daemon), descriptors = OpenDescriptors(daemon);

  const auto start = Clock::now();
  const double cpu = daemon.CpuSeconds();
  OtherCaller other(daemon.endpoint(), fault.refusals);
  PeakWatch watch(daemon);
  fault.act();
  record("took_s", MillisecondsSince(start) / 1e3);
  record("daemon_cpu_s", daemon.CpuSeconds() - cpu);
  AwaitRest(daemon);
  const OtherCaller::Report report = other.Stop();
  const std::int64_t peak = watch.Stop() - resident;
  EXPECT_GT(report.calls, 0);
  EXPECT_LE(peak, fault.peak_bytes);

  // Connections that were closed are closed by the daemon when it looks at them next.
  std::int64_t open = OpenDescriptors(daemon);
  for (int tries = 0; open > descriptors && tries < 1000; ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    open = OpenDescriptors(daemon);
  }
  EXPECT_LE(open, descriptors);
  const std::int64_t kept = TrimmedResidentBytes(daemon) - resident;
  EXPECT_LE(kept, fault.kept_bytes);
  record("other_calls", report.calls);
  record("other_repeats", report.repeats);
  record("other_worst_ms", report.worst_ms);
  record("peak_growth_MiB", static_cast<double>(peak) / kMiB);
  record("kept_growth_MiB", static_cast<double>(kept) / kMiB);
}

double CallsEnded(const Daemon& daemon, const std::string& code) {
  double sum = 0;
  for (const auto& [name, value] : daemon.Metrics()) {
    if (name.starts_with("kernd_requests_total{") &&
        (code.empty() || name.find("code=\"" + code + "\"") != std::string::npos)) {
      sum += value;
    }
  }
  return sum;
}

}  // namespace kernd::testing
