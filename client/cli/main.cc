#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <string_view>

#include "client/cli/app.h"

namespace {

// Neither colours nor bars where a program reads, nor where the user wants none (https://no-color.org).
bool IsTerminal(int descriptor) {
  const char* const no_color = std::getenv("NO_COLOR");
  const char* const term = std::getenv("TERM");
  const bool unwanted =
      (no_color != nullptr && *no_color != '\0') || term == nullptr || std::string_view(term) == "dumb";
  return !unwanted && isatty(descriptor) == 1;
}

}  // namespace

int main(int argc, char** argv) {
  const int code =
      kernd::cli::Run({argv + 1, argv + argc}, std::cout, std::cerr,
                      {.colors = IsTerminal(STDOUT_FILENO), .progress = IsTerminal(STDERR_FILENO), .screen = true});
  // A disk that is full shows when the last bytes go out.
  if (std::cout.flush() || code != kernd::cli::kOk) return code;
  std::cerr << "kernctl: standard output cannot be written\n";
  return kernd::cli::kBadArguments;
}
