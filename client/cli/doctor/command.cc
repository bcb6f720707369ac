// kernctl doctor: one screen for a bug report, with what to do.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/cli/commands.h"
#include "client/cli/doctor/checks.h"
#include "client/cli/doctor/gather.h"
#include "client/cli/net/target.h"
#include "client/cli/progress.h"
#include "client/cli/report.h"
#include "client/cli/text.h"
#include "client/cli/values.h"
#include "kernd/client/client.h"

namespace kernd::cli {
namespace {

using doctor::Check;
using doctor::Status;
using nlohmann::json;

constexpr int kUnwell = 1;  // exit code

struct Flags {
  std::string http;
  bool host = false;
};

struct Tally {
  int ok = 0, warnings = 0, problems = 0, not_applicable = 0;
};

Tally Count(const std::vector<Check>& checks) {
  Tally tally;
  for (const Check& check : checks) {
    switch (check.status) {
      case Status::kOk: ++tally.ok; break;
      case Status::kWarning: ++tally.warnings; break;
      case Status::kProblem: ++tally.problems; break;
      case Status::kNotApplicable: ++tally.not_applicable; break;
    }
  }
  return tally;
}

std::string TimeText(absl::Time time) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", time, absl::UTCTimeZone());
}

void PrintText(const Context& context, const doctor::Facts& facts, const std::vector<Check>& checks,
               const Tally& tally) {
  constexpr std::size_t kStatusWidth = 9, kNameWidth = 15;
  const auto color = [&](Status status) {
    if (!context.terminal.colors) return "";
    switch (status) {
      case Status::kOk: return "\x1b[32m";
      case Status::kWarning: return "\x1b[33m";
      case Status::kProblem: return "\x1b[1;31m";
      case Status::kNotApplicable: return "\x1b[2m";
    }
    return "";
  };
  const char* const plain = context.terminal.colors ? "\x1b[0m" : "";
  const auto padded = [](std::string text, std::size_t width) {
    return text.append(width - std::min(width, text.size()), ' ');
  };
  context.out << "kernctl doctor, " << TimeText(facts.now) << '\n';
  for (const Check& check : checks) {
    context.out << color(check.status) << padded(doctor::Name(check.status), kStatusWidth) << plain
                << padded(check.name, kNameWidth) << Printable(check.found) << '\n';
    if (!check.todo.empty()) context.out << padded("", kStatusWidth) << "-> " << Printable(check.todo) << '\n';
  }
  context.out << "problems: " << tally.problems << ", warnings: " << tally.warnings << ", ok: " << tally.ok
              << ", n/a: " << tally.not_applicable << '\n';
}

void PrintChecks(const Context& context, const doctor::Facts& facts, const std::vector<Check>& checks,
                 const Tally& tally) {
  json rows = json::array();
  for (const Check& check : checks) {
    json row = {{"name", check.name}, {"status", doctor::Name(check.status)}, {"found", check.found}};
    if (!check.todo.empty()) row["todo"] = check.todo;
    rows.push_back(std::move(row));
  }
  PrintJson(context, {{"time", TimeText(facts.now)},
                      {"version", facts.kernctl_version},
                      {"endpoint", facts.daemon.endpoint.text},
                      {"checks", rows},
                      {"summary",
                       {{"ok", tally.ok},
                        {"warnings", tally.warnings},
                        {"problems", tally.problems},
                        {"not_applicable", tally.not_applicable}}}});
}

int RunDoctor(const Context& context, const Flags& flags) {
  doctor::Facts facts;
  facts.now = absl::Now();
  facts.kernctl_version = std::string(client::Version());
  facts.toolkit = KERND_CUDA_TOOLKIT;
  {
    const Busy busy(context.err, context.terminal.progress, "looking at this machine and the daemon");
    facts.machine = doctor::GatherMachine();
    facts.gpu = doctor::GatherGpus();
    facts.daemon = doctor::GatherDaemon(context, flags.http.empty() ? HttpAddressOf(context.endpoint) : flags.http);
  }
  std::array<char, 256> host{};
  if (flags.host && ::gethostname(host.data(), host.size() - 1) == 0) facts.machine.host = host.data();
  const std::vector<Check> checks = doctor::Examine(facts);
  const Tally tally = Count(checks);
  if (context.json) {
    PrintChecks(context, facts, checks, tally);
  } else {
    PrintText(context, facts, checks, tally);
  }
  return tally.problems > 0 ? kUnwell : kOk;
}

}  // namespace

void AddDoctor(CLI::App& app, const Context& context, Action& action) {
  const auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand("doctor", "What is wrong here, and what to do; to paste into a bug report");
  command->footer(
      "Looks at the daemon from the wire inwards, at this machine's limits and at its GPUs. Needs neither\n"
      "a daemon nor a GPU. Prints no environment, no metadata and, unless asked, no name of this host.\n"
      "Exit code 1 where there is a problem; warnings alone are 0.");
  command->add_option("--http", flags->http, "The daemon's HTTP address; default: port 9464 of the endpoint's host")
      ->check(IsTarget())
      ->type_name("HOST:PORT");
  command->add_flag("--host-name", flags->host, "Print the name of this machine too");
  command->callback([&context, &action, flags] { action = [&context, flags] { return RunDoctor(context, *flags); }; });
}

}  // namespace kernd::cli
