// kernctl top: the load of a daemon, live.
//
// It polls /status.json, not /metrics: that page has what a person wants to see and Prometheus does not keep, the
// texts of the last errors and percentiles of the last minute, in one read of a few KiB.
#include <signal.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/cli/commands.h"
#include "client/cli/net/socket.h"
#include "client/cli/net/target.h"
#include "client/cli/report.h"
#include "client/cli/text.h"
#include "client/cli/top/screen.h"
#include "client/cli/top/snapshot.h"
#include "client/cli/top/view.h"
#include "client/cli/values.h"

namespace kernd::cli {
namespace {

using nlohmann::json;
using top::Screen;
using top::Snapshot;

constexpr absl::Duration kMostPatience = absl::Seconds(5);
constexpr int kOnceWidth = 120;  // where nothing says how wide the reader's paper is
constexpr absl::Duration kLeastInterval = absl::Milliseconds(100), kMostInterval = absl::Hours(24);

struct Flags {
  std::string http, interval = "1s";
  bool once = false;
};

absl::Duration IntervalOf(const Flags& flags) {
  return DurationOf(flags.interval);
}

// UNAVAILABLE: nobody answers; CANCELLED: interrupted; INVALID_ARGUMENT: this is no kernd's page.
absl::StatusOr<json> Fetch(const std::string& address, absl::Duration most, const std::vector<int>& interrupts) {
  Failure failure;
  const std::optional<Page> page =
      HttpGet(ParseTarget(address), "/status.json", {absl::Now() + most, interrupts}, failure);
  if (failure.trouble == Trouble::kInterrupted) return absl::CancelledError(failure.why);
  if (!page) return absl::UnavailableError(absl::StrCat("no kernd's HTTP port at ", address, " (", failure.why, ")"));
  json status = json::parse(page->body, nullptr, false);
  if (page->code != 200 || !status.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(address, " has no /status.json (HTTP ", page->code, "): name kernd's HTTP address with --http"));
  }
  return status;
}

int Failed(const Context& context, const absl::Status& status) {
  context.BadArguments(status);
  return absl::IsUnavailable(status) ? kNotConnected : kCallFailed;
}

int PrintOnce(const Context& context, const std::string& address) {
  const absl::StatusOr<json> status = Fetch(address, std::min(context.Timeout(), kMostPatience), {});
  if (!status.ok()) return Failed(context, status.status());
  const absl::StatusOr<Snapshot> now = top::SnapshotOf(*status);
  if (!now.ok()) return Failed(context, now.status());
  const int width = context.terminal.screen ? top::OutputWidth(kOnceWidth) : kOnceWidth;
  const top::ViewOptions options{.width = width, .height = 0, .colors = context.terminal.colors, .address = address};
  for (const std::string& line : top::View(*now, RatesOf(*now, nullptr), options)) context.out << line << '\n';
  return kOk;
}

// One object a line, as the daemon wrote it, so that nothing is lost on the way.
int PrintStream(const Context& context, const std::string& address, absl::Duration interval, bool once) {
  absl::Time next = absl::Now();
  while (true) {
    const absl::StatusOr<json> status = Fetch(address, std::min(context.Timeout(), kMostPatience), {});
    if (!status.ok()) return Failed(context, status.status());
    context.out << status->dump(-1, ' ', true, json::error_handler_t::replace) << std::endl;
    if (once || !context.out) return kOk;
    next = std::max(next + interval, absl::Now());
    absl::SleepFor(next - absl::Now());
  }
}

// What is shown, and the snapshot before for the rates.
class Live {
 public:
  Live(const Context& context, const Flags& flags, std::string address)
      : colors_(context.terminal.colors), interval_(IntervalOf(flags)), address_(std::move(address)) {}

  // The signal that ended it; 0 for a key.
  int Run(Screen& screen) {
    while (true) {
      const absl::Time next = absl::Now() + interval_;
      if (!paused_) Poll(screen);
      if (!Draw(screen)) return SIGHUP;
      Screen::Event event = screen.Wait(next);
      while (event != Screen::Event::kTime) {
        const bool quit = event == Screen::Event::kKey && (screen.key() == 'q' || screen.key() == 'Q');
        if (quit || event == Screen::Event::kEnd) return quit ? 0 : screen.signal();
        if (event == Screen::Event::kKey && screen.key() == 'p') paused_ = !paused_;
        if (!Draw(screen)) return SIGHUP;
        event = screen.Wait(next);
      }
    }
  }

 private:
  void Poll(const Screen& screen) {
    const absl::StatusOr<json> status = Fetch(address_, kMostPatience, screen.wakers());
    if (absl::IsCancelled(status.status())) return;  // a key: asks again at the next turn
    absl::StatusOr<Snapshot> now = status.ok() ? top::SnapshotOf(*status) : status.status();
    note_ = now.ok() ? "" : std::string(now.status().message());
    if (!now.ok()) return;
    rates_ = RatesOf(*now, now_ ? &*now_ : nullptr);
    now_ = *std::move(now);
  }

  bool Draw(Screen& screen) const {
    const Screen::Size size = screen.size();
    std::vector<std::string> lines;
    if (now_) {
      lines = top::View(*now_, rates_,
                        {.width = size.width,
                         .height = std::max(1, size.height - 1),
                         .colors = colors_,
                         .address = address_,
                         .note = !note_.empty() ? "NO ANSWER"
                                 : paused_      ? "PAUSED"
                                                : ""});
    }
    if (static_cast<int>(lines.size()) >= size.height) return screen.Show(lines);
    lines.resize(static_cast<std::size_t>(size.height - 1));
    const std::string foot = note_.empty() ? "q quits, p pauses" : Printable(note_) + "; asks again; q quits";
    lines.push_back(foot.substr(0, static_cast<std::size_t>(size.width)));
    return screen.Show(lines);
  }

  const bool colors_;
  const absl::Duration interval_;
  const std::string address_;
  std::optional<Snapshot> now_;
  top::Rates rates_;
  std::string note_;  // why there is no answer
  bool paused_ = false;
};

int RunTop(const Context& context, const Flags& flags) {
  const std::string address = flags.http.empty() ? HttpAddressOf(context.endpoint) : flags.http;
  if (context.json) return PrintStream(context, address, IntervalOf(flags), flags.once);
  int signal = 0;
  {
    const std::unique_ptr<Screen> screen = flags.once || !context.terminal.screen ? nullptr : Screen::Open();
    if (screen == nullptr) return PrintOnce(context, address);
    signal = Live(context, flags, address).Run(*screen);
  }
  // The terminal is as it was. Ctrl-C is a way to leave like q; the other signals end the process as they would any.
  if (signal != 0 && signal != SIGINT) ::raise(signal);
  return kOk;
}

}  // namespace

void AddTop(CLI::App& app, const Context& context, Action& action) {
  const auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand("top", "The daemon's load, live: calls, stages, memory, kernels, errors");
  command->footer(
      "Reads /status.json of the daemon's HTTP port. Keys: q quits, p pauses. With --json prints what the\n"
      "daemon says, one object a line and interval. Where standard output is no terminal: as --once.");
  command->add_option("--http", flags->http, "The daemon's HTTP address; default: port 9464 of the endpoint's host")
      ->check(IsTarget())
      ->type_name("HOST:PORT");
  command->add_flag("--once", flags->once, "Print one picture, and leave");
  command->add_option("--interval", flags->interval, "Between two pictures, at least 100ms")
      ->check(IsDuration(kLeastInterval, kMostInterval))
      ->capture_default_str();
  command->callback([&context, &action, flags] { action = [&context, flags] { return RunTop(context, *flags); }; });
}

}  // namespace kernd::cli
