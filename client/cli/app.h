// kernctl without its main(), for tests.
#pragma once

#include <ostream>
#include <string>
#include <vector>

namespace kernd::cli {

// Runs one command line, without the program's name. Returns the exit code.
int Run(std::vector<std::string> arguments, std::ostream& out, std::ostream& err);

}  // namespace kernd::cli
