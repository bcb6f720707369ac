// Scripts that complete a program's commands and options in a shell.
#pragma once

#include <string>
#include <vector>

namespace kernd::cli {

struct Flag {
  std::string name;  // "--dtype"
  std::string description;
  bool takes_value = false, takes_file = false;
  std::vector<std::string> choices;
};

struct Command {
  std::string name, description;
  std::vector<Flag> flags;  // with the global ones
};

// For "bash", "zsh" or "fish". The first of `commands`, without a name, is the program itself, and may be the only one.
std::string CompletionScript(const std::string& shell, const std::string& program,
                             const std::vector<Command>& commands);

}  // namespace kernd::cli
