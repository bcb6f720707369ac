#include "client/cli/bench/load.h"

#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <latch>
#include <mutex>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/reference/random.h"

namespace kernd::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kTick{50};
constexpr std::chrono::milliseconds kNap{20};  // longest sleep that does not look at the end
constexpr std::uint32_t kDrawStream = 0xd7a;   // apart from those of operands and arrivals

// What is next: a problem, and in an open loop when.
class Schedule {
 public:
  struct Turn {
    absl::Duration due;  // open loop
    std::size_t call = 0;
  };

  Schedule(const Load& load, std::span<const BenchCall> calls) : draw_(load.seed, kDrawStream) {
    if (load.rate) arrivals_.emplace(load.arrivals, *load.rate, load.seed);
    std::int64_t sum = 0;
    for (const BenchCall& call : calls) weights_.push_back(sum += call.problem().weight);
  }

  // Thread-safe.
  Turn Next() {
    const std::lock_guard lock(mutex_);
    Turn turn;
    if (arrivals_) turn.due = arrivals_->Next();
    if (weights_.size() > 1) {
      const auto drawn = static_cast<std::int64_t>(draw_.Next() * static_cast<double>(weights_.back()));
      turn.call =
          static_cast<std::size_t>(std::upper_bound(weights_.begin(), weights_.end(), drawn) - weights_.begin());
    }
    return turn;
  }

 private:
  std::vector<std::int64_t> weights_;  // running sums; constant after construction
  std::mutex mutex_;
  std::optional<Arrivals> arrivals_;  // guarded by mutex_
  reference::Uniform draw_;           // guarded by mutex_
};

absl::Duration Between(Clock::time_point from, Clock::time_point to) {
  return absl::FromChrono(to - from);
}

// What the threads of a run share.
struct Run {
  Run(const client::Client& the_client, std::span<const BenchCall> the_calls, const Load& the_load,
      client::CallOptions the_options)
      : client(the_client), calls(the_calls), load(the_load), options(std::move(the_options)), schedule(load, calls) {}

  const client::Client& client;
  const std::span<const BenchCall> calls;
  const Load& load;
  const client::CallOptions options;
  Schedule schedule;
  std::latch begin{1};
  // Set before `begin`; afterwards only the last two change, to an earlier time, when the run is stopped.
  Clock::time_point start, window;
  std::atomic<Clock::time_point> end, give_up;  // nothing due after `end`; nothing sent after `give_up`

  std::mutex mutex;
  std::condition_variable done;
  int running = 0;  // threads; guarded by mutex
};

class Worker {
 public:
  explicit Worker(Run& run) : run_(run) {}

  void Loop() {
    prctl(PR_SET_TIMERSLACK, 1UL);  // the kernel's usual 50 us late would be taken for the daemon's
    run_.begin.wait();
    const bool open = run_.load.rate.has_value();
    while (true) {
      const Schedule::Turn turn = run_.schedule.Next();
      const Clock::time_point due = open ? run_.start + absl::ToChronoNanoseconds(turn.due) : Clock::now();
      if (due >= run_.end.load() || !SleepUntil(due)) break;
      const Clock::time_point sent = open ? Clock::now() : due;
      if (sent > run_.give_up.load()) {
        CutOff(due, sent);
      } else {
        Call(run_.calls[turn.call], due, sent);
      }
    }
    const std::lock_guard lock(run_.mutex);
    --run_.running;
    run_.done.notify_one();
  }

  // After the loop.
  void AddTo(LoadResult& all) const {
    all.latency.Merge(result_.latency);
    all.roundtrip.Merge(result_.roundtrip);
    all.lateness.Merge(result_.lateness);
    all.server.Merge(result_.server);
    for (std::size_t i = 0; i < all.stage_us.size(); ++i) all.stage_us[i] += result_.stage_us[i];
    all.server_us += result_.server_us;
    for (const auto& [error, count] : result_.errors) all.errors[error] += count;
    all.num_errors += result_.num_errors;
    all.num_wrong += result_.num_wrong;
    if (all.first_error.empty()) all.first_error = result_.first_error;
    all.checked += result_.checked;
    all.cut_off += result_.cut_off;
    const bool open = all.load.rate.has_value();
    const double seconds = open ? absl::ToDoubleSeconds(all.window) : absl::ToDoubleSeconds(Between(first_, last_));
    if (seconds <= 0) return;
    all.calls_per_second += static_cast<double>(replies_) / seconds;
    all.sent_per_second += static_cast<double>(sent_bytes_) / seconds;
    all.received_per_second += static_cast<double>(received_bytes_) / seconds;
  }

 private:
  // False where the run ended before.
  bool SleepUntil(Clock::time_point due) const {
    while (due > Clock::now()) {
      if (due >= run_.end.load()) return false;
      std::this_thread::sleep_until(std::min(due, Clock::now() + kNap));
    }
    return true;
  }

  void Call(const BenchCall& call, Clock::time_point due, Clock::time_point sent) {
    const absl::StatusOr<BenchReply> reply = call.Call(run_.client, run_.options);
    const Clock::time_point back = Clock::now();
    if (!reply.ok()) {
      if (run_.options.stop.stop_requested()) return CutOff(due, back);
      return Failed(NameOf(reply.status()), reply.status());
    }
    const int every = run_.load.check_every;
    const bool bits = every > 0 && turn_++ % every == 0;
    result_.checked += bits;
    if (const absl::Status right = call.Judge(*reply, bits); !right.ok()) {
      ++result_.num_wrong;
      return Failed("WRONG RESULT", right);
    }
    Measure(call, *reply, due, sent, back);
  }

  void Measure(const BenchCall& call, const BenchReply& reply, Clock::time_point due, Clock::time_point sent,
               Clock::time_point back) {
    const bool open = run_.load.rate.has_value(), measured = due >= run_.window;
    if (open ? back >= run_.window && back < run_.end.load() : measured) {
      if (replies_++ == 0) first_ = sent;
      last_ = back;
      sent_bytes_ += call.sent_bytes();
      received_bytes_ += call.received_bytes();
    }
    if (!measured) return;
    result_.latency.Add(Between(due, back));
    result_.roundtrip.Add(Between(sent, back));
    if (open) result_.lateness.Add(Between(due, sent));
    result_.server.Add(absl::Microseconds(reply.timing.total_us));
    result_.server_us += reply.timing.total_us;
    const auto stages = Stages(reply.timing);
    for (std::size_t i = 0; i < stages.size(); ++i) result_.stage_us[i] += stages[i].us;
  }

  void CutOff(Clock::time_point due, Clock::time_point now) {
    ++result_.cut_off;
    if (due >= run_.window) result_.latency.Add(Between(due, now));
  }

  void Failed(const std::string& name, const absl::Status& status) {
    ++result_.errors[name];
    if (result_.num_errors++ == 0) result_.first_error = std::string(status.message());
  }

  static std::string NameOf(const absl::Status& status) {
    const std::string reason = client::DetailsOf(status).reason;
    return absl::StatusCodeToString(status.code()) + (reason.empty() ? "" : " (" + reason + ")");
  }

  Run& run_;
  LoadResult result_;  // sums where the sum of all threads has means; rates are left alone
  std::int64_t turn_ = 0;
  // For the rates.
  std::int64_t replies_ = 0, sent_bytes_ = 0, received_bytes_ = 0;
  Clock::time_point first_, last_;
};

}  // namespace

LoadResult RunLoad(const client::Client& client, std::span<const BenchCall> calls, const Load& load,
                   client::CallOptions options, const std::function<bool(absl::Duration)>& go_on) {
  std::stop_source stop;
  options.stop = stop.get_token();
  options.retry = client::RetryPolicy{.max_attempts = 1};
  Run run(client, calls, load, std::move(options));
  run.running = load.concurrency;
  std::vector<Worker> workers(static_cast<std::size_t>(load.concurrency), Worker(run));
  std::vector<std::jthread> threads;
  try {
    for (Worker& worker : workers) threads.emplace_back([&worker] { worker.Loop(); });
  } catch (...) {  // no more threads: those there are find that the run is over
    run.begin.count_down();
    throw;
  }

  run.start = Clock::now();
  run.window = run.start + absl::ToChronoNanoseconds(load.warmup);
  run.end = run.window + absl::ToChronoNanoseconds(load.duration);
  run.give_up = run.end.load() + absl::ToChronoNanoseconds(load.duration);
  run.begin.count_down();
  {
    std::unique_lock lock(run.mutex);
    while (!run.done.wait_for(lock, kTick, [&run] { return run.running == 0; })) {
      lock.unlock();
      const Clock::time_point now = Clock::now();
      if (!go_on(Between(run.start, now)) && !stop.stop_requested()) {
        run.end = std::min(run.end.load(), now);
        run.give_up = std::min(run.give_up.load(), now);
        stop.request_stop();
      }
      lock.lock();
    }
  }
  threads.clear();

  LoadResult result;
  result.load = load;
  result.window = std::max(absl::ZeroDuration(), Between(run.window, run.end));
  for (const Worker& worker : workers) worker.AddTo(result);
  const auto replies = static_cast<double>(std::max<std::int64_t>(1, result.roundtrip.count()));
  for (double& us : result.stage_us) us /= replies;
  result.server_us /= replies;
  return result;
}

}  // namespace kernd::cli
