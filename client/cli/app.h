// kernctl without its main(), for tests.
#pragma once

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "client/cli/context.h"

namespace CLI {
class App;
}

namespace kernd::cli {

// Runs one command line, without the program's name. Returns the exit code.
int Run(std::vector<std::string> arguments, std::ostream& out, std::ostream& err, Terminal terminal = {});

// Calls `visit` with all commands and options, from which a manual page can be made.
void VisitOptions(const std::function<void(const CLI::App& app)>& visit);

}  // namespace kernd::cli
