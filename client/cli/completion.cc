// kernctl completion: scripts for shells, made from the options themselves.
#include "client/cli/completion.h"

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "client/cli/commands.h"
#include "client/cli/table.h"

namespace kernd::cli {
namespace {

// CLI11 writes a closed list of values into the name of their type: "TEXT:{none,relu}".
std::vector<std::string> ChoicesOf(const std::string& type) {
  const std::size_t begin = type.find('{'), end = type.rfind('}');
  if (begin == std::string::npos || end == std::string::npos || end < begin) return {};
  return absl::StrSplit(type.substr(begin + 1, end - begin - 1), ',');
}

void AddFlags(const CLI::App& app, std::vector<Flag>& flags) {
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      const std::string type = option->get_type_name();
      flags.push_back({.name = "--" + name,
                       .description = option->get_description(),
                       .takes_value = option->get_items_expected_max() > 0,
                       .takes_file = type == "FILE",
                       .choices = ChoicesOf(type)});
    }
  }
}

// All commands; the first one, without a name, is kernctl itself.
std::vector<Command> CommandsOf(const CLI::App& app) {
  std::vector<Command> commands(1);
  AddFlags(app, commands[0].flags);
  for (const CLI::App* child : app.get_subcommands([](const CLI::App*) { return true; })) {
    Command command{.name = child->get_name(), .description = child->get_description()};
    AddFlags(*child, command.flags);
    for (const Flag& flag : commands[0].flags) {
      const bool own = std::any_of(command.flags.begin(), command.flags.end(),
                                   [&flag](const Flag& other) { return other.name == flag.name; });
      if (!own) command.flags.push_back(flag);
    }
    commands.push_back(std::move(command));
  }
  return commands;
}

std::string Names(const std::vector<Command>& commands, const char* separator) {
  std::vector<std::string> names;
  for (const Command& command : commands) {
    if (!command.name.empty()) names.push_back(command.name);
  }
  return Join(names, separator);
}

// --- bash
// -------------------------------------------------------------------------------------------------------------

std::string Bash(const std::string& program, const std::vector<Command>& commands) {
  std::string values, words;
  for (const Command& command : commands) {
    std::vector<std::string> names;
    for (const Flag& flag : command.flags) {
      names.push_back(flag.name);
      if (!flag.takes_value) continue;
      const std::string reply = flag.takes_file ? "COMPREPLY=($(compgen -f -- \"$word\"))"
                                : flag.choices.empty()
                                    ? "COMPREPLY=()"
                                    : "COMPREPLY=($(compgen -W '" + Join(flag.choices, " ") + "' -- \"$word\"))";
      absl::StrAppend(&values, "    ", command.name, "/", flag.name, ") ", reply, "; return;;\n");
    }
    const std::string also = command.name.empty() ? Names(commands, " ") + " " : "";
    absl::StrAppend(&words, "    '", command.name, "') words='", also, Join(names, " "), "';;\n");
  }
  const std::string names = Names(commands, "|");
  const std::string find_command = names.empty() ? ""
                                                 : absl::StrCat(
                                                       "  for ((i = 1; i < COMP_CWORD; ++i)); do\n"
                                                       "    case ${COMP_WORDS[i]} in ",
                                                       names,
                                                       ") command=${COMP_WORDS[i]}; break;; esac\n"
                                                       "  done\n");
  return absl::StrCat("_", program,
                      "() {\n"
                      "  local word=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} command= words= i\n",
                      find_command, "  case $command/$previous in\n", values,
                      "  esac\n"
                      "  case $command in\n",
                      words,
                      "  esac\n"
                      "  COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n"
                      "}\n"
                      "complete -o filenames -F _",
                      program, " ", program, "\n");
}

// --- zsh
// --------------------------------------------------------------------------------------------------------------

// For a description inside of '...[...]'.
std::string ZshText(const std::string& text) {
  return absl::StrReplaceAll(text, {{"'", "'\\''"}, {"[", "\\["}, {"]", "\\]"}, {":", "\\:"}});
}

std::string ZshArguments(const Command& command) {
  std::string out;
  for (const Flag& flag : command.flags) {
    absl::StrAppend(&out, " \\\n      '", flag.name, "[", ZshText(flag.description), "]");
    if (flag.takes_file) {
      absl::StrAppend(&out, ":file:_files");
    } else if (flag.takes_value) {
      absl::StrAppend(&out, ":value:", flag.choices.empty() ? "" : "(" + Join(flag.choices, " ") + ")");
    }
    out += "'";
  }
  return out;
}

std::string Zsh(const std::string& program, const std::vector<Command>& commands) {
  std::string names, cases;
  for (const Command& command : commands) {
    if (command.name.empty()) continue;
    absl::StrAppend(&names, " \\\n      '", command.name, ":", ZshText(command.description), "'");
    absl::StrAppend(&cases, "    ", command.name, ") _arguments", ZshArguments(command), ";;\n");
  }
  const std::string body = names.empty() ? absl::StrCat("  _arguments", ZshArguments(commands[0]), "\n")
                                         : absl::StrCat(
                                               "  local curcontext=$curcontext state line\n"
                                               "  local -a commands=(",
                                               names, ")\n  _arguments -C", ZshArguments(commands[0]),
                                               " \\\n      '1:command:->command' '*::argument:->argument'\n"
                                               "  case $state in\n"
                                               "    command) _describe command commands; return;;\n"
                                               "  esac\n"
                                               "  case $words[1] in\n",
                                               cases, "  esac\n");
  const std::string function = "_" + program;
  return absl::StrCat("#compdef ", program, "\n", function, "() {\n", body, "}\nif [ \"$funcstack[1]\" = ", function,
                      " ]; then ", function, " \"$@\"; else compdef ", function, " ", program, "; fi\n");
}

// --- fish
// -------------------------------------------------------------------------------------------------------------

std::string FishText(const std::string& text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"'", "\\'"}}), "'");
}

std::string Fish(const std::string& program, const std::vector<Command>& commands) {
  const std::string complete = "complete -c " + program;
  std::string out = complete + " -f\n";
  for (const Command& command : commands) {
    const bool global = command.name.empty();
    const std::string when = global ? "__fish_use_subcommand" : "'__fish_seen_subcommand_from " + command.name + "'";
    if (!global) {
      absl::StrAppend(&out, complete, " -n __fish_use_subcommand -a ", command.name, " -d ",
                      FishText(command.description), "\n");
    }
    for (const Flag& flag : command.flags) {
      absl::StrAppend(&out, complete, " -n ", when, " -l ", flag.name.substr(2));
      if (flag.takes_file) out += " -r -F";
      if (flag.takes_value && !flag.takes_file) out += " -x";
      if (!flag.choices.empty()) absl::StrAppend(&out, " -a ", FishText(Join(flag.choices, " ")));
      absl::StrAppend(&out, " -d ", FishText(flag.description), "\n");
    }
  }
  return out;
}

}  // namespace

std::string CompletionScript(const std::string& shell, const std::string& program,
                             const std::vector<Command>& commands) {
  if (shell == "bash") return Bash(program, commands);
  return shell == "zsh" ? Zsh(program, commands) : Fish(program, commands);
}

void AddCompletion(CLI::App& app, const Context& context, Action& action) {
  const auto shell = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand("completion", "Print a script that completes kernctl in a shell");
  command->add_option("shell", *shell, "The shell")->required()->check(CLI::IsMember({"bash", "zsh", "fish"}));
  command->footer(
      "bash: source <(kernctl completion bash)\n"
      "zsh:  source <(kernctl completion zsh)\n"
      "fish: kernctl completion fish | source");
  command->callback([&app, &context, &action, shell] {
    action = [&app, &context, shell] {
      context.out << CompletionScript(*shell, "kernctl", CommandsOf(app));
      return kOk;
    };
  });
}

}  // namespace kernd::cli
