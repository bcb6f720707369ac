#include "client/cli/app.h"

#include <algorithm>
#include <exception>
#include <sstream>
#include <utility>

#include "client/cli/commands.h"
#include "client/cli/values.h"

namespace kernd::cli {
namespace {

constexpr char kName[] = "kernctl", kDescription[] = "kernctl: matrix products and attention on a kernd daemon";
constexpr char kFooter[] =
    "Tensor files: FILE.npy, FILE.safetensors (with one tensor), FILE.safetensors:TENSOR.\n"
    "In the place of one, with --session: resident:ID, a tensor of the session (see kernctl tensors --help).\n"
    "Exit codes: 0 well; 1 bad arguments or files; 2 no connection; 3 the call failed or was refused;\n"
    "4 not SERVING, not what --expect says, or not verified.";

CLI::Validator IsMetadata() {
  return CLI::Validator(
      [](const std::string& entry) {
        const std::size_t equals = entry.find('=');
        return equals == std::string::npos || equals == 0 ? "'" + entry + "' is not KEY=VALUE" : std::string();
      },
      "KEY=VALUE");
}

void AddOptions(CLI::App& app, Context& context, Action& action) {
  app.set_version_flag("--version", "kernctl " + std::string(client::Version()));
  app.add_option("--endpoint", context.endpoint, "HOST:PORT or unix:/path of the daemon")
      ->envname("KERND_ENDPOINT")
      ->check(IsTarget())
      ->type_name("TARGET")
      ->capture_default_str();
  app.add_option("--timeout", context.timeout, "Of a call, retries included")
      ->check(IsDuration())
      ->capture_default_str();
  app.add_option("--metadata", context.metadata, "Send this with each call; may be repeated")
      ->check(IsMetadata())
      ->allow_extra_args(false);
  app.add_flag("--json", context.json, "Print JSON; errors too, on standard error");
  app.require_subcommand(0, 1);  // 0: so that an unknown one is named in the error
  app.fallthrough();
  app.footer(kFooter);
  AddMatmul(app, context, action);
  AddAttention(app, context, action);
  AddTensors(app, context, action);
  AddVerify(app, context, action);
  AddTune(app, context, action);
  AddBench(app, context, action);
  AddDoctor(app, context, action);
  AddTop(app, context, action);
  AddHealth(app, context, action);
  AddGpuInfo(app, context, action);
  AddKernels(app, context, action);
  AddCompletion(app, context, action);
}

}  // namespace

int Run(std::vector<std::string> arguments, std::ostream& out, std::ostream& err, Terminal terminal) {
  Context context{out, err, terminal};
  // Known before the arguments are parsed, as that may be what fails.
  context.json = std::find(arguments.begin(), arguments.end(), "--json") != arguments.end();
  Action action;
  CLI::App app(kDescription, kName);
  AddOptions(app, context, action);
  try {
    std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants them
    app.parse(std::move(arguments));
    if (action) return action();
    if (context.json) return context.BadArguments(absl::InvalidArgumentError("no command given"));
    err << app.help();
    return kBadArguments;
  } catch (const CLI::Success& done) {  // --help, --version
    return app.exit(done, out, err);
  } catch (const CLI::ParseError& error) {
    return context.BadArguments(
        absl::InvalidArgumentError(std::string(error.what()) + "; kernctl --help lists commands and options"));
  } catch (const std::exception& error) {
    return context.BadArguments(absl::InternalError(error.what()));
  }
}

void VisitOptions(const std::function<void(const CLI::App& app)>& visit) {
  std::ostringstream nowhere;
  Context context{nowhere, nowhere};
  Action action;
  CLI::App app(kDescription, kName);
  AddOptions(app, context, action);
  visit(app);
}

}  // namespace kernd::cli
