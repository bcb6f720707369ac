// kernctl bench: loads on a daemon, one after the other.
#include <algorithm>
#include <csignal>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/bench/call.h"
#include "client/cli/bench/load.h"
#include "client/cli/bench/mix.h"
#include "client/cli/bench/plot.h"
#include "client/cli/bench/report.h"
#include "client/cli/commands.h"
#include "client/cli/files/file.h"
#include "client/cli/operation.h"
#include "client/cli/progress.h"
#include "client/cli/values.h"
#include "kernd/kernels/error.h"

namespace kernd::cli {
namespace {

constexpr int kMaxConcurrency = 512, kMaxConnections = 64;
constexpr int kOpenConcurrency = 64;
constexpr double kMaxRate = 1e6;
constexpr int kInterrupted = 128 + SIGINT;

struct Flags {
  std::string op = "matmul", shape, dtype = "F16", mix, place = "auto";
  bool causal = false;
  std::vector<double> rates;
  std::vector<int> concurrency;
  std::string arrivals = "poisson", warmup = "1s", duration = "5s", until_p99, plot;
  int connections = 1, check = 16;
  std::uint64_t seed = 0;
  bool allow_errors = false;
};

// While it lives, the first Ctrl-C is a wish to see what there is; the second one ends the program as ever.
class Interrupt {
 public:
  Interrupt() {
    seen_ = 0;
    struct sigaction action = {};
    action.sa_handler = [](int) { seen_ = 1; };
    action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
    sigaction(SIGINT, &action, &before_);
  }
  ~Interrupt() { sigaction(SIGINT, &before_, nullptr); }
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  bool seen() const { return seen_ != 0; }

 private:
  static volatile std::sig_atomic_t seen_;
  struct sigaction before_ = {};
};

volatile std::sig_atomic_t Interrupt::seen_ = 0;

CLI::Validator IsRate() {
  return CLI::Validator(
      [](const std::string& text) {
        double rate = 0;
        const bool legal = CLI::detail::lexical_cast(text, rate) && rate > 0 && rate <= kMaxRate;
        return legal ? std::string() : "'" + text + "' is not a rate of more than 0 and at most 1e6 calls/s";
      },
      "R");
}

absl::StatusOr<std::vector<BenchCall>> CallsOf(const Flags& flags) {
  std::vector<BenchProblem> problems;
  if (!flags.mix.empty()) {
    KERND_ASSIGN_OR_RETURN(problems, ReadMix(flags.mix));
  } else {
    const std::string shape = !flags.shape.empty() ? flags.shape : flags.op == "matmul" ? "256x256x256" : "1x8x128x64";
    KERND_ASSIGN_OR_RETURN(problems.emplace_back(),
                           MakeProblem("--shape", flags.op, shape, DataTypeOf(flags.dtype), flags.causal));
  }
  std::vector<BenchCall> calls;
  for (const BenchProblem& problem : problems) {
    KERND_ASSIGN_OR_RETURN(calls.emplace_back(), BenchCall::Make(problem, flags.seed));
  }
  return calls;
}

// One for each row.
absl::StatusOr<std::vector<Load>> LoadsOf(const Flags& flags) {
  Load load{.arrivals = flags.arrivals == "poisson" ? ArrivalKind::kPoisson : ArrivalKind::kConstant,
            .warmup = DurationOf(flags.warmup),
            .duration = DurationOf(flags.duration),
            .seed = flags.seed,
            .check_every = flags.check};
  std::vector<Load> loads;
  if (flags.rates.empty()) {
    for (const int concurrency : flags.concurrency.empty() ? std::vector<int>{1} : flags.concurrency) {
      load.concurrency = concurrency;
      loads.push_back(load);
    }
  } else {
    if (flags.concurrency.size() > 1) {
      return absl::InvalidArgumentError("--concurrency: one number with --rate, the most calls in flight");
    }
    load.concurrency = flags.concurrency.empty() ? kOpenConcurrency : flags.concurrency.front();
    for (const double rate : flags.rates) {
      load.rate = rate;
      loads.push_back(load);
    }
  }
  const auto size = [](const Load& l) { return l.rate.value_or(l.concurrency); };
  for (std::size_t i = 1; i < loads.size() && !flags.until_p99.empty(); ++i) {
    if (size(loads[i]) <= size(loads[i - 1])) {
      return absl::InvalidArgumentError("--until-p99: rates, or numbers of calls in flight, must rise");
    }
  }
  return loads;
}

Place PlaceOf(const std::string& name) {
  if (name == "inline") return Place::kInline;
  if (name == "striped") return Place::kStriped;
  if (name == "shared") return Place::kShared;
  return name == "resident" ? Place::kResident : Place::kAuto;
}

absl::StatusOr<client::Client> Connect(const Context& context, int connections, Place place) {
  client::ClientOptions options{.endpoint = context.endpoint, .timeout = context.Timeout(), .channels = connections};
  if (place == Place::kInline) options.transfer = client::Transfer::kInline;
  if (place == Place::kStriped) options.transfer = client::Transfer::kStriped;
  return client::Client::Connect(options);
}

// That the socket of shared memory cannot be reached says nothing of the connection, which stands.
absl::Status SharedMemoryError(const absl::Status& status) {
  if (client::DetailsOf(status).reason != client::reason::kNotConnected) return status;
  return absl::FailedPreconditionError(
      absl::StrCat("--place shared: ", status.message(),
                   "; the daemon's --shared-memory-socket must be on this host, and open to this user"));
}

// The connections stand, operands are in `*session` where they shall stay at the daemon or be shared with it, and every
// call has been answered once, as it must be; what the daemon is. At most `in_flight` calls are made at once.
absl::StatusOr<client::Capabilities> Prepare(const Context& context, const client::Client& client, Place place,
                                             int in_flight, std::optional<client::Session>* session,
                                             std::vector<BenchCall>& calls) {
  const client::CallOptions options = context.CallOptions();
  KERND_ASSIGN_OR_RETURN(client::Capabilities daemon, client.GetCapabilities(options));
  KERND_RETURN_IF_ERROR(client.AwaitConnection(context.Timeout()));
  if (place == Place::kResident || place == Place::kShared) {
    KERND_ASSIGN_OR_RETURN(*session, client.OpenSession({.label = "kernctl bench"}, options));
  }
  std::uint64_t next_id = 1;
  for (BenchCall& call : calls) {
    if (place == Place::kResident) KERND_RETURN_IF_ERROR(call.MoveTo(**session, &next_id, options));
    if (place == Place::kShared) {
      KERND_RETURN_IF_ERROR(SharedMemoryError(call.Share(**session, in_flight, options)));
    }
  }
  for (BenchCall& call : calls) KERND_RETURN_IF_ERROR(call.First(client, options));
  return daemon;
}

int ExitCodeOf(const Flags& flags, const BenchReport& report, bool interrupted) {
  std::int64_t errors = 0, wrong = 0;
  for (const LoadResult& row : report.rows()) {
    errors += row.num_errors;
    wrong += row.num_wrong;
  }
  if (wrong > 0) return kWrong;
  if (errors > 0 && !flags.allow_errors) return kCallFailed;
  if (interrupted) return kInterrupted;
  return report.num_within() == 0 ? kWrong : kOk;
}

int RunBench(const Context& context, const Flags& flags) {
  const absl::StatusOr<std::vector<Load>> loads = LoadsOf(flags);
  if (!loads.ok()) return context.BadArguments(loads.status());
  if (!flags.plot.empty()) {
    if (const absl::Status writable = CheckWritable(flags.plot); !writable.ok()) return context.BadArguments(writable);
  }
  std::optional<client::Session> session;  // outlives the calls, which may point to it
  absl::StatusOr<std::vector<BenchCall>> calls = CallsOf(flags);
  if (!calls.ok()) return context.BadArguments(calls.status());
  const Place place = PlaceOf(flags.place);
  const absl::StatusOr<client::Client> client = Connect(context, flags.connections, place);
  if (!client.ok()) return context.BadArguments(client.status());
  int in_flight = 0;
  for (const Load& load : *loads) in_flight = std::max(in_flight, load.concurrency);
  const absl::StatusOr<client::Capabilities> daemon = Prepare(context, *client, place, in_flight, &session, *calls);
  if (!daemon.ok()) return context.CallFailed(daemon.status());

  BenchSettings settings{
      .load = loads->front(), .connections = flags.connections, .place = flags.place, .mix = flags.mix};
  if (!flags.until_p99.empty()) settings.until_p99 = DurationOf(flags.until_p99);
  BenchReport report(context, settings, *daemon, *calls);
  const Interrupt interrupt;
  const absl::Duration row_time = settings.load.warmup + settings.load.duration;
  Progress progress(context.err, context.terminal.progress,
                    absl::ToInt64Seconds(static_cast<double>(loads->size()) * row_time));
  for (std::size_t i = 0; i < loads->size() && !interrupt.seen(); ++i) {
    const Load& load = (*loads)[i];
    const std::string what =
        load.rate ? absl::StrFormat("s, %g calls/s", *load.rate) : absl::StrFormat("s, %d in flight", load.concurrency);
    report.Add(RunLoad(*client, *calls, load, context.CallOptions(), [&](absl::Duration spent) {
      progress.Step(absl::ToInt64Seconds(static_cast<double>(i) * row_time + std::min(spent, row_time)), what);
      return !interrupt.seen();
    }));
    progress.Hide();
    const LoadResult& row = report.rows().back();
    if (!BenchReport::Within(settings, row)) break;
    // Nobody answers any more: nothing that comes after would say anything else.
    if (row.roundtrip.count() == 0 && row.num_errors > 0) break;
  }
  report.Finish(interrupt.seen());
  if (!flags.plot.empty()) {
    const absl::Status written = WriteFile(flags.plot, PlotSvg(report.Plot()), {});
    if (!written.ok()) return context.BadArguments(written);
  }
  return ExitCodeOf(flags, report, interrupt.seen());
}

void AddLoadFlags(CLI::App& command, Flags& flags) {
  CLI::Option* const rate =
      command
          .add_option("--rate", flags.rates,
                      "Open loop: so many calls are due each second, whether or not earlier ones have been answered; "
                      "a row for each rate")
          ->delimiter(',')
          ->check(IsRate())
          ->allow_extra_args(false)
          ->type_name("R,R,...");
  command.add_option("--arrivals", flags.arrivals, "With --rate: independent of each other, or one each 1/rate")
      ->check(CLI::IsMember({"poisson", "constant"}))
      ->capture_default_str()
      ->needs(rate);
  command
      .add_option("--concurrency", flags.concurrency,
                  "Calls in flight, a row for each number; default: 1. With --rate: at most as many, default: 64")
      ->delimiter(',')
      ->transform(WholeNumber(1, kMaxConcurrency))
      ->allow_extra_args(false)
      ->type_name("N,N,...");
  command.add_option("--connections", flags.connections, "Used in turn")
      ->transform(WholeNumber(1, kMaxConnections))
      ->capture_default_str();
  command.add_option("--warmup", flags.warmup, "Before each row, not measured")
      ->check(IsDuration(absl::ZeroDuration()))
      ->capture_default_str();
  command.add_option("--duration", flags.duration, "Of each row")->check(IsDuration())->capture_default_str();
  command
      .add_option(
          "--until-p99", flags.until_p99,
          "Stop after the first row whose p99 is longer, or where a call failed; name the highest load before it")
      ->check(IsDuration());
}

}  // namespace

void AddBench(CLI::App& app, const Context& context, Action& action) {
  const auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand("bench", "Latency and throughput under a load");
  command->footer(
      "Without --rate each of --concurrency threads sends a call when its last one has been answered (closed\n"
      "loop). With --rate calls are due at times of their own, and latency counts from then (open loop): a\n"
      "daemon that stands still makes all calls late that were due meanwhile.\n"
      "A mix has a problem a line, # begins a comment:\n"
      "  90  attention  1x32x1x128,8,512  BF16\n"
      "  10  attention  1x32x512x128,8    BF16  causal\n"
      "Exit codes: 3 calls failed, and no --allow-errors; 4 a reply was wrong, or no load kept --until-p99;\n"
      "130 Ctrl-C, after what there was so far.");
  CLI::Option* const mix = command->add_option("--mix", flags->mix, "Problems, drawn by weight")->type_name("FILE");
  command->add_option("--op", flags->op, "What to call")
      ->check(CLI::IsMember({"matmul", "attention"}))
      ->capture_default_str()
      ->excludes(mix);
  command
      ->add_option("--shape", flags->shape,
                   "MxNxK or BATCHxMxNxK, default: 256x256x256; BxHqxLqxD[,Hkv[,Lkv[,Dv]]], default: 1x8x128x64")
      ->type_name("SIZES")
      ->excludes(mix);
  command->add_option("--dtype", flags->dtype, "Element type of the operands")
      ->check(IsDataType())
      ->capture_default_str()
      ->excludes(mix);
  command->add_flag("--causal", flags->causal, "Attention: row i sees no key after its own position")->excludes(mix);
  command
      ->add_option("--place", flags->place,
                   "Tensors go inline, in each request and reply; striped over several connections; operands stay at "
                   "the daemon, resident; or operands and results lie in memory that is shared with a daemon on this "
                   "host. auto: as the library chooses by size")
      ->check(CLI::IsMember({"auto", "inline", "striped", "resident", "shared"}))
      ->capture_default_str();
  command->add_option("--seed", flags->seed, "Of operands, arrivals and draws")
      ->transform(WholeNumber<std::uint64_t>(0))
      ->capture_default_str();
  AddLoadFlags(*command, *flags);
  command
      ->add_option("--check", flags->check,
                   "Compare the bits of each Nth reply with those of the first one to the same operands, type and "
                   "shape of all; 0: of none")
      ->transform(WholeNumber(0, 1'000'000))
      ->capture_default_str();
  command->add_flag("--allow-errors", flags->allow_errors, "Failed calls are counted and do not change the exit code");
  command->add_option("--plot", flags->plot, "Write latency over load to this SVG file")->type_name("FILE");
  command->callback([&context, &action, flags] { action = [&context, flags] { return RunBench(context, *flags); }; });
}

}  // namespace kernd::cli
