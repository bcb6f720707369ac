// Completion of kernd in a shell, from its option table. Usage: kernd_completion bash|zsh|fish
#include <algorithm>
#include <cctype>
#include <cstdio>
#include <sstream>

#include "client/cli/completion.h"
#include "server/config/option_table.h"

namespace {

using kernd::cli::Flag;

// Of "auto|cuda|cpu" all, of "DURATION|off" the one that is to be typed as it stands.
std::vector<std::string> ChoicesOf(const std::string& value) {
  std::vector<std::string> choices;
  std::istringstream in(value);
  for (std::string choice; std::getline(in, choice, '|');) {
    if (std::none_of(choice.begin(), choice.end(), [](unsigned char c) { return std::isupper(c) != 0; })) {
      choices.push_back(choice);
    }
  }
  return choices;
}

std::vector<Flag> Flags() {
  std::vector<Flag> flags = {
      {.name = "--help", .description = "Print all options and leave."},
      {.name = "--version", .description = "Print the version and leave."},
      {.name = "--check-config", .description = "Validate, print the effective configuration and leave."},
      {.name = "--config", .description = "Read options from this file.", .takes_value = true, .takes_file = true}};
  for (const kernd::config::Option& option : kernd::config::OptionTable()) {
    flags.push_back({.name = std::string("--") + option.name,
                     .description = option.help,
                     .takes_value = true,
                     .takes_file = std::string(option.value) == "PATH",
                     .choices = ChoicesOf(option.value)});
  }
  return flags;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 1;
  std::fputs(kernd::cli::CompletionScript(argv[1], "kernd", {{.flags = Flags()}}).c_str(), stdout);
  return 0;
}
