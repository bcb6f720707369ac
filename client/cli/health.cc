#include <algorithm>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "client/cli/commands.h"
#include "client/cli/progress.h"
#include "client/cli/report.h"
#include "client/cli/values.h"

namespace kernd::cli {
namespace {

constexpr absl::Duration kPoll = absl::Milliseconds(100);

struct Flags {
  std::string service, wait;
};

// Worth asking again: the daemon is not there yet, or not ready.
bool MayBecomeServing(const absl::StatusOr<client::HealthStatus>& health) {
  if (health.ok()) return *health != client::HealthStatus::kServing;
  return absl::IsUnavailable(health.status()) || absl::IsDeadlineExceeded(health.status());
}

int RunHealth(const Context& context, const Flags& flags) {
  const absl::StatusOr<client::Client> client = context.Connect();
  if (!client.ok()) return context.BadArguments(client.status());
  const absl::Duration wait = DurationOf(flags.wait);
  const absl::Time end = absl::Now() + wait;
  client::CallOptions options = context.CallOptions();
  if (wait > absl::ZeroDuration()) options.timeout = std::min(wait, context.Timeout());
  std::optional<Busy> busy(std::in_place, context.err, context.terminal.progress, "waiting for " + context.endpoint,
                           std::max(wait, context.Timeout()));
  absl::StatusOr<client::HealthStatus> health = client->Health(flags.service, options);
  while (MayBecomeServing(health) && absl::Now() + kPoll < end) {
    std::this_thread::sleep_for(absl::ToChronoNanoseconds(kPoll));
    options.timeout = std::min(std::max(end - absl::Now(), kPoll), context.Timeout());
    health = client->Health(flags.service, options);
  }
  busy.reset();
  if (!health.ok()) return context.CallFailed(health.status());
  if (context.json) {
    PrintJson(context, {{"status", std::string(client::Name(*health))}, {"service", flags.service}});
  } else {
    context.out << client::Name(*health) << '\n';
  }
  return *health == client::HealthStatus::kServing ? kOk : kWrong;
}

}  // namespace

void AddHealth(CLI::App& app, const Context& context, Action& action) {
  const auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand("health", "Whether the daemon serves: exit code 0, or 4 where it does not");
  command->add_option("--service", flags->service, "Full name of a service; default: the daemon as a whole")
      ->check(IsText())
      ->type_name("NAME");
  command->add_option("--wait", flags->wait, "Ask until it serves, at most as long")->check(IsDuration());
  command->callback([&context, &action, flags] { action = [&context, flags] { return RunHealth(context, *flags); }; });
}

}  // namespace kernd::cli
