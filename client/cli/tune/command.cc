// kernctl tune: lets the daemon measure which kernels are the quickest.
#include <csignal>
#include <memory>
#include <string>
#include <vector>

#include "client/cli/commands.h"
#include "client/cli/interrupt.h"
#include "client/cli/progress.h"
#include "client/cli/tune/report.h"
#include "client/cli/values.h"

namespace kernd::cli {
namespace {

constexpr int kInterrupted = 128 + SIGINT;

struct Flags {
  std::vector<std::string> shapes;
  std::string budget;
};

int RunTune(const Context& context, const Flags& flags) {
  const absl::StatusOr<client::Client> client = context.Connect();
  if (!client.ok()) return context.BadArguments(client.status());
  client::AutotuneArgs args{.shapes = flags.shapes};
  if (!flags.budget.empty()) args.budget = DurationOf(flags.budget);
  client::CallOptions options = context.CallOptions();
  const StopOnInterrupt interrupt;
  options.stop = interrupt.token();

  TuneReport report;
  absl::Status status;
  {
    std::unique_ptr<Progress> bar;  // once the number of shapes is known
    status = client->Autotune(
        args,
        [&](const client::AutotuneProgress& progress) {
          report.Add(progress);
          if (bar == nullptr) {
            bar = std::make_unique<Progress>(context.err, context.terminal.progress, progress.total);
          }
          const bool within = progress.event != client::TuneEvent::kShape && progress.event != client::TuneEvent::kEnd;
          bar->Step(progress.done, progress.shape, absl::Now(), within ? progress.part : 0);
        },
        options);
  }
  const bool interrupted = interrupt.token().stop_requested();
  if (status.ok() || !report.shapes().empty()) report.Print(context);
  if (status.ok()) return kOk;
  return interrupted ? kInterrupted : context.CallFailed(status);
}

}  // namespace

void AddTune(CLI::App& app, const Context& context, Action& action) {
  const auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand("tune", "Let the daemon measure which kernels are the quickest");
  command->footer(
      "Each kernel that runs a shape is checked against a reference and measured, behind all other calls. One that\n"
      "takes 3 % less time than the daemon's own choice is chosen from then on, for everybody, and kept in the\n"
      "daemon's --tuning-file, without which it does not tune.\n"
      "  kernctl tune matmul:bf16:4096x4096x4096 attention:f16:1x8x1024x64:causal --budget 60s\n"
      "Exit codes: 3 refused, or it failed; 130 Ctrl-C, after what there was so far.");
  command
      ->add_option("shapes", flags->shapes,
                   "matmul:DTYPE:[BATCHx]MxNxK[:WORD...] or attention:DTYPE:BxH[/HKV]xL[/LKV]xD[/DV][:WORD...], as the "
                   "daemon's --prewarm takes them. None: those of that option")
      ->type_name("SHAPE")
      ->check(IsText());
  command->add_option("--budget", flags->budget, "Most time to spend; unless set: as long as it takes")
      ->check(IsDuration());
  command->callback([&context, &action, flags] { action = [&context, flags] { return RunTune(context, *flags); }; });
}

}  // namespace kernd::cli
