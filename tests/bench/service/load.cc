// service_load: one client of the service bench, a process of its own. It connects, makes a call and checks every value
// of the result, calls on until a fifth of a second has passed, and prints {"ready": true}. Then it does what each line
// of standard input says, all times in nanoseconds of CLOCK_MONOTONIC, and prints one line of JSON for it:
//
//   closed START DURATION CALLS    from START on one call after the other, until DURATION is over or CALLS were made
//   open START INTERVAL CALLS      CALLS calls, due INTERVAL apart; a latency counts from when its call was due. What
//   is
//                                  not made within twice the time counts as cut off, with the time until then
//
// Several clients that are given the same START begin together. The heap is as a program has it that knows nothing of
// it.
#include <sys/prctl.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "tests/bench/service/caller.h"

namespace kernd::bench {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::nanoseconds;

double Microseconds(Clock::duration duration) {
  return std::chrono::duration<double, std::micro>(duration).count();
}

// After so many failures in a row a block ends: a server that is gone answers quickly.
constexpr int kGiveUpAfter = 10;

struct Block {
  std::vector<double> latency_us;  // of calls that went well, and of those cut off
  std::int64_t calls = 0, cut_off = 0;
  std::map<std::string, std::int64_t> errors;  // by code
  std::string first_error;
  int failed_in_a_row = 0;

  bool hopeless() const { return failed_in_a_row >= kGiveUpAfter; }
};

class Client {
 public:
  Client(Caller& caller, std::int64_t rows) : caller_(caller), rows_(rows) {}

  absl::Status CheckEveryValue() {
    if (absl::Status status = caller_.Call(); !status.ok()) return status;
    const std::span<const float> d = caller_.d();
    if (static_cast<std::int64_t>(d.size()) != rows_)
      return absl::DataLossError(absl::StrCat("the result has ", d.size(), " rows, must be ", rows_));
    for (std::int64_t row = 0; row < rows_; ++row) {
      const float value = d[static_cast<std::size_t>(row)];
      if (value != ElementOfD(row))
        return absl::DataLossError(absl::StrCat("row ", row, " is ", value, ", must be ", ElementOfD(row)));
    }
    return absl::OkStatus();
  }

  Block Closed(Clock::time_point start, nanoseconds duration, std::int64_t calls) {
    Block block;
    std::this_thread::sleep_until(start);
    for (Clock::time_point now = start; now < start + duration && block.calls < calls && !block.hopeless();) {
      const Clock::time_point sent = Clock::now();
      Call(sent, block);
      now = Clock::now();
    }
    return block;
  }

  Block Open(Clock::time_point start, nanoseconds interval, std::int64_t calls) {
    Block block;
    const Clock::time_point end = start + 2 * calls * interval;
    for (std::int64_t i = 0; i < calls; ++i) {
      const Clock::time_point due = start + i * interval;
      if (Clock::now() > end || block.hopeless()) {
        block.latency_us.push_back(Microseconds(end - due));
        ++block.cut_off;
        continue;
      }
      std::this_thread::sleep_until(due);
      Call(due, block);
    }
    return block;
  }

 private:
  // One call, whose latency counts from `from`.
  void Call(Clock::time_point from, Block& block) {
    absl::Status status = caller_.Call();
    const Clock::duration latency = Clock::now() - from;
    ++block.calls;
    // Every value was checked once, and only a look at the last one costs no time here.
    const std::span<const float> d = caller_.d();
    if (status.ok() && (static_cast<std::int64_t>(d.size()) != rows_ || d.back() != ElementOfD(rows_ - 1)))
      status = absl::DataLossError("wrong result");
    block.failed_in_a_row = status.ok() ? 0 : block.failed_in_a_row + 1;
    if (status.ok()) {
      block.latency_us.push_back(Microseconds(latency));
      return;
    }
    ++block.errors[absl::StatusCodeToString(status.code())];
    if (block.first_error.empty()) block.first_error = std::string(status.message());
  }

  Caller& caller_;
  const std::int64_t rows_;
};

void Print(const nlohmann::json& line) {
  std::printf("%s\n", line.dump().c_str());
  std::fflush(stdout);
}

int Run(const Mode& mode, const std::string& target, std::int64_t rows) {
  absl::StatusOr<std::unique_ptr<Caller>> caller = mode.make(target, rows);
  absl::Status status = caller.status();
  const Clock::time_point begun = Clock::now();
  if (status.ok()) status = Client(**caller, rows).CheckEveryValue();
  while (status.ok() && Clock::now() < begun + std::chrono::milliseconds(200)) status = (*caller)->Call();
  if (!status.ok()) {
    Print({{"ready", false},
           {"code", absl::StatusCodeToString(status.code())},
           {"error", std::string(status.message())}});
    return 1;
  }
  Client client(**caller, rows);
  Print({{"ready", true}});
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string kind;
    std::int64_t start_ns = 0, time_ns = 0, calls = 0;
    if (!(words >> kind >> start_ns >> time_ns >> calls) || (kind != "closed" && kind != "open") || time_ns < 0) {
      std::fprintf(stderr, "service_load: no such command: %s\n", line.c_str());
      return 2;
    }
    const Clock::time_point start{nanoseconds(start_ns)};
    const Block block = kind == "closed" ? client.Closed(start, nanoseconds(time_ns), calls)
                                         : client.Open(start, nanoseconds(time_ns), calls);
    std::int64_t failed = 0;
    for (const auto& [code, count] : block.errors) failed += count;
    Print({{"latency_us", block.latency_us},
           {"seconds", 1e-6 * Microseconds(Clock::now() - start)},
           {"bytes", (block.calls - failed) * (*caller)->MovedBytes(rows)},
           {"calls", block.calls},
           {"cut_off", block.cut_off},
           {"errors", block.errors},
           {"first_error", block.first_error}});
  }
  return 0;
}

}  // namespace
}  // namespace kernd::bench

int main(int argc, char** argv) {
  prctl(PR_SET_TIMERSLACK, 1UL);  // a call is due when it is due, not up to 50 us later
  CLI::App app("One client of the service bench; run_service.py starts it.");
  std::string name, target, modes;
  std::int64_t rows = 0;
  for (const kernd::bench::Mode& mode : kernd::bench::Modes())
    modes += std::string("\n  ") + mode.name + ": " + mode.help;
  app.add_option("--mode", name, "One of:" + modes)->required();
  app.add_option("--target", target, "HOST:PORT or unix:PATH");
  app.add_option("--rows", rows, "Rows of A and D")->required()->check(CLI::Range(1, 1 << 30));
  CLI11_PARSE(app, argc, argv);
  for (const kernd::bench::Mode& mode : kernd::bench::Modes()) {
    if (name == mode.name) return kernd::bench::Run(mode, target, rows);
  }
  std::fprintf(stderr, "service_load: no mode is named %s; --help lists them\n", name.c_str());
  return 2;
}
