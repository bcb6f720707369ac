#include "server/config/options.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "server/config/option_table.h"

namespace kernd::config {
namespace {

constexpr char kDescription[] =
    "kernd: matmul and attention over gRPC.\n"
    "Each option is a flag (--log-level debug), a variable (KERND_LOG_LEVEL=debug) or a line of the file given by\n"
    "--config (log-level = \"debug\"). A flag beats a variable, a variable beats the file.";

constexpr char kFlag[] = "flag";
constexpr std::size_t kMaxFileBytes = 1 << 20;

// The text of one option and where it was found.
struct Given {
  std::vector<std::string> values;
  std::string source;  // kFlag, the name of a variable, or the path of a file
};
using GivenByName = std::map<std::string, Given>;

struct CommandLine {
  GivenByName given;
  std::string config_file;
  bool check_config = false;
  std::optional<std::string> print;
};

// CLI11 writes "..." behind each option that it lets be given twice, which here is all of them, so that Apply can say
// what is wrong with it.
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_option_opts(const CLI::Option* option) const override {
    return option->get_type_name().empty() ? "" : " " + option->get_type_name();
  }
};

// " (default: 30s)", as it would be typed.
std::string DefaultText(const Option& option, const ServerOptions& defaults) {
  const std::string text = absl::StrReplaceAll(option.print(defaults), {{"\"", ""}, {"[", ""}, {"]", ""}});
  return text.empty() ? "" : absl::StrCat(" (default: ", text, ")");
}

std::vector<std::string> SplitList(const Option& option, std::vector<std::string> values) {
  if (!option.repeatable) return values;
  return absl::StrSplit(absl::StrJoin(values, ","), ',');
}

absl::StatusOr<CommandLine> ReadCommandLine(int argc, const char* const* argv, const std::string& version,
                                            const MachineLimits& machine) {
  CommandLine line;
  bool show_version = false;
  CLI::App app(kDescription, "kernd");
  app.formatter(std::make_shared<HelpFormatter>());
  app.set_help_flag("-h,--help", "Print this and leave.");
  app.add_flag("--version", show_version, "Print the version and leave.");
  app.add_flag("--check-config", line.check_config,
               "Validate, print the effective configuration and where each value comes from, and leave.");
  app.add_option("--config", line.config_file, "Read options from this file: lines of NAME = VALUE.")
      ->type_name("FILE");

  const ServerOptions defaults = DefaultOptions(machine);
  std::map<const Option*, std::vector<std::string>> values;
  for (const Option& option : OptionTable()) {
    app.add_option(absl::StrCat("--", option.name), values[&option],
                   absl::StrCat(option.help, DefaultText(option, defaults)))
        ->group(option.group)
        ->type_name(option.value)
        ->allow_extra_args(false);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    line.print = app.help();
    return line;
  } catch (const CLI::Error& error) {
    return absl::InvalidArgumentError(absl::StrCat(error.what(), " (see --help)"));
  }
  if (show_version) line.print = absl::StrCat(version, "\n");
  for (auto& [option, texts] : values) {
    if (!texts.empty()) line.given[option->name] = {SplitList(*option, std::move(texts)), kFlag};
  }
  return line;
}

void AddEnvironment(const Environment& environment, GivenByName& given) {
  for (const Option& option : OptionTable()) {
    const std::string variable = VariableOf(option);
    const auto value = environment(variable);
    // An empty variable is one that a template left out. Unknown ones: variables.h.
    if (value && !value->empty()) given.try_emplace(option.name, Given{SplitList(option, {*value}), variable});
  }
}

// The text of a configuration file: a regular file of at most kMaxFileBytes. Devices and pipes may never end, and a
// pipe without a writer would not even open.
absl::StatusOr<std::string> ReadConfig(const std::string& path) {
  const auto refused = [&](const char* rule) { return absl::StrCat("--config is ", path, ": must be ", rule); };
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0)
    return absl::NotFoundError(absl::StrCat(refused("a file that can be read"), " (", std::strerror(errno), ")"));
  struct stat status {};
  std::string text;
  ssize_t got = 0;
  if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode)) {
    // By reading, since files of /proc do not tell their size.
    char buffer[4096];
    while (text.size() <= kMaxFileBytes && (got = read(fd, buffer, sizeof(buffer))) > 0) {
      text.append(buffer, static_cast<std::size_t>(got));
    }
  } else {
    got = -1;
  }
  close(fd);
  if (got < 0) return absl::NotFoundError(refused("a regular file that can be read"));
  if (text.size() > kMaxFileBytes) return absl::InvalidArgumentError(refused("a file of at most 1MiB"));
  return text;
}

absl::Status AddFile(const std::string& path, GivenByName& given) {
  absl::StatusOr<std::string> text = ReadConfig(path);
  if (!text.ok()) return text.status();
  std::istringstream in(*std::move(text));
  std::map<std::string, const Option*> known;
  for (const Option& option : OptionTable()) known[option.name] = &option;
  std::map<std::string, Given> in_file;
  for (const CLI::ConfigItem& item : CLI::ConfigTOML().from_config(in)) {
    const auto found = item.parents.empty() ? known.find(item.name) : known.end();
    if (found == known.end()) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": ", item.fullname(), " is not an option"));
    }
    Given value = {SplitList(*found->second, item.inputs), path};
    if (!in_file.emplace(item.name, std::move(value)).second) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": ", item.name, " is given twice"));
    }
  }
  given.merge(in_file);  // keeps what is there already
  return absl::OkStatus();
}

// "--io-threads (from KERND_IO_THREADS) is 0: must be from 1 to 256". What comes from a flag is named by the flag.
absl::Status Refused(const std::string& option, const GivenByName& given, const std::string& value,
                     absl::string_view rule) {
  const auto found = given.find(option);
  const bool by_flag = found == given.end() || found->second.source == kFlag;
  const std::string origin = by_flag ? "" : absl::StrCat(" (from ", found->second.source, ")");
  return absl::InvalidArgumentError(absl::StrCat("--", option, origin, " is ", value, ": ", rule));
}

absl::Status Apply(const GivenByName& given, const MachineLimits& machine, ServerOptions& options) {
  for (const Option& option : OptionTable()) {
    const auto found = given.find(option.name);
    if (found == given.end()) continue;
    const std::vector<std::string>& values = found->second.values;
    const absl::Status status = values.size() == 1 || option.repeatable
                                    ? option.set(values, machine, options)
                                    : absl::InvalidArgumentError("must be given once");
    if (!status.ok()) return Refused(option.name, given, absl::StrJoin(values, ","), status.message());
  }
  return absl::OkStatus();
}

// The configuration as a file that can be read again.
std::string Effective(const ServerOptions& options, const GivenByName& given, const std::string& version,
                      const MachineLimits& machine) {
  std::string text = absl::StrCat("# ", version, "\n# CPUs: ", machine.cpus, " (", machine.cpus_from,
                                  "), memory: ", BytesText(machine.memory_bytes), " (", machine.memory_from, ")\n");
  std::string group;
  for (const Option& option : OptionTable()) {
    if (group != option.group) {
      group = option.group;
      absl::StrAppend(&text, "\n# ", group, "\n");
    }
    const auto found = given.find(option.name);
    absl::StrAppend(&text, option.name, " = ", option.print(options), "  # ",
                    found == given.end() ? "default" : found->second.source, "\n");
  }
  return text;
}

}  // namespace

Environment ProcessEnvironment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* const value = std::getenv(name.c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
}

absl::StatusOr<Invocation> ParseOptions(int argc, const char* const* argv, const std::string& version,
                                        const Environment& environment, const MachineLimits& machine) {
  absl::StatusOr<CommandLine> line = ReadCommandLine(argc, argv, version, machine);
  if (!line.ok()) return line.status();
  Invocation invocation = {.options = DefaultOptions(machine), .print = std::move(line->print)};
  if (invocation.print) return invocation;

  GivenByName given = std::move(line->given);
  AddEnvironment(environment, given);
  std::string file = line->config_file;
  if (file.empty()) file = environment("KERND_CONFIG").value_or("");
  if (!file.empty()) {
    if (absl::Status status = AddFile(file, given); !status.ok()) return status;
  }
  if (absl::Status status = Apply(given, machine, invocation.options); !status.ok()) return status;
  if (const std::optional<BrokenRule> broken = FindBrokenRule(invocation.options)) {
    return Refused(broken->option, given, broken->value, broken->rule);
  }
  if (line->check_config) invocation.print = Effective(invocation.options, given, version, machine);
  return invocation;
}

}  // namespace kernd::config
